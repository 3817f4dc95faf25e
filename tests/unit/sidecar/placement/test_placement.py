"""Placement turn by turn: where first and later turns go, and what is learned from their ends."""

from __future__ import annotations

import pytest

from sidecar.model import ConversationHash, Decision, Phase, RankDirective
from tests.support.placement_world import CANCELLED, FAILED, World

NEW, RETAINED, MOVED, NONE = Decision.NEW, Decision.RETAINED, Decision.MOVED, Decision.NONE
# Worked out with hashlib from the rule of docs/placement.md, for four ranks.
PREFERRED = {"7c5832ae00b4609f": 1, "9db7331b77ff4653": 0, "e954c3fb868512e8": 2}


@pytest.mark.parametrize(("conversation", "rank"), PREFERRED.items())
def test_a_tie_goes_to_the_rank_that_the_hash_prefers(conversation: str, rank: int) -> None:
    """In a fresh table all ranks tie, and the conversation's hash decides."""
    asked = World().ask(conversation)
    assert asked is not None
    assert (asked.rank, asked.decision) == (rank, NEW)


@pytest.mark.parametrize(("conversation", "rank"), PREFERRED.items())
def test_rendezvous_ignores_the_load(conversation: str, rank: int) -> None:
    """With `first: rendezvous` the hash decides whatever the load is."""
    world = World(first_by_hash=True)
    world.ask("busy", 1_000_000, known_rank=rank)
    asked = world.ask(conversation)
    assert asked is not None
    assert (asked.rank, asked.decision) == (rank, NEW)


def test_turns_return_to_the_first_rank() -> None:
    """A conversation stays where its first turn was, however busy that rank is by now."""
    world = World()
    first = world.run("c", 5_000)
    world.ask("busy", 1_000_000, known_rank=first.rank)
    later = [world.run("c", 6_000 + turn) for turn in range(3)]
    assert first.decision is NEW
    assert [(turn.rank, turn.decision) for turn in later] == [(first.rank, RETAINED)] * 3


def test_a_first_turn_goes_where_the_least_is_outstanding() -> None:
    """Work in flight pushes a new conversation to the one rank without any."""
    world = World()
    for rank in (0, 1, 3):
        world.ask(f"busy{rank}", 100 + rank, known_rank=rank)
    asked = world.ask("c")
    assert asked is not None
    assert asked.rank == 2


def test_a_first_turn_weighs_what_ranks_keep() -> None:
    """Without work in flight a new conversation goes where the fewest tokens are resident."""
    world = World()
    for rank, tokens in ((0, 900), (1, 500), (2, 700), (3, 800)):
        world.run(f"c{rank}", tokens, known_rank=rank)
    asked = world.ask("new")
    assert asked is not None
    assert asked.rank == 1


@pytest.mark.parametrize(("weight", "rank"), [(0.1, 0), (2.0, 1)])
def test_the_weight_decides_between_work_and_residents(weight: float, rank: int) -> None:
    """1,000 resident tokens weigh less than 500 outstanding ones at 0.1 and more at 2."""
    world = World(resident_weight=weight)
    world.run("old", 1_000, known_rank=0, dp_size=2)
    world.ask("busy", 500, known_rank=1, dp_size=2)
    asked = world.ask("new", dp_size=2)
    assert asked is not None
    assert asked.rank == rank


def test_only_what_is_not_resident_is_outstanding() -> None:
    """A later turn adds its new tokens alone."""
    world = World()
    first = world.run("c", 5_000)
    world.ask("c", 5_300)
    assert world.outstanding()[first.rank] == 300


def test_a_prompt_of_unknown_length_weighs_one_token() -> None:
    """Requests without a length balance by number."""
    world = World()
    ranks = {asked.rank for n in range(4) if (asked := world.ask(f"c{n}", 0)) is not None}
    assert ranks == {0, 1, 2, 3}
    assert world.outstanding() == [1, 1, 1, 1]


