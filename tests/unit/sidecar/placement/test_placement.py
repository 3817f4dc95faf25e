"""Placement turn by turn: where first and later turns go, and what finish reports teach."""

from __future__ import annotations

import pytest

from routing_hints.conversation_id import ConversationHash
from routing_hints.vocabulary import Phase, PlacementState, RankDirective
from sidecar.placement.first_rank import choose_preferred
from sidecar.telemetry import metrics
from tests.support.placement_world import CANCELLED, FAILED, PlacementHarness

NEW, RETAINED, MOVED, NONE = (
    PlacementState.NEW,
    PlacementState.RETAINED,
    PlacementState.MOVED,
    PlacementState.NONE,
)
# Computed with hashlib alone from the rule of docs/placement.md, for four ranks.
PREFERRED = {"7c5832ae00b4609f": 1, "9db7331b77ff4653": 0, "e954c3fb868512e8": 2}


@pytest.mark.parametrize(("conversation", "rank"), PREFERRED.items())
def test_tie_goes_to_the_rank_that_the_conversation_hash_prefers(conversation: str, rank: int) -> None:
    placed = PlacementHarness().place(conversation)
    assert (placed.rank, placed.placement) == (rank, NEW)


@pytest.mark.parametrize(("conversation", "rank"), PREFERRED.items())
def test_rendezvous_ignores_the_load(conversation: str, rank: int) -> None:
    harness = PlacementHarness(choose_first=choose_preferred)
    harness.place("busy", 1_000_000, known_rank=rank)
    placed = harness.place(conversation)
    assert (placed.rank, placed.placement) == (rank, NEW)


def test_rendezvous_without_a_conversation_goes_by_load() -> None:
    harness = PlacementHarness(choose_first=choose_preferred)
    for rank in (0, 1, 3):
        harness.place(f"busy{rank}", known_rank=rank)
    assert harness.place("").rank == 2


def test_later_turns_return_to_the_first_rank_whatever_its_load() -> None:
    harness = PlacementHarness()
    first = harness.run_turn("c", 5_000)
    harness.place("busy", 1_000_000, known_rank=first.rank)
    later = [harness.run_turn("c", 6_000 + turn) for turn in range(3)]
    assert first.placement is NEW
    assert [(turn.rank, turn.placement) for turn in later] == [(first.rank, RETAINED)] * 3


def test_first_turn_goes_to_the_rank_with_the_fewest_outstanding_tokens() -> None:
    harness = PlacementHarness()
    for rank in (0, 1, 3):
        harness.place(f"busy{rank}", 100 + rank, known_rank=rank)
    assert harness.place("c").rank == 2


def test_first_turn_goes_to_the_rank_with_the_fewest_resident_tokens_if_all_are_idle() -> None:
    harness = PlacementHarness()
    for rank, tokens in ((0, 900), (1, 500), (2, 700), (3, 800)):
        harness.run_turn(f"c{rank}", tokens, known_rank=rank)
    assert harness.place("new").rank == 1


@pytest.mark.parametrize(("weight", "rank"), [(0.1, 0), (2.0, 1)])
def test_resident_weight_sets_what_a_resident_token_counts(weight: float, rank: int) -> None:
    """1,000 resident tokens weigh less than 500 outstanding ones at 0.1, and more at 2."""
    harness = PlacementHarness(resident_weight=weight)
    harness.run_turn("old", 1_000, known_rank=0, dp_size=2)
    harness.place("busy", 500, known_rank=1, dp_size=2)
    assert harness.place("new", dp_size=2).rank == rank


def test_changed_settings_count_from_the_next_request() -> None:
    """Placement reads the policy in force each time, which a reload may have replaced."""
    harness = PlacementHarness()
    harness.place("busy", 1_000_000, known_rank=1)
    assert harness.preview("7c5832ae00b4609f") != (1, NEW)
    harness.settings = PlacementHarness(choose_first=choose_preferred).settings
    assert harness.preview("7c5832ae00b4609f") == (1, NEW)


def test_only_tokens_that_are_not_resident_are_outstanding() -> None:
    harness = PlacementHarness()
    first = harness.run_turn("c", 5_000)
    harness.place("c", 5_300)
    assert harness.outstanding()[first.rank] == 300


def test_prompt_of_unknown_length_weighs_one_token() -> None:
    """So requests without a length are balanced by their number."""
    harness = PlacementHarness()
    ranks = {harness.place(f"c{number}", 0).rank for number in range(4)}
    assert ranks == {0, 1, 2, 3}
    assert harness.outstanding() == [1, 1, 1, 1]


