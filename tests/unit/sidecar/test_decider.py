"""A decision with its side effects: the guard is obeyed, conversations end, and probes leave no mark."""

from __future__ import annotations

import pytest

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.decision.conversation_end import Lifecycle
from sidecar.decision.recorder import Recorder
from sidecar.decision.service import Decider
from sidecar.identity.carrier_monitor import IdentityWatch
from sidecar.identity.single_use_guard import COHORT_S, OneShotGuard
from sidecar.placement.placement import Placement
from sidecar.policy.file import parse_policy
from sidecar.policy.holder import PolicyHolder, activate
from sidecar.telemetry.counters import Counters

_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS, adp_router=types_pb2.ADP_ROUTER_CONVERSATION
)
_PLACING = types_pb2.EngineProfile(
    adp_router=types_pb2.ADP_ROUTER_DEFAULT, rank_source=types_pb2.RANK_SOURCE_SIDECAR, dp_size=4
)


class Setup:
    """A decider with a clock that is moved by hand."""

    def __init__(self, policy: str) -> None:
        self.now_s = 0.0
        self.counters = Counters()
        self.guard = OneShotGuard(lambda: self.now_s)
        self.placement = Placement(lambda: self.now_s, self.counters, lambda _phase: None)
        lifecycle = Lifecycle(self.placement, self.counters)
        holder = PolicyHolder(activate(parse_policy(policy)))
        self.recorder = Recorder(lambda: 0.0)
        self.decider = Decider(
            holder,
            self.placement,
            self.recorder,
            self.counters,
            IdentityWatch(self.guard, self.counters),
            lifecycle,
            lambda _seconds: None,
            None,
        )
        self._requests = 0

    def make_request(self, session_id: str, **fields: int) -> service_pb2.EnrichRequest:
        """A prefill request with `x-smg-routing-key`, each with an id of its own."""
        self._requests += 1
        return service_pb2.EnrichRequest(
            request_id=f"r-{self._requests}",
            phase=types_pb2.PHASE_PREFILL,
            identity=types_pb2.Identity(headers={"x-smg-routing-key": session_id}),
            engine=_ENGINE,
            **fields,  # type: ignore[arg-type]
        )

    def decide(
        self, request: service_pb2.EnrichRequest, item: tuple[int, int] | None = None
    ) -> service_pb2.EnrichResponse:
        """The answer to a request."""
        response = service_pb2.EnrichResponse()
        self.decider.decide(request, response, item=item)
        return response

    def make_one_shot(self) -> None:
        """Lets the carrier's ids be new with each request until they had time to repeat."""
        for _ in range(3):
            for _ in range(100):
                self.decide(self.make_request(f"stamped-{self._requests}"))
            self.now_s += COHORT_S

    def count(self, name: str) -> int:
        """The sum of a counter over its labels."""
        return sum(value for counted, _, value in self.counters if counted == name)


def test_one_shot_ids_are_reported_and_still_attached(capfd: pytest.CaptureFixture[str]) -> None:
    """By default the guard warns, counts, and changes no answer."""
    setup = Setup("")
    setup.make_one_shot()
    answer = setup.decide(setup.make_request("conv-7f3a"))
    assert answer.hints.conversation_id == "conv-7f3a"
    assert "one-shot-carrier" not in answer.notices
    assert setup.count("one_shot_reports") == 1
    assert (setup.count("identities"), setup.count("distinct_ids")) == (301, 301)
    written = "".join(capfd.readouterr())
    assert written.count("one_shot_ids") == 1
    assert "header:x-smg-routing-key" in written
    assert "stamped-" not in written


