"""Faults of the configuration; they are collected, so that an operator sees all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong."""

    key: str
    """The setting's name, or the dotted key in the policy file."""
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}"


class ConfigurationError(Exception):
    """The sidecar can't start as configured.

    Attributes:
        faults: what is wrong, at least one.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)
