"""Reads the commands of a page, runs them, and holds their output against the page.

A command begins with `$ ` in a code block and goes on over the following lines until its quotes are closed
and no backslash continues it. What stands below it, up to the next command or the end of the block, is its
output; a line `...` stands for any number of lines, and no output stands for any.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```")
_HEADING = re.compile(r"^#+ (.*)")
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
    section: str
    """The heading above it."""
    text: str
    output: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """One code block of a page.

    Attributes:
        section: the heading above it.
        language: what stands behind the fence; empty for none and for an indented block.
        lines: its lines with their numbers.
    """

    section: str
    language: str
    lines: list[tuple[int, str]]


def read_commands(page: Path) -> list[Command]:
    """Every command of a page, in order."""
    return [command for block in read_blocks(page) for command in _read_block(block)]


def read_blocks(page: Path) -> list[Block]:
    """Every code block of a page, in order: fenced ones, and those indented by four."""
    return list(_read_blocks(page.read_text()))


def run_command(
    command: Command,
    environment: Mapping[str, str],
    replaced: Mapping[str, str],
    folder: Path | None = None,
    timeout_s: float = 60.0,
) -> list[str]:
    """Runs a command with its addresses replaced; returns what it printed, addresses put back."""
    done = subprocess.run(
        ["/bin/sh", "-c", _replace(command.text, replaced)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        cwd=folder,
        env=dict(environment),
    )
    printed = done.stdout + done.stderr
    for ours, theirs in replaced.items():
        printed = printed.replace(theirs, ours)
    return printed.splitlines()


@contextmanager
def serve(
    command: Command, environment: Mapping[str, str], replaced: Mapping[str, str], folder: Path
) -> Iterator[list[str]]:
    """Runs a command that serves, with its addresses replaced; gives those on which it listens."""
    with subprocess.Popen(
        ["/bin/sh", "-c", f"exec {_replace(command.text, replaced)}"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=dict(environment),
    ) as process:
        assert process.stderr is not None
        try:
            lines = list(_read_until(process.stderr, "sidecar_started"))
            assert "sidecar_started" in lines[-1], f"it did not start: {lines}"
            yield json.loads(lines[-1])["listen"]
        finally:
            process.terminate()
            process.stderr.read()
    assert process.returncode == 0


def is_as_written(written: tuple[str, ...], printed: list[str]) -> bool:
    """Tells whether the output is that of the page."""
    if not written:
        return True
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == _ELLIPSIS else re.escape(_settle(line)) + r"\n" for line in written
    )
    return re.fullmatch(pattern, "".join(f"{_settle(line)}\n" for line in printed)) is not None


def _replace(text: str, replaced: Mapping[str, str]) -> str:
    for ours, theirs in replaced.items():
        text = text.replace(ours, theirs)
    return text


def _read_until(lines: Iterable[str], text: str) -> Iterator[str]:
    for line in lines:
        yield line
        if text in line:
            return


def _settle(line: str) -> str:
    for volatile, name in _VOLATILE:
        line = volatile.sub(name, line)
    return line.rstrip()


def _read_blocks(text: str) -> Iterator[Block]:
    block: list[tuple[int, str]] = []
    section, language, is_fenced = "", "", False
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
            yield Block(section, language, block)
            block = []
        language = line.removeprefix("```") if is_fenced else ""
        if heading := _HEADING.match(line):
            section = heading.group(1)


def _read_block(block: Block) -> Iterator[Command]:
    lines = iter([*block.lines, (0, "$ ")])
    text, output, first = "", [], 0
    for number, line in lines:
        if not line.startswith("$ "):
            output.append(line)
            continue
        if text:
            yield Command(first, block.section, text, tuple(output))
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
