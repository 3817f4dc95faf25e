"""The guard against one-shot ids: what it reports, what it forgives, and what it can't be fooled by."""

from __future__ import annotations

from sidecar.identity.single_use_guard import COHORT_S, MAX_COHORT_IDS, OneShotGuard, Verdict
from sidecar.model import ConversationHash

CARRIER = "header:x-smg-routing-key"


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The present time."""
        return self.now_s


class Traffic:
    """Requests of one carrier, as the guard sees them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.guard = OneShotGuard(self.clock)
        self.verdicts: list[Verdict] = []
        self._requests = 0

    def send(self, conversation: str, request_id: str | None = None) -> bool:
        """One request; tells whether the guard took the conversation for a new one."""
        self._requests += 1
        name = f"r-{self._requests}" if request_id is None else request_id
        is_new, verdict = self.guard.observe(CARRIER, ConversationHash(conversation), name)
        if verdict is not None:
            self.verdicts.append(verdict)
        return is_new

    def send_cohort(self, prefix: str, ids: int, repeated: int) -> None:
        """Lets so many new conversations begin, of which some have a second turn, and time pass."""
        for number in range(ids):
            self.send(f"{prefix}-{number}")
        for number in range(repeated):
            self.send(f"{prefix}-{number}")
        self.clock.now_s += COHORT_S


def test_ids_that_never_repeat_are_reported_once() -> None:
    """A carrier with a fresh id on each request is reported when its ids had time to repeat, and once."""
    traffic = Traffic()
    for cohort in "abcd":
        traffic.send_cohort(cohort, ids=100, repeated=5)
    assert traffic.verdicts == [Verdict(CARRIER, True, 95, 100)]
    assert traffic.guard.distrusted == {CARRIER}
    assert list(traffic.guard.list_shares()) == [(CARRIER, 95)]


def test_conversations_are_not_reported() -> None:
    """Ids of which a part repeats are what a carrier is for; single-turn conversations are normal."""
    traffic = Traffic()
    for cohort in "abcd":
        traffic.send_cohort(cohort, ids=100, repeated=15)
    assert traffic.verdicts == []
    assert list(traffic.guard.list_shares()) == [(CARRIER, 85)]


def test_a_second_turn_may_come_in_the_next_cohort() -> None:
    """Each id has at least a whole cohort's time to repeat."""
    traffic = Traffic()
    for number in range(100):
        traffic.send(f"a-{number}")
    traffic.clock.now_s += COHORT_S
    assert not any(traffic.send(f"a-{number}") for number in range(100))
    traffic.clock.now_s += COHORT_S
    traffic.send("b")
    assert list(traffic.guard.list_shares()) == [(CARRIER, 0)]


def test_a_carrier_that_behaves_again_is_trusted_again() -> None:
    """The state ends well below the threshold that began it."""
    traffic = Traffic()
    for cohort, repeated in (("a", 0), ("b", 20), ("c", 30), ("d", 30), ("e", 30)):
        traffic.send_cohort(cohort, ids=100, repeated=repeated)
    assert [(verdict.one_shot, verdict.one_shot_percent) for verdict in traffic.verdicts] == [
        (True, 100),
        (False, 70),
    ]
    assert traffic.guard.distrusted == frozenset()


def test_both_legs_of_a_request_are_one() -> None:
    """A sidecar that sees prefill and decode of each request does not take that for a second turn."""
    traffic = Traffic()
    for cohort in "abc":
        for number in range(100):
            for _leg in ("prefill", "decode"):
                traffic.send(f"{cohort}-{number}", request_id=f"r-{cohort}-{number}")
        traffic.clock.now_s += COHORT_S
    assert [verdict.one_shot_percent for verdict in traffic.verdicts] == [100]


def test_requests_without_an_id_count_each() -> None:
    """Where requests have no id, a repeated conversation is a repetition."""
    traffic = Traffic()
    for cohort in "abc":
        for number in range(100):
            for _turn in range(2):
                traffic.send(f"{cohort}-{number}", request_id="")
        traffic.clock.now_s += COHORT_S
    assert traffic.verdicts == []


def test_few_ids_say_nothing() -> None:
    """A carrier with little traffic is not judged."""
    traffic = Traffic()
    for cohort in "abcd":
        traffic.send_cohort(cohort, ids=99, repeated=0)
    assert traffic.verdicts == []
    assert list(traffic.guard.list_shares()) == []


def test_carriers_are_judged_each_for_itself() -> None:
    """One carrier's fresh ids do not hurt another's conversations."""
    traffic = Traffic()
    for cohort in "abc":
        traffic.send_cohort(cohort, ids=100, repeated=0)
        for _turn in range(2):
            for number in range(100):
                traffic.guard.observe("conversation_id", ConversationHash(f"{cohort}-{number}"), "")
    assert traffic.guard.distrusted == {CARRIER}


def test_memory_is_bounded() -> None:
    """A flood of ids closes cohorts early, is judged as early, and leaves two cohorts at most."""
    traffic = Traffic()
    for number in range(3 * MAX_COHORT_IDS):
        traffic.send(str(number))
    cohorts = traffic.guard._carriers[CARRIER]
    assert len(cohorts.young) + len(cohorts.old) <= 2 * MAX_COHORT_IDS
    assert [verdict.one_shot for verdict in traffic.verdicts] == [True]


def test_a_forgotten_conversation_is_new_again() -> None:
    """What was last seen two cohorts ago counts as another distinct id."""
    traffic = Traffic()
    seen = [traffic.send("a"), traffic.send("a")]
    for _ in range(2):
        traffic.clock.now_s += COHORT_S
        traffic.send("b")
    assert [*seen, traffic.send("a")] == [True, False, True]
