"""Reads the commands of a page, runs them, and holds their output against the page.

A command begins with `$ ` in a code block and goes on over the following lines until its quotes are closed
and no backslash continues it. What stands below it, up to the next command or the end of the block, is its
output; a line `...` stands for any number of lines, and no output stands for any.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```")
_ELLIPSIS = "..."
# What differs from run to run.
_VOLATILE = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]+\b"), "<decision>"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "<revision>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z"), "<time>"),
)


@dataclass(frozen=True)
class Command:
    """One command of a page."""

    line: int
    text: str
    output: tuple[str, ...]


def read_commands(page: Path) -> list[Command]:
    """Every command of a page, in order."""
    return [command for block in _read_blocks(page.read_text()) for command in _read_block(block)]


def run_command(
    command: Command, environment: Mapping[str, str], replaced: Mapping[str, str], folder: Path | None = None
) -> list[str]:
    """Runs a command with its addresses replaced; returns what it printed, addresses put back."""
    text = command.text
    for ours, theirs in replaced.items():
        text = text.replace(ours, theirs)
    done = subprocess.run(
        ["/bin/sh", "-c", text],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(environment),
    )
    printed = done.stdout + done.stderr
    for ours, theirs in replaced.items():
        printed = printed.replace(theirs, ours)
    return printed.splitlines()


def is_as_written(written: tuple[str, ...], printed: list[str]) -> bool:
    """Tells whether the output is that of the page."""
    if not written:
        return True
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == _ELLIPSIS else re.escape(_settle(line)) + r"\n" for line in written
    )
    return re.fullmatch(pattern, "".join(f"{_settle(line)}\n" for line in printed)) is not None


def _settle(line: str) -> str:
    for volatile, name in _VOLATILE:
        line = volatile.sub(name, line)
    return line.rstrip()


def _read_blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """Gives the lines of every code block with their numbers: fenced ones, and those indented by four."""
    block: list[tuple[int, str]] = []
    is_fenced = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if _FENCE.match(line):
            is_fenced = not is_fenced
        elif is_fenced:
            block.append((number, line))
            continue
        elif line.startswith("    "):
            block.append((number, line[4:]))
            continue
        if block:
            yield block
            block = []


def _read_block(block: list[tuple[int, str]]) -> Iterator[Command]:
    lines = iter([*block, (0, "$ ")])
    text, output, first = "", [], 0
    for number, line in lines:
        if not line.startswith("$ "):
            output.append(line)
            continue
        if text:
            yield Command(first, text, tuple(output))
        first, text, output = number, line[2:], []
        while _is_unfinished(text):
            text += "\n" + next(lines)[1]


def _is_unfinished(text: str) -> bool:
    if text.endswith("\\"):
        return True
    try:
        shlex.split(text)
    except ValueError:
        return True
    return False
