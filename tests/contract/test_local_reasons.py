"""The reasons that the sidecar knows are those that the page gives to the worker client."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_reasons_equal_the_page() -> None:
    """A reason of a client of this version is never counted as `other`."""
    local_reason = pytest.importorskip("sidecar.decision.local_reason", reason="the sidecar is not installed")
    text = PAGE.read_text()
    start = text.index("Why its answer was not used")
    rows = text[start : text.index("What was dropped while reading")].splitlines()
    first_cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    listed = {word for cell in first_cells for word in re.findall(r"`([^`]+)`", cell)}
    assert listed - {"grpc-<status>"} == local_reason.KNOWN_REASONS
