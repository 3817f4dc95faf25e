"""Placement under any order of questions, ends, losses, restarts and resizes, against a plain model of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sidecar.model import ConversationHash, Decision, RankDirective
from tests.support.placement_world import CANCELLED, COMPLETED, FAILED, Asked, World

_MAX_CONVERSATIONS = 3
_IDLE_TTL_S = 500.0
_LEASE_TTL_S = 200.0

_names = st.sampled_from([f"c{number}" for number in range(6)])
_tokens = st.integers(0, 5_000)


@dataclass(eq=False)
class _Known:
    """A conversation as the model knows it: where it may be, and when it was last heard of."""

    ranks: set[int]
    used_at_s: float
    use: int
    has_run: bool = False


@dataclass(eq=False)
class _Flight:
    """A request in flight, as the model knows it."""

    asked: Asked
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
        now_s = self.world.now_s if hasattr(self, "world") else 1_000.0
        self.world = World(
            max_conversations=_MAX_CONVERSATIONS, idle_ttl_s=_IDLE_TTL_S, lease_ttl_s=_LEASE_TTL_S
        )
        self.world.now_s = now_s
        self.known: dict[str, _Known] = {}
        self.flying: list[_Flight] = []

    # What the model does by itself.

    def _touch(self, known: _Known) -> None:
        self.uses += 1
        known.used_at_s, known.use = self.world.now_s, self.uses

    def _is_flying(self, known: _Known) -> bool:
        return any(flight.known is known for flight in self.flying)

    def _pass_time(self) -> None:
        for flight in [f for f in self.flying if self.world.now_s - f.opened_at_s > _LEASE_TTL_S]:
            self.flying.remove(flight)
            if flight.known is not None and flight.known in self.known.values():
                flight.known.has_run = True
                flight.known.ranks.add(flight.asked.rank)
                self._touch(flight.known)
        for name, known in list(self.known.items()):
            if self.world.now_s - known.used_at_s > _IDLE_TTL_S:
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
            left = {entry.conversation for entry in self.world.placement.table}
            (gone,) = self.known.keys() - left
            del self.known[gone]

    def _expect(self, name: str, asked: Asked, known_rank: int | None) -> _Known | None:
        """Holds an answer against the model, and takes it over."""
        if not name:
            assert asked.decision is Decision.NONE
            return None
        known = self.known.get(name)
        if known is None:
            self._make_room()
            adopted = known_rank is not None
            assert asked.decision is (Decision.RETAINED if adopted else Decision.NEW)
            assert not adopted or asked.rank == known_rank
            known = self.known[name] = _Known({asked.rank}, 0, 0, adopted)
        else:
            assert asked.rank in known.ranks
            moves = (Decision.RETAINED, Decision.MOVED) if known.has_run else (Decision.NEW,)
            assert asked.decision in moves
            known.ranks = {asked.rank}
        self._touch(known)
        self.remembered[name] = asked.rank
        return known

    def _fly(self, asked: Asked, name: str, known: _Known | None, tokens: int) -> _Flight:
        flight = _Flight(asked, name, known, tokens, self.world.now_s, self.resizes)
        self.flying.append(flight)
        return flight

    # What can happen.

    @rule(target=flights, name=_names, tokens=_tokens)
    def ask_about_a_conversation(self, name: str, tokens: int) -> _Flight:
        """The same as the next, but for the frequency with which it is tried."""
        return self.ask(name, tokens, remembers=True)

    @rule(target=flights, name=st.just("") | _names, tokens=_tokens, remembers=st.booleans())
    def ask(self, name: str, tokens: int, remembers: bool) -> _Flight:
        """A request comes on the stream."""
        self._pass_time()
        rank = self.remembered.get(name) if remembers else None
        known_rank = rank if rank is not None and rank < self.dp_size else None
        asked = self.world.ask(name, tokens, known_rank=known_rank, dp_size=self.dp_size)
        assert asked is not None
        known = self._expect(name, asked, known_rank)
        return self._fly(asked, name, known, tokens)

    @rule(target=flights, first=flights)
    def retry(self, first: _Flight) -> _Flight:
        """A request comes again; while an attempt at it flies, it gets the same rank and counts once."""
        self._pass_time()
        request = first.asked.query.request_id
        attempts = (f for f in self.flying if f.asked.query.request_id == request)
        attempt = next((f for f in attempts if f.resizes == self.resizes), None)
        asked = self.world.ask(first.name, first.tokens, request=request, dp_size=self.dp_size)
        assert asked is not None
        known = self.known.get(first.name)
        if attempt is None:
            known = self._expect(first.name, asked, None)
        else:
            self.flying.remove(attempt)
            if known is None or known.ranks == {attempt.asked.rank}:
                assert (asked.rank, asked.decision) == (attempt.asked.rank, attempt.asked.decision)
            if known is None and first.name:
                self._make_room()
                known = _Known(set(), 0, 0, asked.decision is not Decision.NEW)
                self.known[first.name] = known
            if known is not None:
                assert asked.rank in known.ranks | {attempt.asked.rank}
                known.ranks = {asked.rank}
                self._touch(known)
        return self._fly(asked, first.name, known, first.tokens)

    @rule(name=_names, tokens=_tokens)
    def ask_unary(self, name: str, tokens: int) -> None:
        """A person asks: nothing will end, so nothing becomes outstanding."""
        self._pass_time()
        self.world.placement.expire(self.world.settings)
        before = self._read_outstanding()
        asked = self.world.ask(name, tokens, dp_size=self.dp_size, unary=True)
        assert asked is not None
        known = self._expect(name, asked, None)
        assert known is not None
        known.has_run = True
        assert self._read_outstanding() == before

    @rule(target=ended, flight=consumes(flights), outcome=st.sampled_from([COMPLETED, FAILED, CANCELLED]))
    def finish(self, flight: _Flight, outcome: int) -> _Flight:
        """A request ends; nobody saw where it ran."""
        self._end(flight, outcome=outcome)
        if flight.known is not None and outcome == COMPLETED and self._is_settled(flight):
            flight.known.has_run = True
            flight.known.ranks.add(flight.asked.rank)
        return flight

    @rule(target=ended, flight=consumes(flights), offset=st.integers(0, 3))
    def finish_observed(self, flight: _Flight, offset: int) -> _Flight:
        """A request ends and was seen on some rank, as the engine may do with a full one."""
        observed = (flight.asked.rank + offset) % self.dp_size
        self._end(flight, outcome=COMPLETED, observed=observed, applied=RankDirective.WITHHOLD)
        if flight.known is not None and self._is_settled(flight):
            flight.known.has_run = True
            flight.known.ranks.add(observed)
        return flight

    @rule(target=ended, flight=consumes(flights))
    def finish_unanswered(self, flight: _Flight) -> _Flight:
        """A request whose answer came too late ends by its place on the stream."""
        self._end(flight, outcome=COMPLETED, decided=False, seq=True, applied=RankDirective.FORWARD)
        return flight

    @rule(flight=ended)
    def finish_again(self, flight: _Flight) -> None:
        """A duplicate or late report changes nothing."""
        flight.asked.finish(observed=(flight.asked.rank + 1) % 4)

    @rule(seconds=st.sampled_from([1.0, 1.0, 1.0, 150.0, 201.0, 501.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; leases and conversations may expire."""
        self.world.now_s += seconds
        self._pass_time()
        self.world.placement.expire(self.world.settings)

    @rule(
        what=st.sampled_from(["end"] * 4 + ["restart", "resize"]),
        name=_names,
        dp_size=st.sampled_from([2, 8]),
    )
    def interrupt(self, what: str, name: str, dp_size: int) -> None:
        """Something ends a conversation, the sidecar or the engine."""
        self._pass_time()
        if what == "end":
            self.world.placement.expire(self.world.settings)
            assert self.world.placement.end(ConversationHash(name)) == (name in self.known)
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
            self.world.ask("", 0, dp_size=self.dp_size, unary=True)

    def _end(self, flight: _Flight, **report: object) -> None:
        self.is_open = flight in self.flying
        if self.is_open:
            self.flying.remove(flight)
        flight.asked.finish(**report)  # type: ignore[arg-type]
        if self._is_settled(flight) and flight.known is not None:
            self._touch(flight.known)

    def _read_outstanding(self) -> list[int]:
        legs = [leg for leg in self.world.placement.legs if leg.loads.dp_size == self.dp_size]
        return legs[0].loads.outstanding_tokens if legs else [0] * self.dp_size

    def _is_settled(self, flight: _Flight) -> bool:
        return self.is_open and flight.known is not None and flight.known in self.known.values()

    # What must hold after each of them.

    @invariant()
    def nothing_is_outstanding_but_what_flies(self) -> None:
        """Every request in flight weighs at least one token and at most its prompt; nothing else does."""
        self._pass_time()
        self.world.placement.expire(self.world.settings)
        for rank, tokens in enumerate(self._read_outstanding()):
            here = [f for f in self.flying if f.asked.rank == rank and f.resizes == self.resizes]
            assert len(here) <= tokens <= sum(max(f.tokens, 1) for f in here)

    @invariant()
    def the_table_holds_what_the_model_holds(self) -> None:
        """The same conversations, on the same ranks, with as many requests in flight, and never too many."""
        entries = {entry.conversation: entry for entry in self.world.placement.table}
        assert len(entries) <= _MAX_CONVERSATIONS
        assert entries.keys() == self.known.keys()
        for name, entry in entries.items():
            known = self.known[name]
            assert entry.rank in known.ranks
            assert entry.in_flight == sum(1 for flight in self.flying if flight.known is known)

    @invariant()
    def residents_add_up(self) -> None:
        """A rank's resident tokens are those of its conversations."""
        for leg in self.world.placement.legs:
            resident = leg.loads.resident_tokens(self.world.now_s)
            for rank, tokens in enumerate(resident):
                entries = [e for e in self.world.placement.table if e.leg is leg and e.rank == rank]
                expected = sum(entry.likely_resident(self.world.now_s) for entry in entries)
                assert tokens == pytest.approx(expected, abs=1e-6)


TestPlacementInAnyOrder = PlacementMachine.TestCase
TestPlacementInAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
