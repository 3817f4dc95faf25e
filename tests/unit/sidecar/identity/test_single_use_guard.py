"""Which carriers the guard takes for single-use, and when it takes that back."""

from __future__ import annotations

import tracemalloc

from routing_hints.conversation_id import ConversationHash
from sidecar.identity.single_use_guard import COHORT_S, MAX_COHORT_IDS, SingleUseGuard, Verdict

CARRIER = "header:x-smg-routing-key"


class GuardHarness:
    """Requests of one carrier, as the guard sees them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.guard = SingleUseGuard(lambda: self.now_s)
        self.verdicts: list[Verdict] = []
        self._requests = 0

    def send(self, conversation: str, request_id: str | None = None) -> bool:
        """Observes one request; returns whether the guard took the conversation for a new one."""
        self._requests += 1
        name = f"r-{self._requests}" if request_id is None else request_id
        is_new, verdict = self.guard.observe(CARRIER, ConversationHash(conversation), name)
        if verdict is not None:
            self.verdicts.append(verdict)
        return is_new

    def send_cohort(self, prefix: str, ids: int, repeated: int) -> None:
        """Begins `ids` new conversations, of which `repeated` have a second turn; then the cohort is over."""
        for number in range(ids):
            self.send(f"{prefix}-{number}")
        for number in range(repeated):
            self.send(f"{prefix}-{number}")
        self.now_s += COHORT_S


def test_carrier_whose_ids_had_time_to_repeat_and_did_not_is_reported_once() -> None:
    harness = GuardHarness()
    for cohort in "abcd":
        harness.send_cohort(cohort, ids=100, repeated=5)
    assert harness.verdicts == [Verdict(CARRIER, True, 95, 100)]
    assert harness.guard.suspended == {CARRIER}
    assert list(harness.guard.list_shares()) == [(CARRIER, 95)]


def test_carrier_of_whose_ids_some_repeat_is_not_reported() -> None:
    """Many conversations have a single turn."""
    harness = GuardHarness()
    for cohort in "abcd":
        harness.send_cohort(cohort, ids=100, repeated=15)
    assert harness.verdicts == []
    assert list(harness.guard.list_shares()) == [(CARRIER, 85)]


def test_id_has_at_least_the_time_of_a_whole_cohort_to_repeat() -> None:
    harness = GuardHarness()
    for number in range(100):
        harness.send(f"a-{number}")
    harness.now_s += COHORT_S
    assert not any(harness.send(f"a-{number}") for number in range(100))
    harness.now_s += COHORT_S
    harness.send("b")
    assert list(harness.guard.list_shares()) == [(CARRIER, 0)]


def test_suspension_ends_well_below_the_threshold_that_began_it() -> None:
    """So a carrier near the threshold does not flap."""
    harness = GuardHarness()
    for cohort, repeated in (("a", 0), ("b", 20), ("c", 30), ("d", 30), ("e", 30)):
        harness.send_cohort(cohort, ids=100, repeated=repeated)
    assert [(verdict.single_use, verdict.single_use_percent) for verdict in harness.verdicts] == [
        (True, 100),
        (False, 70),
    ]
    assert harness.guard.suspended == frozenset()


def test_both_phases_of_a_request_are_one_turn() -> None:
    """A sidecar may see prefill and decode of each request."""
    harness = GuardHarness()
    for cohort in "abc":
        for number in range(100):
            for _phase in ("prefill", "decode"):
                harness.send(f"{cohort}-{number}", request_id=f"r-{cohort}-{number}")
        harness.now_s += COHORT_S
    assert [verdict.single_use_percent for verdict in harness.verdicts] == [100]


def test_requests_without_an_id_are_each_a_turn() -> None:
    harness = GuardHarness()
    for cohort in "abc":
        for number in range(100):
            for _turn in range(2):
                harness.send(f"{cohort}-{number}", request_id="")
        harness.now_s += COHORT_S
    assert harness.verdicts == []


def test_carrier_with_under_100_ids_in_a_cohort_is_not_judged() -> None:
    harness = GuardHarness()
    for cohort in "abcd":
        harness.send_cohort(cohort, ids=99, repeated=0)
    assert harness.verdicts == []
    assert list(harness.guard.list_shares()) == []


def test_carriers_are_judged_apart() -> None:
    harness = GuardHarness()
    for cohort in "abc":
        harness.send_cohort(cohort, ids=100, repeated=0)
        for _turn in range(2):
            for number in range(100):
                harness.guard.observe("conversation_id", ConversationHash(f"{cohort}-{number}"), "")
    assert harness.guard.suspended == {CARRIER}


def test_flood_of_ids_closes_cohorts_early() -> None:
    """So memory is bounded, and a flood is judged before the time of a cohort is over."""
    harness = GuardHarness()
    for number in range(2 * MAX_COHORT_IDS):
        harness.send(str(number))
    assert harness.verdicts == []
    # With the next id the first cohort is judged and forgotten; the second one is not.
    harness.send("next")
    assert harness.verdicts == [Verdict(CARRIER, True, 100, MAX_COHORT_IDS)]
    assert harness.send("0")
    assert not harness.send(str(MAX_COHORT_IDS))


def test_guard_holds_two_cohorts_at_most() -> None:
    harness = GuardHarness()
    tracemalloc.start()
    try:
        for number in range(2 * MAX_COHORT_IDS):
            harness.send(f"{number:016x}")
        full_bytes, _ = tracemalloc.get_traced_memory()
        for number in range(2 * MAX_COHORT_IDS, 6 * MAX_COHORT_IDS):
            harness.send(f"{number:016x}")
        later_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert later_bytes < 1.1 * full_bytes


def test_conversation_last_seen_two_cohorts_ago_is_new_again() -> None:
    harness = GuardHarness()
    seen = [harness.send("a"), harness.send("a")]
    for _ in range(2):
        harness.now_s += COHORT_S
        harness.send("b")
    assert [*seen, harness.send("a")] == [True, False, True]