def test_request_without_a_conversation_leaves_load_and_no_entry() -> None:
    harness = PlacementHarness()
    placed = harness.place("", 1_000)
    assert placed.placement is NONE
    assert sum(harness.outstanding()) == 1_000
    assert harness.list_entries() == []
    assert harness.place("", 1_000).rank != placed.rank


@pytest.mark.parametrize("outcome", [0, 1, FAILED, CANCELLED])
def test_finish_report_frees_the_load_whatever_the_outcome(outcome: int) -> None:
    harness = PlacementHarness()
    harness.place("c").finish(outcome=outcome)
    assert harness.outstanding() == [0, 0, 0, 0]


def test_request_without_a_finish_report_counts_as_run_when_its_lease_is_over() -> None:
    harness = PlacementHarness(lease_ttl_s=600.0)
    placed = harness.place("c", 5_000)
    harness.now_s += 600
    assert harness.preview("c") == (placed.rank, NEW)
    harness.now_s += 1
    assert harness.preview("c") == (placed.rank, RETAINED)
    later = harness.place("c", 5_000)
    assert (later.rank, later.placement) == (placed.rank, RETAINED)
    assert harness.outstanding()[placed.rank] == 1


def test_unary_request_counts_as_run_at_once_and_adds_no_load() -> None:
    """Without a stream no finish report will come."""
    harness = PlacementHarness()
    first = harness.place("c", 5_000, unary=True)
    assert harness.outstanding() == [0, 0, 0, 0]
    assert harness.resident()[first.rank] == 5_000
    later = harness.place("c", 5_000, unary=True)
    assert (first.placement, later.placement, later.rank) == (NEW, RETAINED, first.rank)


def test_concurrent_first_turns_are_all_new_and_get_one_rank() -> None:
    """Until a turn has run, the engine may not have the conversation, so each must be sent with the rank."""
    harness = PlacementHarness()
    placed = [harness.place("c", 1_000) for _ in range(3)]
    assert [one.placement for one in placed] == [NEW, NEW, NEW]
    assert len({one.rank for one in placed}) == 1


def test_retry_gets_the_placement_of_the_first_attempt_and_counts_once() -> None:
    harness = PlacementHarness()
    harness.run_turn("c", 5_000)
    first = harness.place("c", 5_500, request_id="same")
    again = harness.place("c", 5_500, request_id="same")
    assert (again.rank, again.placement) == (first.rank, first.placement)
    assert sum(harness.outstanding()) == 500
    assert harness.read_counts(metrics.PLACEMENTS) == {"new/prefill": 1, "retained/prefill": 1}


def test_late_finish_report_of_the_first_attempt_does_not_free_the_retry() -> None:
    harness = PlacementHarness()
    first = harness.place("c", 5_000, request_id="same")
    again = harness.place("c", 5_000, request_id="same")
    first.finish(outcome=FAILED)
    assert sum(harness.outstanding()) == 5_000
    again.finish()
    again.finish()
    assert sum(harness.outstanding()) == 0


def test_conversation_whose_first_turn_failed_is_still_new_on_its_rank() -> None:
    harness = PlacementHarness()
    first = harness.place("c")
    first.finish(outcome=FAILED, applied=RankDirective.UNSPECIFIED)
    again = harness.place("c")
    assert (again.rank, again.placement) == (first.rank, NEW)


def test_request_without_an_id_is_never_a_retry() -> None:
    harness = PlacementHarness()
    for _ in range(3):
        harness.place("c", 1_000, request_id="")
    assert sum(harness.outstanding()) == 3_000


def test_finish_report_without_a_decision_id_is_matched_by_its_seq() -> None:
    """A worker that timed out never saw the decision, so it names the item instead."""
    harness = PlacementHarness()
    harness.place("c").finish(decided=False, seq=True)
    assert sum(harness.outstanding()) == 0


def test_finish_report_after_a_reconnect_is_matched_by_its_request_id() -> None:
    """A worker can then name an unanswered item neither by decision nor by seq."""
    harness = PlacementHarness()
    placed = harness.place("c", stream=1)
    placed.finish(decided=False, stream=1)
    assert sum(harness.outstanding()) == 1_000
    placed.finish(decided=False, stream=2)
    assert sum(harness.outstanding()) == 0


