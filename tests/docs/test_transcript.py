"""The reader of the pages' commands, by which the pages are held against the programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.transcript import Command, is_as_written, read_commands


def test_commands_are_read_with_their_output(tmp_path: Path) -> None:
    """From fenced and indented blocks, over several lines where quotes or a backslash go on."""
    page = tmp_path / "page.md"
    page.write_text(
        "# T\n\ntext $ no\n\n    $ one 'a\n      b'\n    out\n\n"
        "## S\n\n```console\n$ two \\\n  more\n$ three\nx\n\ny\n```\n"
    )
    assert read_commands(page) == [
        Command(5, "T", "one 'a\n  b'", ("out",)),
        Command(12, "S", "two \\\n  more", ()),
        Command(14, "S", "three", ("x", "", "y")),
    ]


@pytest.mark.parametrize(
    ("written", "printed", "expected"),
    [
        ((), ["anything"], True),
        (("a",), ["a"], True),
        (("a",), ["b"], False),
        (("a",), ["a", "b"], False),
        (("a", "..."), ["a", "b", "c"], True),
        (("...", "c"), ["a", "b", "c"], True),
        (("a", "...", "d"), ["a", "b", "c"], False),
        (("a+b",), ["aab"], False),
        (('"x": "0123456789ab"',), ['"x": "ba9876543210"'], True),
        (('"x": "0c1e96af-0"',), ['"x": "39356c65-1f"'], True),
        (("at 2026-01-01T00:00:00Z",), ["at 2027-02-02T01:02:03.4Z"], True),
        (('"x": "7c5832ae00b4609f"',), ['"x": "0000000000000000"'], False),
    ],
)
def test_output_is_held_against_the_page(
    written: tuple[str, ...], printed: list[str], expected: bool
) -> None:
    """Line by line, but for ellipses and for what differs from run to run."""
    assert is_as_written(written, printed) is expected
