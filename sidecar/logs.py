"""Structured log lines on stderr: one per change of state, none per request."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

from sidecar.policy import Logging


def configure_logging(settings: Logging) -> None:
    """Sets level and format of this process, for the libraries' own lines too."""
    level: int = getattr(logging, settings.level.upper())
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # A library's message may hold what it choked on, so only its place passes.
    handler = _PlaceHandler(level=max(level, logging.WARNING))
    logging.basicConfig(handlers=[handler], level=handler.level, force=True)


class _PlaceHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        structlog.get_logger("sidecar").log(
            record.levelno, "library_message", logger=record.name, place=record.funcName, exception=kind
        )