def test_without_a_conversation_nothing_is_bound() -> None:
    """A request without an id goes by load alone and leaves load, but no entry."""
    world = World()
    asked = world.ask("", 1_000)
    assert asked is not None
    assert asked.decision is NONE
    assert sum(world.outstanding()) == 1_000
    assert len(world.placement.table) == 0
    other = world.ask("", 1_000)
    assert other is not None
    assert other.rank != asked.rank


@pytest.mark.parametrize("outcome", [0, 1, FAILED, CANCELLED])
def test_the_end_frees_the_load(outcome: int) -> None:
    """However a request ends, its work is no longer outstanding."""
    world = World()
    asked = world.ask("c")
    assert asked is not None
    asked.finish(outcome=outcome)
    assert world.outstanding() == [0, 0, 0, 0]


def test_a_lost_end_is_assumed_after_the_lease() -> None:
    """A request whose end never comes counts as run when its lease is over."""
    world = World(lease_ttl_s=600.0)
    asked = world.ask("c", 5_000)
    assert asked is not None
    world.now_s += 601
    assert world.peek("c") == (asked.rank, NEW)
    later = world.ask("c", 5_000)
    assert later is not None
    assert (later.rank, later.decision) == (asked.rank, RETAINED)
    assert world.outstanding()[asked.rank] == 1


def test_a_unary_question_adds_no_load() -> None:
    """Without a stream no end will come: the turn counts as run at once."""
    world = World()
    first = world.ask("c", 5_000, unary=True)
    assert first is not None
    assert world.outstanding() == [0, 0, 0, 0]
    assert world.resident()[first.rank] == 5_000
    later = world.ask("c", 5_000, unary=True)
    assert later is not None
    assert (first.decision, later.decision, later.rank) == (NEW, RETAINED, first.rank)


def test_concurrent_first_turns_get_one_rank() -> None:
    """While no turn has run, each is told the rank as new: the engine may not know the conversation yet."""
    world = World()
    asked = [world.ask("c", 1_000) for _ in range(3)]
    assert [one.decision for one in asked if one is not None] == [NEW, NEW, NEW]
    assert len({one.rank for one in asked if one is not None}) == 1


def test_a_retry_is_no_new_turn() -> None:
    """A second attempt at a request gets the first one's answer, and its load counts once."""
    world = World()
    world.run("c", 5_000)
    first = world.ask("c", 5_500, request="same")
    again = world.ask("c", 5_500, request="same")
    assert first is not None
    assert again is not None
    assert (again.rank, again.decision) == (first.rank, first.decision)
    assert sum(world.outstanding()) == 500
    assert world.counted("placements") == {"new/prefill": 1, "retained/prefill": 1}


def test_the_late_end_of_a_first_attempt_frees_nothing() -> None:
    """Each attempt has a lease of its own."""
    world = World()
    first = world.ask("c", 5_000, request="same")
    again = world.ask("c", 5_000, request="same")
    assert first is not None
    assert again is not None
    first.finish(outcome=FAILED)
    assert sum(world.outstanding()) == 5_000
    again.finish()
    again.finish()
    assert sum(world.outstanding()) == 0


def test_a_retry_after_a_failed_first_turn_is_told_the_rank_again() -> None:
    """A first turn that never ran leaves the conversation new, on its rank."""
    world = World()
    first = world.ask("c")
    assert first is not None
    first.finish(outcome=FAILED, applied=RankDirective.UNSPECIFIED)
    again = world.ask("c")
    assert again is not None
    assert (again.rank, again.decision) == (first.rank, NEW)


def test_a_request_without_an_id_of_its_own_is_never_a_retry() -> None:
    """Questions that name no request add up."""
    world = World()
    for _ in range(3):
        asked = world.ask("c", 1_000, request="")
        assert asked is not None
    assert sum(world.outstanding()) == 3_000


def test_an_unanswered_question_is_ended_by_its_place_on_the_stream() -> None:
    """A worker that never saw the decision names the item instead."""
    world = World()
    asked = world.ask("c")
    assert asked is not None
    asked.finish(decided=False, seq=True)
    assert sum(world.outstanding()) == 0


