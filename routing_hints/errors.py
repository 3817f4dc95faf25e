"""What both processes raise at start, and never on the request path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RoutingHintsError(Exception):
    """Root of everything that this distribution raises."""


class ConfigurationProblem(NamedTuple):
    """One setting that can't be used."""

    key: str
    """The setting's name, or the dotted key in the policy file."""
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


class ConfigurationError(RoutingHintsError):
    """A process can't run as configured.

    Attributes:
        problems: everything that is wrong, at least one.
    """

    def __init__(self, problems: Sequence[ConfigurationProblem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)
