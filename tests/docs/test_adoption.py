"""Adopting the client takes the few lines that docs/adopting.md shows; tests/e2e runs these workers."""

import difflib
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "adopting.md").read_text()
MOST_LINES = 6


def read_code(name: str) -> list[str]:
    """The lines of an example without its docstring, indentation and empty lines."""
    text = (ROOT / "examples" / name).read_text()
    _, _, code = text.removeprefix('"""').partition('"""')
    return [line.strip() for line in code.splitlines() if line.strip()]


def added_lines() -> list[str]:
    """What `own_worker.py` has and the worker before its adoption has not."""
    before, after = read_code("own_worker_before.py"), read_code("own_worker.py")
    return [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]


def test_worker_that_has_nothing_adopts_in_six_lines() -> None:
    """Import, client, engine, plan, parameters, observation."""
    assert 0 < len(added_lines()) <= MOST_LINES


def test_guide_shows_exactly_these_lines() -> None:
    """What users copy is what runs."""
    shown = [line[1:].strip() for line in GUIDE.splitlines() if line.startswith("+") and line[1:].strip()]
    assert shown == added_lines()


def test_dynamos_own_worker_adopts_in_one_line() -> None:
    """Beside the import there is one call; the other lines start Dynamo's worker as Dynamo does."""
    code = read_code("dynamo_trtllm.py")
    ours = [line for line in code if "adopt_handlers" in line]
    assert ours == ["from worker_client.dynamo_trtllm import adopt_handlers", "adopt_handlers()"]
    assert [line for line in code if line not in ours] == [
        "import runpy",
        'if __name__ == "__main__":',
        'runpy.run_module("dynamo.trtllm", run_name="__main__", alter_sys=True)',
    ]


def test_guide_shows_the_launcher_of_dynamos_own_worker() -> None:
    """The lines of the launcher are in the guide, as one block."""
    text = (ROOT / "examples" / "dynamo_trtllm.py").read_text()
    _, _, code = text.removeprefix('"""').partition('"""')
    assert code.strip() in GUIDE