def test_a_question_of_a_broken_stream_is_ended_by_its_request() -> None:
    """After a reconnect a worker can name an unanswered item neither by decision nor by seq."""
    world = World()
    asked = world.ask("c", stream=1)
    assert asked is not None
    asked.finish(decided=False, stream=1)
    assert sum(world.outstanding()) == 1_000
    asked.finish(decided=False, stream=2)
    assert sum(world.outstanding()) == 0


def test_the_remembered_rank_is_adopted() -> None:
    """A restarted sidecar goes on where the worker says that the conversation is."""
    world = World()
    ranks = {rank: world.ask(f"c{rank}", known_rank=rank) for rank in range(4)}
    assert all(asked is not None and asked.rank == rank for rank, asked in ranks.items())
    assert {asked.decision for asked in ranks.values() if asked is not None} == {RETAINED}


def test_the_table_outweighs_the_remembered_rank() -> None:
    """A worker's memory counts only where the table has none."""
    world = World()
    first = world.run("c")
    asked = world.ask("c", known_rank=(first.rank + 1) % 4)
    assert asked is not None
    assert asked.rank == first.rank


@pytest.mark.parametrize(
    "other", [{"instance": "j"}, {"model": "n"}, {"phase": Phase.AGGREGATED}, {"worker": "v"}, {"dp_size": 8}]
)
def test_another_leg_knows_nothing(other: dict[str, object]) -> None:
    """Worker, engine start, model, phase and number of ranks each keep conversations apart."""
    world = World()
    world.run("7c5832ae00b4609f")
    asked = world.ask("7c5832ae00b4609f", **other)  # type: ignore[arg-type]
    assert asked is not None
    assert asked.decision is NEW


def test_another_number_of_ranks_ends_the_generation() -> None:
    """The conversations of the engine before are forgotten, and late ends of its requests do no harm."""
    world = World()
    late = world.ask("a")
    world.run("b")
    assert late is not None
    world.ask("c", dp_size=2)
    assert [entry.conversation for entry in world.placement.table] == ["c"]
    late.finish(observed=3)
    assert world.outstanding() in ([1_000, 0], [0, 1_000])
    assert world.counted("conversations_forgotten") == {"engine_gone": 2}


def test_a_child_starts_on_its_parents_rank() -> None:
    """A sub-agent shares its parent's prefix, so it goes there whatever the load."""
    world = World()
    parent = world.run("parent", 50_000)
    child = world.ask("child", parent="parent")
    assert child is not None
    assert (child.rank, child.decision) == (parent.rank, NEW)


def test_a_child_of_another_tenants_conversation_goes_by_load() -> None:
    """Tenants share no prefix."""
    world = World()
    parent = world.run("parent", 50_000, tenant="a")
    child = world.ask("child", parent="parent", tenant="b")
    assert child is not None
    assert child.rank != parent.rank


def test_children_of_an_unknown_parent_tie_alike() -> None:
    """The parent's hash decides where siblings of a parent without an entry go."""
    world = World(first_by_hash=True)
    siblings = [world.ask(f"child{n}", parent="7c5832ae00b4609f") for n in range(5)]
    assert {asked.rank for asked in siblings if asked is not None} == {1}


def test_a_first_turn_that_ran_elsewhere_is_followed() -> None:
    """Nothing of it is on the rank where it should have been, so the table learns; said once as MOVED."""
    world = World()
    first = world.ask("c", 5_000)
    assert first is not None
    elsewhere = (first.rank + 1) % 4
    first.finish(observed=elsewhere)
    turns = [world.run("c", 5_000) for _ in range(2)]
    assert [(turn.rank, turn.decision) for turn in turns] == [(elsewhere, MOVED), (elsewhere, RETAINED)]
    assert world.resident()[elsewhere] == 5_000
    assert world.resident()[first.rank] == 0


