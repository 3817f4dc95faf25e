"""What the ends of requests are counted as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sidecar.decision.decide import decide
from sidecar.decision.outcome import OutcomeLog
from sidecar.decision.recorder import Recorder
from sidecar.decision.whereabouts import Whereabouts
from sidecar.model import (
    AdpRouter,
    Engine,
    EngineDialect,
    FinishReport,
    Identity,
    Phase,
    Query,
    RankDirective,
    RankSource,
    RequestKind,
)
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.telemetry.counters import Counters

_FORWARD, _WITHHOLD, _PLACE = RankDirective.FORWARD, RankDirective.WITHHOLD, RankDirective.PLACE
_ENGINE = Engine(EngineDialect.CONVERSATION_PARAMS, AdpRouter.CONVERSATION)
_QUERY = Query(
    Phase.PREFILL,
    request_id="r",
    worker_id="w",
    identity=Identity("conv"),
    router_rank=2,
    engine=_ENGINE,
    prompt_tokens=1_000,
)


class _Desk:
    """An outcome log with what it needs; `take` decides about a query and reports its end."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.log = OutcomeLog(self.counters, Whereabouts())
        self.recorder = Recorder(lambda: 0.0)

    def take(self, query: Query = _QUERY, **report: Any) -> None:
        answer = decide(query, compile_policy(Policy()))
        decision_id = self.recorder.record(query, answer)
        end = FinishReport("r", query.phase, decision_id, 1, _WITHHOLD, True, "", None, None, 0)
        end = end._replace(**report)
        self.log.take(end, self.recorder.finish(end, stream=1))

    def count(self, name: str) -> dict[str, int]:
        return {
            ",".join(value for _, value in labels): number
            for found, labels, number in self.counters.read_counters()
            if found == name
        }

    def active(self) -> dict[str, float]:
        gauges = self.counters.read_gauges()
        return {labels[0][1]: value for name, labels, value in gauges if name == "affinity_active"}


@pytest.fixture
def desk() -> _Desk:
    """A fresh one."""
    return _Desk()


def test_ends_are_counted_as_applied(desk: _Desk) -> None:
    """What the client really did is the label, not what was answered."""
    desk.take()
    desk.take(applied_directive=_FORWARD, id_attached=False, outcome=3)
    assert desk.count("finishes") == {"withhold,true,completed": 1, "forward,false,cancelled": 1}


def test_numbers_of_a_newer_client_are_unknown(desk: _Desk) -> None:
    """An enum value that this sidecar does not know is no label of its own."""
    desk.take(applied_directive=99, outcome=99)
    assert desk.count("finishes") == {"unknown,true,unknown": 1}


@pytest.mark.parametrize(
    ("reason", "label"),
    [("sidecar-late", "sidecar-late"), ("grpc-unimplemented", "grpc"), ("made-up-by-a-client", "other")],
)
def test_reasons_are_labels_of_a_closed_set(desk: _Desk, reason: str, label: str) -> None:
    """A client can't make series by making reasons up."""
    desk.take(local_reason=reason)
    assert desk.count("local_reasons") == {label: 1}


def test_no_reason_is_not_counted(desk: _Desk) -> None:
    """A client that did as answered gives none."""
    desk.take()
    assert desk.count("local_reasons") == {}


def test_effects_follow_a_conversation(desk: _Desk) -> None:
    """First, same, moved, and unknown where the engine says nothing."""
    for rank in (3, 3, 1, None):
        desk.take(observed_dp_rank=rank)
    assert desk.count("effects") == {
        f"withhold,none,prefill,{effect}": 1 for effect in ("first", "same", "moved", "unknown")
    }


def test_an_effect_needs_a_conversation(desk: _Desk) -> None:
    """A rank without identity belongs to nobody."""
    desk.take(_QUERY._replace(identity=Identity()), observed_dp_rank=3, id_attached=False)
    assert desk.count("effects") == {"withhold,none,prefill,unknown": 1}


def test_cached_tokens_come_with_the_prompt_that_they_are_part_of(desk: _Desk) -> None:
    """Only where the engine reported them, so that the quotient is the cached share."""
    desk.take(cached_tokens=600)
    desk.take(cached_tokens=None)
    desk.take(_QUERY._replace(prompt_tokens=0), cached_tokens=5)
    assert desk.count("cached_tokens") == {"withhold,none,prefill": 600}
    assert desk.count("prompt_tokens") == {"withhold,none,prefill": 1_000}


def test_an_end_without_a_decision_is_unmatched(desk: _Desk) -> None:
    """It is counted as an end, and as nothing else."""
    desk.take(decision_id="gone-0")
    assert desk.count("unmatched_finishes") == {"": 1}
    assert desk.count("effects") == {}
    assert desk.active() == {}


@pytest.mark.parametrize(
    ("query", "report", "expected"),
    [
        (_QUERY, {}, 1.0),
        (_QUERY, {"applied_directive": _PLACE, "id_attached": False}, 1.0),
        (_QUERY, {"id_attached": False}, 0.0),
        (_QUERY, {"applied_directive": _FORWARD}, 0.0),
        (_QUERY._replace(router_rank=None), {"applied_directive": _FORWARD}, 1.0),
        (
            _QUERY._replace(engine=replace(_ENGINE, rank_source=RankSource.ROUTER)),
            {"applied_directive": _FORWARD},
            1.0,
        ),
        (_QUERY._replace(identity=Identity()), {"applied_directive": _PLACE}, 0.0),
    ],
    ids=["withheld", "placed", "no-id", "forced", "no-rank", "router-rank", "no-identity"],
)
def test_affinity_is_active_where_the_conversation_can_return(
    desk: _Desk, query: Query, report: dict[str, Any], expected: float
) -> None:
    """The id attached and nothing forced over the engine's router, or placed by the sidecar."""
    desk.take(query, **report)
    assert desk.active() == {"prefill": expected}


def test_probes_say_nothing_about_affinity(desk: _Desk) -> None:
    """Health checks are forwarded on purpose; without engine parameters nothing went out."""
    desk.take(_QUERY._replace(kind=RequestKind.HEALTH_CHECK), applied_directive=_FORWARD, id_attached=False)
    desk.take(applied_directive=RankDirective.UNSPECIFIED, id_attached=False)
    assert desk.active() == {}


def test_only_recent_requests_make_up_the_share(desk: _Desk) -> None:
    """After 200 bad ones nothing is left of the good ones before: a regression shows."""
    for _ in range(300):
        desk.take()
    for _ in range(100):
        desk.take(id_attached=False, applied_directive=_FORWARD)
    assert desk.active() == {"prefill": 0.5}
    for _ in range(100):
        desk.take(id_attached=False, applied_directive=_FORWARD)
    assert desk.active() == {"prefill": 0.0}


def test_withheld_without_an_id_is_counted(desk: _Desk) -> None:
    """It shows at zero, rises for a request with neither, and not where the engine probes its caches."""
    assert desk.count("withheld_without_id") == {"": 0}
    desk.take(
        _QUERY._replace(engine=replace(_ENGINE, adp_router=AdpRouter.KV_CACHE_AWARE)), id_attached=False
    )
    desk.take()
    assert desk.count("withheld_without_id") == {"": 0}
    desk.take(id_attached=False)
    assert desk.count("withheld_without_id") == {"": 1}
