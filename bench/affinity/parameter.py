"""What the simulation assumes, read from `parameters.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).with_name("parameters.yaml")
_KEYS = {"value", "unit", "source", "sure"}
_SURE = {"certain", "likely", "guess", "free"}
MAX_FREE = 2


@dataclass(frozen=True, slots=True)
class Parameters:
    """The values; unit, source and sureness of each are in `parameters.yaml`."""

    context_instances: int
    context_ranks: int
    generation_ranks: int
    concurrency: int
    context_tokens_per_s: float
    generation_step_s: float
    chunk_tokens: int
    context_step_s: float
    context_max_active: int
    generation_max_active: int
    generation_request_s: float
    kv_tokens: int
    generation_kv_tokens: int
    transfer_s: float
    transfer_tokens_per_s: float
    system_tokens: int
    first_tokens: float
    growth_tokens: float
    task_sigma: float
    turn_sigma: float
    turns: float
    output_tokens: float
    output_sigma: float
    max_tokens: int
    unnamed_share: float
    subagent_share: float
    warm_up_s: float
    duration_s: float
    scattered_warm_up_s: float
    scattered_duration_s: float

    def for_scattered(self) -> Parameters:
        """Returns these with the times of a run in which conversations change ranks."""
        return replace(self, warm_up_s=self.scattered_warm_up_s, duration_s=self.scattered_duration_s)


def load_entries(path: Path = _FILE) -> dict[str, dict[str, Any]]:
    """Returns every parameter with its unit, source and sureness.

    Raises:
        ValueError: an entry is incomplete, or more than two are free.
    """
    entries: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    bad = [name for name, entry in entries.items() if set(entry) != _KEYS or entry["sure"] not in _SURE]
    if bad:
        raise ValueError(f"incomplete: {', '.join(bad)}")
    if sum(entry["sure"] == "free" for entry in entries.values()) > MAX_FREE:
        raise ValueError("more free parameters than may be fitted")
    return entries


def load_parameters() -> Parameters:
    """Returns the values.

    Raises:
        ValueError: the file and `Parameters` name different things.
    """
    values = {name: entry["value"] for name, entry in load_entries().items()}
    if set(values) != {field.name for field in fields(Parameters)}:
        raise ValueError("parameters.yaml and Parameters differ")
    return Parameters(**values)