def test_an_overflow_does_not_rebind() -> None:
    """Most of a long conversation is still on its rank, so one turn elsewhere changes nothing."""
    world = World()
    home = world.run("c", 5_000).rank
    turn = world.ask("c", 5_500)
    assert turn is not None
    turn.finish(observed=(home + 1) % 4)
    later = world.ask("c", 6_000)
    assert later is not None
    assert (later.rank, later.decision) == (home, RETAINED)
    # The 500 tokens that were computed elsewhere have yet to be computed here.
    assert world.outstanding()[home] == 1_000


def test_a_conversation_that_grew_elsewhere_is_followed() -> None:
    """Once its rank holds no more than half of its prompt, the other rank is the better home."""
    world = World()
    home = world.run("c", 5_000).rank
    turn = world.ask("c", 10_000)
    assert turn is not None
    turn.finish(observed=(home + 1) % 4)
    later = world.ask("c", 10_500)
    assert later is not None
    assert (later.rank, later.decision) == ((home + 1) % 4, MOVED)


def test_on_decode_the_observed_rank_is_another_engines() -> None:
    """A decode worker reports the prefill's rank, which says nothing about its own."""
    world = World()
    first = world.ask("c", phase=Phase.DECODE)
    assert first is not None
    first.finish(observed=(first.rank + 1) % 4)
    later = world.ask("c", phase=Phase.DECODE)
    assert later is not None
    assert (later.rank, later.decision) == (first.rank, RETAINED)


@pytest.mark.parametrize("observed", [4, 2**32 - 1])
def test_a_rank_that_does_not_exist_is_not_believed(observed: int) -> None:
    """An observed rank beyond the engine's is ignored."""
    world = World()
    first = world.ask("c")
    assert first is not None
    first.finish(observed=observed)
    assert world.peek("c") == (first.rank, RETAINED)


def test_what_the_engine_does_not_find_lowers_the_belief() -> None:
    """Cached tokens below what was believed resident make later turns count as more work."""
    world = World()
    home = world.run("c", 10_000).rank
    for _ in range(100):
        turn = world.ask("c", 10_000)
        assert turn is not None
        turn.finish(observed=home, cached=2_000)
    world.ask("c", 10_000)
    assert 7_900 < world.outstanding()[home] < 8_100


def test_a_worker_that_went_without_the_answer_teaches_nothing() -> None:
    """A request that was forwarded ran anywhere, so the conversation is not believed to be resident."""
    world = World()
    first = world.ask("c", 5_000)
    assert first is not None
    first.finish(applied=RankDirective.FORWARD, decided=False, seq=True)
    assert world.resident() == [0, 0, 0, 0]
    assert world.peek("c") == (first.rank, NEW)


def test_an_ended_conversation_is_new_again() -> None:
    """Ending forgets it on every leg; what is in flight stays outstanding."""
    world = World()
    world.run("c")
    world.run("c", phase=Phase.AGGREGATED)
    flying = world.ask("c")
    assert flying is not None
    assert world.placement.end(ConversationHash("c")) == 2
    assert world.placement.end(ConversationHash("c")) == 0
    assert len(world.placement.table) == 0
    assert sum(world.outstanding()) > 0
    flying.finish(observed=flying.rank)
    assert sum(world.outstanding()) == 0
    assert len(world.placement.table) == 0


def test_looking_changes_nothing() -> None:
    """A proposal that is not committed leaves table, load and clock alone."""
    world = World()
    world.run("c", 5_000)
    before = (world.outstanding(), world.resident(), [e.use_number for e in world.placement.table])
    assert world.peek("new") == world.peek("new")
    assert world.peek("c") is not None
    assert before == (world.outstanding(), world.resident(), [e.use_number for e in world.placement.table])
    assert world.counted("placements") == {"new/prefill": 1}


@pytest.mark.parametrize(
    ("tokens", "size"),
    [(0, "unknown"), (1, "under_2k"), (2_048, "2k_to_16k"), (16_384, "16k_and_more")],
)
def test_new_conversations_are_counted_by_their_prompt(tokens: int, size: str) -> None:
    """A new conversation with a long prompt came from another instance."""
    world = World()
    world.run("c", tokens)
    assert world.counted("new_conversations") == {f"prefill/{size}": 1}