def test_known_rank_of_the_client_is_adopted() -> None:
    """So a restarted sidecar continues where the conversations are."""
    harness = PlacementHarness()
    placed = [harness.place(f"c{rank}", known_rank=rank) for rank in range(4)]
    assert [one.rank for one in placed] == [0, 1, 2, 3]
    assert {one.placement for one in placed} == {RETAINED}


def test_table_outweighs_the_known_rank_of_the_client() -> None:
    harness = PlacementHarness()
    first = harness.run_turn("c")
    assert harness.place("c", known_rank=(first.rank + 1) % 4).rank == first.rank


@pytest.mark.parametrize(
    "other", [{"instance": "j"}, {"model": "n"}, {"phase": Phase.AGGREGATED}, {"worker": "v"}, {"dp_size": 8}]
)
def test_conversation_is_new_in_another_engine_phase(other: dict[str, object]) -> None:
    harness = PlacementHarness()
    harness.run_turn("7c5832ae00b4609f")
    assert harness.place("7c5832ae00b4609f", **other).placement is NEW


def test_another_dp_size_forgets_the_conversations_of_the_engine_before() -> None:
    """Late finish reports of its requests do no harm."""
    harness = PlacementHarness()
    late = harness.place("a")
    harness.run_turn("b")
    harness.place("c", dp_size=2)
    assert harness.list_conversations() == ["c"]
    late.finish(observed=3)
    assert harness.outstanding() in ([1_000, 0], [0, 1_000])
    assert harness.read_counts(metrics.CONVERSATIONS_FORGOTTEN) == {"engine_gone": 2}


def test_child_starts_on_its_parents_rank_whatever_the_load() -> None:
    """A sub-agent shares its parent's prefix."""
    harness = PlacementHarness()
    parent = harness.run_turn("parent", 50_000)
    child = harness.place("child", parent="parent")
    assert (child.rank, child.placement) == (parent.rank, NEW)


def test_child_of_another_tenants_conversation_goes_by_load() -> None:
    """Tenants share no prefix."""
    harness = PlacementHarness()
    parent = harness.run_turn("parent", 50_000, tenant="a")
    assert harness.place("child", parent="parent", tenant="b").rank != parent.rank


def test_children_of_an_unknown_parent_go_to_the_rank_that_the_parent_prefers() -> None:
    harness = PlacementHarness(choose_first=choose_preferred)
    siblings = [harness.place(f"child{number}", parent="7c5832ae00b4609f") for number in range(5)]
    assert {placed.rank for placed in siblings} == {1}


def test_conversation_whose_first_turn_ran_elsewhere_moves_there_and_says_so_once() -> None:
    """Nothing of it is on the rank where it was placed."""
    harness = PlacementHarness()
    first = harness.place("c", 5_000)
    elsewhere = (first.rank + 1) % 4
    first.finish(observed=elsewhere)
    turns = [harness.run_turn("c", 5_000) for _ in range(2)]
    assert [(turn.rank, turn.placement) for turn in turns] == [(elsewhere, MOVED), (elsewhere, RETAINED)]
    assert harness.resident()[elsewhere] == 5_000
    assert harness.resident()[first.rank] == 0


def test_overflow_of_one_turn_does_not_move_a_long_conversation() -> None:
    """Most of its prompt is still on its rank."""
    harness = PlacementHarness()
    home = harness.run_turn("c", 5_000).rank
    harness.place("c", 5_500).finish(observed=(home + 1) % 4)
    later = harness.place("c", 6_000)
    assert (later.rank, later.placement) == (home, RETAINED)
    # The 500 tokens that were computed elsewhere have yet to be computed here.
    assert harness.outstanding()[home] == 1_000


def test_conversation_moves_once_its_rank_holds_no_more_than_half_of_its_prompt() -> None:
    harness = PlacementHarness()
    home = harness.run_turn("c", 5_000).rank
    harness.place("c", 10_000).finish(observed=(home + 1) % 4)
    later = harness.place("c", 10_500)
    assert (later.rank, later.placement) == ((home + 1) % 4, MOVED)


def test_observed_rank_of_a_decode_moves_nothing() -> None:
    """A decode worker reports the rank of the prefill engine, which says nothing about its own."""
    harness = PlacementHarness()
    first = harness.place("c", phase=Phase.DECODE)
    first.finish(observed=(first.rank + 1) % 4)
    later = harness.place("c", phase=Phase.DECODE)
    assert (later.rank, later.placement) == (first.rank, RETAINED)


