"""Placement under any order of requests, finish reports, losses, restarts and resizes, against a model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from routing_hints.conversation_id import ConversationHash
from routing_hints.vocabulary import PlacementState, RankDirective
from tests.support.placement_world import CANCELLED, COMPLETED, FAILED, PlacedRequest, PlacementHarness

_MAX_CONVERSATIONS = 3
_IDLE_TTL_S = 500.0
_LEASE_TTL_S = 200.0

_names = st.sampled_from([f"c{number}" for number in range(6)])
_tokens = st.integers(0, 5_000)


@dataclass(eq=False)
class _Known:
    """A conversation in the model: the ranks that it may be on, and when it was last used."""

    ranks: set[int]
    used_at_s: float
    use: int
    has_run: bool = False


@dataclass(eq=False)
class _Flight:
    """A request in flight in the model."""

    placed: PlacedRequest
    name: str
    known: _Known | None
    tokens: int
    opened_at_s: float
    resizes: int


class PlacementMachine(RuleBasedStateMachine):
    """The model: a dict of conversations, a list of requests in flight, and no cleverness."""

    flights = Bundle("flights")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.dp_size = 4
        self.uses = 0
        self.resizes = 0
        self.remembered: dict[str, int] = {}
        self._start()

    def _start(self) -> None:
        now_s = self.harness.now_s if hasattr(self, "harness") else 1_000.0
        self.harness = PlacementHarness(
            max_conversations=_MAX_CONVERSATIONS, idle_ttl_s=_IDLE_TTL_S, lease_ttl_s=_LEASE_TTL_S
        )
        self.harness.now_s = now_s
        self.known: dict[str, _Known] = {}
        self.flying: list[_Flight] = []

    # What the model does by itself.

    def _touch(self, known: _Known) -> None:
        self.uses += 1
        known.used_at_s, known.use = self.harness.now_s, self.uses

    def _is_flying(self, known: _Known) -> bool:
        return any(flight.known is known for flight in self.flying)

    def _pass_time(self) -> None:
        for flight in [f for f in self.flying if self.harness.now_s - f.opened_at_s > _LEASE_TTL_S]:
            self.flying.remove(flight)
            if flight.known is not None and flight.known in self.known.values():
                flight.known.has_run = True
                flight.known.ranks.add(flight.placed.rank)
                self._touch(flight.known)
        for name, known in list(self.known.items()):
            if self.harness.now_s - known.used_at_s > _IDLE_TTL_S:
                if self._is_flying(known):
                    self._touch(known)
                else:
                    del self.known[name]

    def _make_room(self) -> None:
        if len(self.known) < _MAX_CONVERSATIONS:
            return
        idle = {name: known for name, known in self.known.items() if not self._is_flying(known)}
        if idle:
            del self.known[min(idle, key=lambda name: idle[name].use)]
        else:
            # Then it may be any of them, but only one.
            (gone,) = self.known.keys() - set(self.harness.list_conversations())
            del self.known[gone]

    def _expect(self, name: str, placed: PlacedRequest, known_rank: int | None) -> _Known | None:
        """Compares a placement with the model, and adopts it."""
        if not name:
            assert placed.placement is PlacementState.NONE
            return None
        known = self.known.get(name)
        if known is None:
            self._make_room()
            adopted = known_rank is not None
            assert placed.placement is (PlacementState.RETAINED if adopted else PlacementState.NEW)
            assert not adopted or placed.rank == known_rank
            known = self.known[name] = _Known({placed.rank}, 0, 0, adopted)
        else:
            assert placed.rank in known.ranks
            moves = (
                (PlacementState.RETAINED, PlacementState.MOVED) if known.has_run else (PlacementState.NEW,)
            )
            assert placed.placement in moves
            known.ranks = {placed.rank}
        self._touch(known)
        self.remembered[name] = placed.rank
        return known

    def _fly(self, placed: PlacedRequest, name: str, known: _Known | None, tokens: int) -> _Flight:
        flight = _Flight(placed, name, known, tokens, self.harness.now_s, self.resizes)
        self.flying.append(flight)
        return flight

    # What can happen.

    @rule(target=flights, name=_names, tokens=_tokens)
    def place_a_known_conversation(self, name: str, tokens: int) -> _Flight:
        """Is the next rule, tried more often this way."""
        return self.place(name, tokens, remembers=True)

    @rule(target=flights, name=st.just("") | _names, tokens=_tokens, remembers=st.booleans())
    def place(self, name: str, tokens: int, remembers: bool) -> _Flight:
        self._pass_time()
        rank = self.remembered.get(name) if remembers else None
        known_rank = rank if rank is not None and rank < self.dp_size else None
        placed = self.harness.place(name, tokens, known_rank=known_rank, dp_size=self.dp_size)
        known = self._expect(name, placed, known_rank)
        return self._fly(placed, name, known, tokens)

    @rule(target=flights, first=flights)
    def retry(self, first: _Flight) -> _Flight:
        """While an attempt at a request is in flight, another one gets the same rank and counts once."""
        self._pass_time()
        request = first.placed.request.request_id
        attempts = (f for f in self.flying if f.placed.request.request_id == request)
        attempt = next((f for f in attempts if f.resizes == self.resizes), None)
        placed = self.harness.place(first.name, first.tokens, request_id=request, dp_size=self.dp_size)
        known = self.known.get(first.name)
        if attempt is None:
            known = self._expect(first.name, placed, None)
        else:
            self.flying.remove(attempt)
            if known is None or known.ranks == {attempt.placed.rank}:
                assert (placed.rank, placed.placement) == (attempt.placed.rank, attempt.placed.placement)
            if known is None and first.name:
                self._make_room()
                known = _Known(set(), 0, 0, placed.placement is not PlacementState.NEW)
                self.known[first.name] = known
            if known is not None:
                assert placed.rank in known.ranks | {attempt.placed.rank}
                known.ranks = {placed.rank}
                self._touch(known)
        return self._fly(placed, first.name, known, first.tokens)

    @rule(name=_names, tokens=_tokens)
    def place_unary(self, name: str, tokens: int) -> None:
        """No finish report will come, so nothing becomes outstanding."""
        self._pass_time()
        before = self._read_outstanding()
        placed = self.harness.place(name, tokens, dp_size=self.dp_size, unary=True)
        known = self._expect(name, placed, None)
        assert known is not None
        known.has_run = True
        assert self._read_outstanding() == before

    @rule(target=ended, flight=consumes(flights), outcome=st.sampled_from([COMPLETED, FAILED, CANCELLED]))
    def finish(self, flight: _Flight, outcome: int) -> _Flight:
        """Nobody observed where the request ran."""
        self._end(flight, outcome=outcome)
        if flight.known is not None and outcome == COMPLETED and self._is_settled(flight):
            flight.known.has_run = True
            flight.known.ranks.add(flight.placed.rank)
        return flight

    @rule(target=ended, flight=consumes(flights), offset=st.integers(0, 3))
    def finish_observed(self, flight: _Flight, offset: int) -> _Flight:
        """The request was observed on some rank, as an engine may choose when the placed one is full."""
        observed = (flight.placed.rank + offset) % self.dp_size
        self._end(flight, outcome=COMPLETED, observed=observed, applied=RankDirective.WITHHOLD)
        if flight.known is not None and self._is_settled(flight):
            flight.known.has_run = True
            flight.known.ranks.add(observed)
        return flight

    @rule(target=ended, flight=consumes(flights))
    def finish_timed_out(self, flight: _Flight) -> _Flight:
        """The decision came too late, so the finish report names the item by its seq."""
        self._end(flight, outcome=COMPLETED, decided=False, seq=True, applied=RankDirective.FORWARD)
        return flight

    @rule(flight=ended)
    def finish_again(self, flight: _Flight) -> None:
        """A duplicate or late report changes nothing."""
        flight.placed.finish(observed=(flight.placed.rank + 1) % 4)

    @rule(seconds=st.sampled_from([1.0, 1.0, 1.0, 150.0, 201.0, 501.0]))
    def wait(self, seconds: float) -> None:
        self.harness.now_s += seconds
        self._pass_time()

    @rule(
        what=st.sampled_from(["end"] * 4 + ["restart", "resize"]),
        name=_names,
        dp_size=st.sampled_from([2, 8]),
    )
    def interrupt(self, what: str, name: str, dp_size: int) -> None:
        """Ends a conversation, the sidecar or the engine."""
        self._pass_time()
        if what == "end":
            self.harness.list_entries()  # as at any look, what has outlived its time is forgotten first
            assert self.harness.placement.end(ConversationHash(name)) == (name in self.known)
            self.known.pop(name, None)
        elif what == "restart":
            # The worker remembers; the new sidecar starts empty.
            self._start()
        else:
            self.dp_size = dp_size if dp_size != self.dp_size else 4
            self.resizes += 1
            self.known.clear()
            self.remembered.clear()
            # The new generation begins with its first request.
            self.harness.place("", 0, dp_size=self.dp_size, unary=True)

    def _end(self, flight: _Flight, **report: object) -> None:
        self.is_open = flight in self.flying
        if self.is_open:
            self.flying.remove(flight)
        flight.placed.finish(**report)  # type: ignore[arg-type]
        if self._is_settled(flight) and flight.known is not None:
            self._touch(flight.known)

    def _read_outstanding(self) -> list[int]:
        engine_phases = [
            engine_phase
            for engine_phase in self.harness.placement.list_engine_phases()
            if engine_phase.loads.dp_size == self.dp_size
        ]
        return engine_phases[0].loads.outstanding_tokens if engine_phases else [0] * self.dp_size

    def _is_settled(self, flight: _Flight) -> bool:
        return self.is_open and flight.known is not None and flight.known in self.known.values()

    # What must hold after each of them.

    @invariant()
    def only_requests_in_flight_are_outstanding(self) -> None:
        """Each weighs at least one token and at most its prompt."""
        self._pass_time()
        for rank, tokens in enumerate(self._read_outstanding()):
            here = [f for f in self.flying if f.placed.rank == rank and f.resizes == self.resizes]
            assert len(here) <= tokens <= sum(max(f.tokens, 1) for f in here)

    @invariant()
    def table_equals_the_model(self) -> None:
        """The same conversations, on the same ranks, with as many requests in flight, and never too many."""
        self._pass_time()
        entries = {entry.conversation: entry for entry in self.harness.list_entries()}
        assert len(entries) <= _MAX_CONVERSATIONS
        assert entries.keys() == self.known.keys()
        for name, entry in entries.items():
            known = self.known[ConversationHash(name)]
            assert entry.rank in known.ranks
            assert entry.in_flight == sum(1 for flight in self.flying if flight.known is known)

    @invariant()
    def resident_tokens_of_a_rank_are_those_of_its_conversations(self) -> None:
        entries = self.harness.list_entries()
        for engine_phase in self.harness.placement.list_engine_phases():
            for rank, tokens in enumerate(engine_phase.loads.resident_tokens(self.harness.now_s)):
                expected = sum(
                    entry.likely_resident(self.harness.now_s)
                    for entry in entries
                    if entry.engine_phase is engine_phase and entry.rank == rank
                )
                assert tokens == pytest.approx(expected, abs=1e-6)


TestPlacementInAnyOrder = PlacementMachine.TestCase
TestPlacementInAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
