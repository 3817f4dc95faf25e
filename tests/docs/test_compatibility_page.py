"""What docs/compatibility.md says is tested is tested by the tests that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def test_every_named_test_exists() -> None:
    """A test that was renamed or removed takes its cell with it."""
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert {name for name in named if f"def {name}(" not in sources} == set()


def test_every_row_says_how_it_is_known() -> None:
    """A row of the table ends with a test's number, captures, or public source."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 10][1:]
    assert len(rows) >= 10
    numbers = set(re.findall(r"^(\d+)\. `test_", PAGE, re.MULTILINE))
    for row in rows:
        known = row.rstrip("| ").rpartition("|")[2].strip()
        number = re.search(r"\[(\d+)\]", known)
        assert known == "public source only" or (number and number.group(1) in numbers), row