@pytest.mark.parametrize("observed", [4, 2**32 - 1])
def test_observed_rank_that_the_engine_does_not_have_is_ignored(observed: int) -> None:
    harness = PlacementHarness()
    first = harness.place("c")
    first.finish(observed=observed)
    assert harness.preview("c") == (first.rank, RETAINED)


def test_fewer_cached_tokens_than_expected_make_later_turns_count_as_more_work() -> None:
    harness = PlacementHarness()
    home = harness.run_turn("c", 10_000).rank
    for _ in range(100):
        harness.place("c", 10_000).finish(observed=home, cached=2_000)
    harness.place("c", 10_000)
    assert 7_900 < harness.outstanding()[home] < 8_100


def test_forwarded_request_teaches_nothing() -> None:
    """A worker that timed out forwarded, so its request may have run anywhere."""
    harness = PlacementHarness()
    first = harness.place("c", 5_000)
    first.finish(applied=RankDirective.FORWARD, decided=False, seq=True)
    assert harness.resident() == [0, 0, 0, 0]
    assert harness.preview("c") == (first.rank, NEW)


def test_end_forgets_the_conversation_in_every_engine_phase_and_keeps_its_load() -> None:
    """What is in flight stays outstanding until it finishes."""
    harness = PlacementHarness()
    harness.run_turn("c")
    harness.run_turn("c", phase=Phase.AGGREGATED)
    in_flight = harness.place("c")
    assert harness.placement.end(ConversationHash("c")) == 2
    assert harness.placement.end(ConversationHash("c")) == 0
    assert harness.list_entries() == []
    assert sum(harness.outstanding()) > 0
    in_flight.finish(observed=in_flight.rank)
    assert sum(harness.outstanding()) == 0
    assert harness.list_entries() == []


def test_entries_of_a_conversation_are_found_in_every_engine_phase() -> None:
    harness = PlacementHarness()
    harness.run_turn("c")
    harness.run_turn("c", phase=Phase.AGGREGATED)
    harness.run_turn("other")
    found = harness.placement.find(ConversationHash("c"))
    assert {entry.engine_phase.key.phase for entry in found} == {Phase.PREFILL, Phase.AGGREGATED}
    assert harness.placement.find(ConversationHash("unknown")) == []


def test_entries_are_listed_page_by_page_and_by_worker() -> None:
    harness = PlacementHarness()
    for name in ("a", "b", "c", "d"):
        harness.run_turn(name, worker="v" if name == "b" else "w")
    first = harness.placement.list_used_before(None, "w", 2)
    assert [entry.conversation for entry in first] == ["d", "c"]
    second = harness.placement.list_used_before(first[-1].use_number, "w", 2)
    assert [entry.conversation for entry in second] == ["a"]


@pytest.mark.parametrize("look", ["find", "list_conversations", "list_engine_phases"])
def test_looking_finds_nothing_whose_time_is_over(look: str) -> None:
    """Placement expires by itself, whoever looks first."""
    harness = PlacementHarness(idle_ttl_s=100.0)
    harness.run_turn("c")
    harness.now_s += 101
    looks = {
        "find": lambda: harness.placement.find(ConversationHash("c")),
        "list_conversations": harness.list_conversations,
        "list_engine_phases": harness.placement.list_engine_phases,
    }
    assert looks[look]() == []


def test_proposal_that_is_not_committed_changes_nothing() -> None:
    harness = PlacementHarness()
    harness.run_turn("c", 5_000)

    def read_state() -> tuple[object, ...]:
        uses = [entry.use_number for entry in harness.list_entries()]
        return harness.outstanding(), harness.resident(), uses

    before = read_state()
    assert harness.preview("new") == harness.preview("new")
    assert harness.preview("c") is not None
    assert before == read_state()
    assert harness.read_counts(metrics.PLACEMENTS) == {"new/prefill": 1}


@pytest.mark.parametrize(
    ("tokens", "size"),
    [
        (0, "unknown"),
        (1, "under_2k"),
        (2_047, "under_2k"),
        (2_048, "2k_to_16k"),
        (16_383, "2k_to_16k"),
        (16_384, "16k_and_more"),
    ],
)
def test_new_conversations_are_counted_by_the_length_of_their_prompt(tokens: int, size: str) -> None:
    """A new conversation with a long prompt came from another instance."""
    harness = PlacementHarness()
    harness.run_turn("c", tokens)
    assert harness.read_counts(metrics.NEW_CONVERSATIONS) == {f"prefill/{size}": 1}