def test_enforced_one_shot_ids_are_not_attached_until_they_repeat() -> None:
    """The conversation is still named by its hash, no id goes out, and the router's rank is kept."""
    setup = Setup("operational: {one_shot_guard: enforce}")
    setup.make_one_shot()
    answer = setup.decide(setup.make_request("conv-7f3a"))
    assert not answer.HasField("hints")
    assert answer.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
    assert answer.notices[0] == "one-shot-carrier"
    assert (answer.source_detail, answer.conversation_hash) == (
        "header:x-smg-routing-key",
        "7c5832ae00b4609f",
    )
    for cohort in range(3):
        for _turn in range(2):
            for number in range(100):
                setup.decide(setup.make_request(f"conversation-{cohort}-{number}"))
        setup.now_s += COHORT_S
    answer = setup.decide(setup.make_request("conv-7f3a"))
    assert answer.hints.conversation_id == "conv-7f3a"


def test_other_carriers_are_attached_meanwhile() -> None:
    """A carrier that behaves is not punished for another one."""
    setup = Setup("operational: {one_shot_guard: enforce}")
    setup.make_one_shot()
    request = setup.make_request("stamped")
    request.identity.headers["x-session-id"] = "conv-7f3a"
    assert setup.decide(request).hints.conversation_id == "conv-7f3a"


def test_explain_shows_the_guard() -> None:
    """Explain answers as Enrich would and names the rule."""
    setup = Setup("operational: {one_shot_guard: enforce}")
    before = setup.decider.explain(setup.make_request("conv-7f3a"))
    setup.make_one_shot()
    after = setup.decider.explain(setup.make_request("conv-7f3a"))
    assert [(e.rules[0].rule, e.rules[0].matched) for e in (before, after)] == [
        ("one-shot-carrier", False),
        ("one-shot-carrier", True),
    ]
    assert (before.answer.conversation_id, after.answer.conversation_id) == ("conv-7f3a", None)


@pytest.mark.parametrize("kind", [types_pb2.REQUEST_KIND_HEALTH_CHECK, types_pb2.REQUEST_KIND_WARMUP])
def test_probes_leave_no_mark(kind: int) -> None:
    """A health check every few seconds is no conversation, and ends none."""
    setup = Setup("")
    request = setup.make_request("probe", kind=kind)
    request.identity.headers["x-dynamo-session-final"] = "true"
    setup.decide(request)
    assert list(setup.guard.list_shares()) == []
    assert [setup.count(name) for name in ("identities", "distinct_ids", "final_requests")] == [0, 0, 0]


@pytest.mark.parametrize(("item", "ended"), [(None, 1), ((1, 1), 0)])
def test_the_last_request_ends_its_conversation(item: tuple[int, int] | None, ended: int) -> None:
    """One that comes alone ends it at once, one of a stream when it has finished."""
    setup = Setup("")
    request = setup.make_request("conv-7f3a")
    request.identity.headers["x-dynamo-session-final"] = "true"
    answer = setup.decide(request, item=item)
    assert answer.hints.conversation_id == "conv-7f3a"
    assert "session-final" in answer.notices
    assert (setup.count("final_requests"), setup.count("ended_conversations")) == (1, ended)


def test_a_known_conversation_is_placed_anew_each_time() -> None:
    """A remembered answer says that the sidecar places; the rank is of this request."""
    setup = Setup("")
    answers = []
    for _ in range(2):
        request = setup.make_request("conv-7f3a")
        request.engine.CopyFrom(_PLACING)
        answers.append(setup.decide(request))
    assert [types_pb2.Decision.Name(answer.decision) for answer in answers] == [
        "DECISION_NEW",
        "DECISION_RETAINED",
    ]
    assert all(answer.hints.HasField("dp_rank") for answer in answers)
    assert answers[0].hints.dp_rank == answers[1].hints.dp_rank


def test_a_recorded_decision_holds_nothing_long_of_its_request() -> None:
    """Thousands of decisions are kept, and a tenant or a carrier can take 16 KiB."""
    setup = Setup("")
    request = setup.make_request("conv-7f3a")
    request.tenant = "t" * 16_000
    request.identity.headers["x-other"] = "v" * 16_000
    setup.decide(request)
    record = setup.recorder.find_by_request(request.request_id)
    assert record is not None
    assert len(repr(record)) < 1_500
