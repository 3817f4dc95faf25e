"""Where conversations are placed: proposes a rank, commits to it, and learns from how the request ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sidecar.model import ConversationHash, Decision, FinishReport, Phase, PlacementKey, Query, RankDirective
from sidecar.placement.choice import choose_rank, find_live
from sidecar.placement.engine_phase import Leg, Legs, name_leg
from sidecar.placement.lease import MAX_LEASES, Item, Lease, Leases
from sidecar.placement.table import ConversationTable, Entry
from sidecar.policy.compiled import PlacementSettings
from sidecar.telemetry.counters import Counters

REBIND_SHARE = 0.5
"""A conversation that ran elsewhere follows if its own rank likely holds at most this share of its prompt."""

# The contract's outcomes of a request that ran to its end; an unset one counts so.
_COMPLETED = frozenset({0, 1})
_PROMPT_SIZES = ((1, "unknown"), (2_048, "under_2k"), (16_384, "2k_to_16k"))
_LONG_PROMPT = "16k_and_more"


class Proposal(NamedTuple):
    """A rank for one request, to be committed or dropped."""

    query: Query
    key: PlacementKey
    leg: Leg
    rank: int
    decision: Decision
    at_s: float


class Ticket(NamedTuple):
    """The names that the end of a request will come by."""

    decision_id: str
    item: Item


class Placement:
    """The engines that the sidecar places on, their conversations and requests in flight.

    Args:
        clock: gives seconds that never go back.
        counters: counts what is decided and learned.
        on_pause: hears of each leg that is not placed on for a while, by its phase.

    Attributes:
        legs: the engines' legs.
        table: the conversations.
    """

    def __init__(
        self, clock: Callable[[], float], counters: Counters, on_pause: Callable[[Phase], None]
    ) -> None:
        self._clock = clock
        self._counters = counters
        self._on_pause = on_pause
        self._leases = Leases()
        self.table = ConversationTable(self._count_forgotten)
        self.legs = Legs(self._forget_leg)

    def propose(self, query: Query, key: PlacementKey, settings: PlacementSettings) -> Proposal | None:
        """Returns where a request should go, None while its engine does not follow. Changes nothing.

        Args:
            query: the request; its `dp_size` is known.
            key: what it is placed by.
            settings: the policy's part.
        """
        now_s = self._clock()
        leg = self.legs.get(name_leg(query), query.engine.dp_size, now_s)
        if leg.honour.is_paused(now_s):
            return None
        rank, decision = choose_rank(leg, query, key, self.table, self._leases, settings, now_s)
        return Proposal(query, key, leg, rank, decision, now_s)

    def find_rank(
        self, query: Query, conversation: ConversationHash, settings: PlacementSettings
    ) -> int | None:
        """Returns the rank that a conversation is bound to, None if it is to none."""
        now_s = self._clock()
        leg = self.legs.get(name_leg(query), query.engine.dp_size, now_s)
        entry = find_live(self.table, leg, conversation, settings, now_s)
        return entry.rank if entry is not None else None

    def commit(self, proposal: Proposal, settings: PlacementSettings, ticket: Ticket | None) -> None:
        """Remembers a proposal that was answered.

        Args:
            proposal: made since the last change of this placement.
            settings: the policy's part.
            ticket: opens a lease by these names. Without one no end will come, so the request counts as
                run already and adds no load.
        """
        query, key, leg, _, _, now_s = proposal
        self.legs.keep(leg, now_s)
        attempt = self._leases.find_attempt(leg, query.request_id)
        if attempt is None:
            self._count_decision(proposal)
        else:
            self._close(attempt, "retried")
        entry = self._bind(proposal, settings) if key.conversation else None
        if ticket is not None:
            self._open(proposal, entry, ticket)
        elif entry is not None:
            self._settle(entry, entry.rank, query.prompt_tokens, now_s)

    def finish(self, report: FinishReport, stream: int, worker_id: str) -> None:
        """Takes the end of a request. One that holds no lease, or no longer does, changes nothing.

        Args:
            report: what the worker says.
            stream: number of the stream that it came by.
            worker_id: the worker.
        """
        lease = self._find_lease(report, stream, worker_id)
        if lease is None:
            return
        now_s = self._clock()
        self._close(lease, "finished")
        rank = self._locate(lease, report, now_s)
        entry = lease.entry if lease.entry is not None and lease.entry in self.table else None
        if rank is None:
            if entry is not None:
                self.table.use(entry, now_s)
            return
        # A compacted history is shorter than what is resident, and no more of it can be found.
        findable = min(lease.resident_tokens, lease.prompt_tokens)
        if rank == lease.rank and report.cached_tokens is not None and findable:
            lease.leg.learn_retention(report.cached_tokens, findable)
        if entry is not None:
            self._settle(entry, rank, lease.prompt_tokens, now_s)

    def end(self, conversation: ConversationHash) -> int:
        """Forgets a conversation on every leg; returns on how many it was known.

        What is in flight stays outstanding until it ends.
        """
        entries = self.table.find(conversation, self.legs)
        for entry in entries:
            self.table.drop(entry, self._clock())
            self._count_forgotten("ended")
        return len(entries)

    def expire(self, settings: PlacementSettings) -> None:
        """Closes leases, and forgets conversations and legs, whose time is over."""
        now_s = self._clock()
        while (lease := self._leases.oldest) is not None:
            if now_s - lease.opened_at_s <= settings.lease_ttl_s and len(self._leases) < MAX_LEASES:
                break
            self._close(lease, "expired")
            if lease.entry is not None and lease.entry in self.table:
                self._settle(lease.entry, lease.rank, lease.prompt_tokens, now_s)
        self.table.expire(now_s, settings.idle_ttl_s)
        self.legs.expire(now_s, settings.idle_ttl_s)

    def _bind(self, proposal: Proposal, settings: PlacementSettings) -> Entry:
        _, key, leg, rank, decision, now_s = proposal
        entry = self.table.get(leg, key.conversation)
        if entry is not None and entry.rank != rank:
            # Its time was over, so it was proposed for as a new one.
            self.table.drop(entry, now_s)
            entry = None
        if entry is None:
            max_entries = settings.max_conversations
            entry = self.table.add(leg, key.conversation, hash(key.tenant), rank, now_s, max_entries)
            entry.is_established = decision is not Decision.NEW
        else:
            self.table.use(entry, now_s)
        entry.has_moved = False
        return entry

    def _open(self, proposal: Proposal, entry: Entry | None, ticket: Ticket) -> None:
        query, key, leg, rank, decision, now_s = proposal
        resident = 0.0 if entry is None else entry.likely_resident(now_s)
        lease = Lease(
            decision_id=ticket.decision_id,
            item=ticket.item,
            request_id=query.request_id,
            leg=leg,
            conversation=key.conversation,
            entry=entry,
            rank=rank,
            decision=decision,
            prompt_tokens=query.prompt_tokens,
            resident_tokens=resident,
            # The last token at least is always computed; so is that of a prompt of unknown length.
            new_tokens=max(query.prompt_tokens - round(leg.retention * resident), 1),
            may_overflow=0 < query.engine.max_active_requests <= max(leg.loads.requests_in_flight),
            opened_at_s=now_s,
        )
        self._leases.add(lease)
        leg.loads.start_work(rank, lease.new_tokens)
        if entry is not None:
            entry.in_flight += 1

    def _close(self, lease: Lease, why: str) -> None:
        self._leases.remove(lease)
        lease.leg.loads.end_work(lease.rank, lease.new_tokens)
        if lease.entry is not None:
            lease.entry.in_flight -= 1
        self._counters.add("leases_closed", ("why", why))

    def _find_lease(self, report: FinishReport, stream: int, worker_id: str) -> Lease | None:
        if report.decision_id:
            return self._leases.find_decision(report.decision_id)
        if report.seq:
            return self._leases.find_item((stream, report.seq))
        legs = (leg for leg in self.legs if leg.key.worker_id == worker_id and leg.key.phase == report.phase)
        return self._leases.find_earlier(legs, report.request_id, stream)

    def _locate(self, lease: Lease, report: FinishReport, now_s: float) -> int | None:
        """Returns the rank that likely computed the prompt, None if that is not known or none did."""
        phase, leg = lease.leg.key.phase, lease.leg
        is_obeyed = report.decision_id == lease.decision_id
        observed = report.observed_dp_rank
        # On decode it is a rank of the prefill engine.
        if observed is not None and phase is not Phase.DECODE and observed < leg.loads.dp_size:
            if is_obeyed and report.applied_directive == RankDirective.PLACE:
                self._judge(lease, observed, now_s)
            return observed
        if report.applied_directive == RankDirective.PLACE:
            self._counters.add("placed_ranks", _label(phase), ("observed", "unknown"))
        has_run = report.outcome in _COMPLETED or report.cached_tokens is not None
        # A worker that answered itself from memory placed by an earlier answer, hence on the same rank.
        is_obeyed = is_obeyed or (not report.decision_id and report.applied_directive == RankDirective.PLACE)
        is_obeyed = is_obeyed and report.applied_directive != RankDirective.FORWARD
        return lease.rank if has_run and is_obeyed else None

    def _judge(self, lease: Lease, observed: int, now_s: float) -> None:
        """Holds where a request ran against where it was placed."""
        phase, as_placed = lease.leg.key.phase, observed == lease.rank
        if lease.may_overflow and not as_placed:
            # The engine balances what finds its rank full.
            self._counters.add("placed_ranks", _label(phase), ("observed", "overflow"))
            return
        result = "as_placed" if as_placed else "elsewhere"
        self._counters.add("placed_ranks", _label(phase), ("observed", result))
        if lease.leg.honour.observe(lease.opened_at_s, as_placed=as_placed, now_s=now_s):
            self._counters.add("placement_pauses", _label(phase))
            self._on_pause(phase)

    def _settle(self, entry: Entry, rank: int, prompt_tokens: int, now_s: float) -> None:
        """Learns that a prompt of a conversation was computed on a rank."""
        likely = entry.likely_resident(now_s)
        entry.is_established = True
        if rank == entry.rank:
            self.table.settle(entry, rank, prompt_tokens or likely, now_s)
        elif entry.leg.retention * likely <= REBIND_SHARE * prompt_tokens:
            self.table.settle(entry, rank, prompt_tokens, now_s)
            entry.has_moved = True
        else:
            # Overflow: the engine had no room, and most of the prompt is still where it was.
            self.table.use(entry, now_s)

    def _forget_leg(self, leg: Leg) -> None:
        for entry in [entry for entry in self.table if entry.leg is leg]:
            self.table.drop(entry, self._clock())
            self._count_forgotten("engine_gone")

    def _count_forgotten(self, why: str) -> None:
        self._counters.add("conversations_forgotten", ("why", why))

    def _count_decision(self, proposal: Proposal) -> None:
        phase = _label(proposal.leg.key.phase)
        self._counters.add("placements", ("decision", proposal.decision.name.lower()), phase)
        if proposal.decision is Decision.NEW:
            self._counters.add("new_conversations", phase, ("prompt", _size(proposal.query.prompt_tokens)))


def _label(phase: Phase) -> tuple[str, str]:
    return "phase", phase.name.lower()


def _size(prompt_tokens: int) -> str:
    return next((name for limit, name in _PROMPT_SIZES if prompt_tokens < limit), _LONG_PROMPT)
