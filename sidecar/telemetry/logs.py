"""Structured log lines on stderr: one per change of state, none per request."""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import Processor


def configure_logging(level_name: str, line_format: str) -> None:
    """Sets level and format of this process, for the libraries' own lines too.

    Args:
        level_name: `debug`, `info`, `warning` or `error`.
        line_format: `json` or `console`.
    """
    level: int = getattr(logging, level_name.upper())
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if line_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _LossyStream(sys.stderr))),
    )
    atexit.register(_discard_unwritten, sys.stderr)
    # A library's message may hold what it choked on, so only its place passes.
    handler = _PlaceHandler(level=max(level, logging.WARNING))
    logging.basicConfig(handlers=[handler], level=handler.level, force=True)


def _discard_unwritten(stream: TextIO) -> None:
    """Lets the process end well although its last lines can't be written.

    What is still in the stream's buffer would fail once more when the interpreter ends, and turn the exit
    code into 120. Source: the note on SIGPIPE in Python's documentation of `signal`.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except ValueError:
        return  # closed already


class _LossyStream(io.TextIOBase):
    """Drops what can't be written: a full disk or a closed pipe must not stop decisions."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class _PlaceHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        structlog.get_logger("sidecar").log(
            record.levelno, "dependency_log", logger=record.name, place=record.funcName, exception=kind
        )
