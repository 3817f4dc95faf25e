"""What this library raises, none of it on the request path."""

from __future__ import annotations

from collections.abc import Sequence


class RoutingHintsError(Exception):
    """Root of everything that this library raises."""


class ConfigurationError(RoutingHintsError):
    """A setting is malformed, or can never act on this engine.

    Attributes:
        faults: every fault found, one sentence each.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))
