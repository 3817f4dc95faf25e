"""What an operator sees: the clients' own counters and log lines, and which of them indicate a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.affinity.worker import Worker

MOVED_ALARM = 0.2
"""Share of observed returns to another rank from which a dashboard would be red; affinity keeps it near 0."""
ATTACHED_ALARM = 0.95


@dataclass(frozen=True, slots=True)
class Observed:
    """The workers' metrics at the end of a run.

    Attributes:
        attached_context: share of context requests that went out with the id.
        attached_generation: the same for the generation phase.
        moved: of the turns whose rank was seen before, those seen elsewhere; None where none was.
        warnings: events of the workers' log at WARNING or above, in alphabetical order.
        rank_forced: whether `conversation_affinity_active` of the context phase reports a forced rank.
        notices: tokens in the plans, by count, of all workers.
    """

    attached_context: float
    attached_generation: float
    moved: float | None
    warnings: tuple[str, ...]
    rank_forced: bool
    notices: dict[str, int]


def read_observations(
    contexts: Sequence[Worker], generation: Worker, log: Iterable[MutableMapping[str, Any]]
) -> Observed:
    """Returns what the clients counted and logged."""
    returned: Counter[str] = Counter()
    for worker in contexts:
        for label, count in worker.client.stats().get("conversation_returns", {}).items():
            returned[label.rpartition("/")[2]] += count
    returns = returned["same"] + returned["moved"]
    notices: Counter[str] = Counter()
    for worker in (*contexts, generation):
        notices.update(worker.notices)
    lines = list(log)
    return Observed(
        attached_context=_share_attached(contexts),
        attached_generation=_share_attached([generation]),
        moved=returned["moved"] / returns if returns else None,
        warnings=tuple(
            sorted({line["event"] for line in lines if line["log_level"] in ("warning", "error")})
        ),
        rank_forced=any(
            line["event"] == "conversation_affinity_active"
            and line["phase"] == "prefill"
            and line["attention_dp_rank_forced"]
            for line in lines
        ),
        notices=dict(sorted(notices.items())),
    )


def find_flags(observed: Observed) -> list[str]:
    """Returns what of a run with the engine's affinity in both phases would alarm an operator."""
    flags = []
    if observed.attached_context < ATTACHED_ALARM:
        flags.append("no id in the context phase")
    if observed.attached_generation < ATTACHED_ALARM:
        flags.append("no id in the generation phase")
    if observed.rank_forced:
        flags.append("rank forced")
    if observed.moved is not None and observed.moved > MOVED_ALARM:
        flags.append("conversations move")
    return [*flags, *observed.warnings]


def _share_attached(workers: Sequence[Worker]) -> float:
    plans = attached = 0
    for worker in workers:
        stats = worker.client.stats()
        plans += sum(stats.get("plans", {}).values())
        attached += sum(stats.get("id_attached", {}).values())
    return attached / plans if plans else 0.0
