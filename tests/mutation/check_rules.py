"""Flips one rule at a time and expects that a captured request's expectation then fails.

Run it with `make mutation`. Each mutant is a copy of the sources in which one piece of text is replaced; it
runs in a process of its own. A mutant that no row detects is a rule that the captured requests do not hold.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from structlog.testing import capture_logs

ROOT = Path(__file__).parents[2]
SOURCES = ("routing_hints", "sidecar", "worker_client", "examples", "tests")
ROW_DIFFERS = 3
"""Exit code where a row fails; any other means that the rows could not be run."""


def main() -> int:
    """Runs every mutant; returns 1 if one survives or can't be made."""
    mutants: list[dict[str, str]] = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text())
    unchanged = run_rows_of(ROOT)
    if unchanged.returncode:
        print("rows fail without any mutant", unchanged.stdout, unchanged.stderr, sep="\n")
        return 1
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        bad = [verdict for verdict in pool.map(try_mutant, mutants) if verdict]
    print(*bad, f"{len(mutants) - len(bad)} of {len(mutants)} flipped rules are detected", sep="\n")
    return 1 if bad else 0


def try_mutant(mutant: dict[str, str]) -> str:
    """Returns what is wrong with a mutant, empty if some row detects it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in SOURCES:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / mutant["file"]
        source = path.read_text()
        if source.count(mutant["old"]) != 1:
            return f"can't be made, its text occurs {source.count(mutant['old'])} times: {mutant['rule']}"
        path.write_text(source.replace(mutant["old"], mutant["new"]))
        run = run_rows_of(copy)
    if run.returncode == ROW_DIFFERS:
        return ""
    return (
        f"can't be run: {mutant['rule']}\n{run.stderr}" if run.returncode else f"SURVIVED: {mutant['rule']}"
    )


def run_rows_of(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the rows on the sources of a folder, in a process of its own."""
    command = [sys.executable, "-m", "tests.mutation.check_rules", "rows"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


async def run_rows() -> int:
    """Runs the rows in this process, the contract's codecs included; stops at the first that differs."""
    import routing_hints
    import sidecar
    import worker_client
    from tests.support.captures import describe_row, load_rows
    from tests.support.rows import decide_in_process, list_differences

    for package in (routing_hints, sidecar, worker_client):
        if not Path(package.__file__ or "").is_relative_to(Path.cwd()):
            raise ImportError(f"{package.__name__} is not the copy's, but {package.__file__}")
    for row in load_rows():
        with capture_logs():
            differences = await list_differences(row, decide_in_process(row))
        if differences:
            print(describe_row(row), *differences, sep="\n")
            return ROW_DIFFERS
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run_rows()) if sys.argv[1:] == ["rows"] else main())
