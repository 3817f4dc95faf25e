"""Where conversations are placed: proposes a rank, commits to it, and learns from how the request ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from routing_hints.conversation_id import ConversationHash
from routing_hints.metrics import MetricStore
from routing_hints.vocabulary import FinishOutcome, Phase, PlacementState, RankDirective
from sidecar.model import FinishReport, PlacementKey, Request
from sidecar.placement.choice import choose_rank, find_live
from sidecar.placement.engine_phase import EnginePhase, EnginePhaseKey, EnginePhases, name_engine_phase
from sidecar.placement.lease import MAX_LEASES, Item, Lease, Leases
from sidecar.placement.settings import PlacementSettings
from sidecar.placement.table import ConversationTable, Entry
from sidecar.telemetry import metrics

REBIND_SHARE = 0.5
"""A conversation that ran elsewhere follows if its own rank likely holds at most this share of its prompt."""

_COMPLETED = (FinishOutcome.UNSPECIFIED, FinishOutcome.COMPLETED)
_PROMPT_SIZES = ((1, "unknown"), (2_048, "under_2k"), (16_384, "2k_to_16k"))
_LONG_PROMPT = "16k_and_more"


class Proposal(NamedTuple):
    """A rank for one request, to be committed or dropped."""

    request: Request
    key: PlacementKey
    engine_phase: EnginePhase
    rank: int
    """Where the conversation is, or is to be, bound."""
    placement: PlacementState
    booked_rank: int
    """Where the request goes; differs from `rank` only if a client applied an older decision."""
    at_s: float


class Ticket(NamedTuple):
    """The names that the end of a request will come by."""

    decision_id: str
    item: Item


class Placement:
    """The engines that the sidecar places on, their conversations and requests in flight.

    Args:
        clock: gives seconds that never go back.
        store: counts what is decided and learned.
        get_settings: gives the policy's placement part.
        on_pause: called with an engine phase that is not placed on for a while.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        store: MetricStore,
        get_settings: Callable[[], PlacementSettings],
        on_pause: Callable[[EnginePhaseKey], None],
    ) -> None:
        self._clock = clock
        self._store = store
        self._get_settings = get_settings
        self._on_pause = on_pause
        self._leases = Leases()
        self._table = ConversationTable(self._count_forgotten)
        self._engine_phases = EnginePhases(self._forget_engine_phase)

    def propose(
        self, request: Request, key: PlacementKey, applied_rank: int | None = None
    ) -> Proposal | None:
        """Returns where a request should go, None while its engine does not follow.

        Changes nothing but what has outlived its time.

        Args:
            request: the request; its `dp_size` is known.
            key: what it is placed by.
            applied_rank: where the client sent it already; None if it waits for the proposal.
        """
        settings = self._expire()
        now_s = self._clock()
        engine_phase = self._engine_phases.get(name_engine_phase(request), request.engine.dp_size, now_s)
        if engine_phase.compliance.is_paused(now_s):
            return None
        rank, placement_state = choose_rank(
            engine_phase, request, key, self._table, self._leases, settings, now_s
        )
        booked_rank = rank if applied_rank is None else applied_rank
        return Proposal(request, key, engine_phase, rank, placement_state, booked_rank, now_s)

    def find_rank(self, request: Request, conversation: ConversationHash) -> int | None:
        """Returns the rank that a conversation is bound to, None if it is to none."""
        now_s = self._clock()
        engine_phase = self._engine_phases.get(name_engine_phase(request), request.engine.dp_size, now_s)
        entry = find_live(self._table, engine_phase, conversation, self._get_settings(), now_s)
        return entry.rank if entry is not None else None

    def commit(self, proposal: Proposal, ticket: Ticket | None) -> None:
        """Remembers a proposal that became the decision.

        Args:
            proposal: made since the last change of this placement.
            ticket: opens a lease by these names. Without one no end will come, so the request counts as
                run already and adds no load.
        """
        request, key, engine_phase, _, _, _, now_s = proposal
        self._engine_phases.keep(engine_phase, now_s)
        attempt = self._leases.find_attempt(engine_phase, request.request_id)
        if attempt is None:
            self._count_decision(proposal)
        else:
            self._close(attempt, "retried")
        entry = self._bind(proposal) if key.conversation else None
        if ticket is not None:
            self._open(proposal, entry, ticket)
        elif entry is not None:
            self._settle(entry, entry.rank, request.prompt_tokens, now_s)

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
        entry = lease.entry if lease.entry is not None and lease.entry in self._table else None
        if rank is None:
            if entry is not None:
                self._table.use(entry, now_s)
            return
        # A compacted history is shorter than what is resident, and no more of it can be found.
        findable = min(lease.resident_tokens, lease.prompt_tokens)
        if rank == lease.rank and report.cached_tokens is not None and findable:
            lease.engine_phase.learn_retention(report.cached_tokens, findable)
        if entry is not None:
            self._settle(entry, rank, lease.prompt_tokens, now_s)

    def end(self, conversation: ConversationHash) -> int:
        """Forgets a conversation in every engine phase; returns how many had it.

        What is in flight stays outstanding until it ends.
        """
        entries = self._table.find(conversation, self._engine_phases)
        for entry in entries:
            self._table.drop(entry, self._clock())
            self._count_forgotten("ended")
        return len(entries)

    def list_used_before(self, use_number: int | None, worker_id: str, limit: int) -> list[Entry]:
        """Returns entries, most recently used first; see `ConversationTable.list_used_before`."""
        self._expire()
        return self._table.list_used_before(use_number, worker_id, limit)

    def find(self, conversation: ConversationHash) -> list[Entry]:
        """Returns the conversation's entries, one for each engine phase that has it."""
        self._expire()
        return self._table.find(conversation, self._engine_phases)

    def list_engine_phases(self) -> list[EnginePhase]:
        """Returns the engine phases, the one used longest ago first."""
        self._expire()
        return list(self._engine_phases)

    def _expire(self) -> PlacementSettings:
        """Ends what has outlived its time: leases, conversations, engine phases. Returns the settings."""
        settings, now_s = self._get_settings(), self._clock()
        while (lease := self._leases.oldest) is not None:
            if now_s - lease.opened_at_s <= settings.lease_ttl_s:
                break
            self._expire_lease(lease, now_s)
        self._table.expire(now_s, settings.idle_ttl_s)
        self._engine_phases.expire(now_s, settings.idle_ttl_s)
        return settings

    def _expire_lease(self, lease: Lease, now_s: float) -> None:
        self._close(lease, "expired")
        if lease.entry is not None and lease.entry in self._table:
            self._settle(lease.entry, lease.rank, lease.prompt_tokens, now_s)

    def _bind(self, proposal: Proposal) -> Entry:
        _, key, engine_phase, rank, placement_state, _, now_s = proposal
        entry = self._table.get(engine_phase, key.conversation)
        if entry is not None and entry.rank != rank:
            # Its time was over, so it was proposed for as a new one.
            self._table.drop(entry, now_s)
            entry = None
        if entry is None:
            max_entries = self._get_settings().max_conversations
            entry = self._table.add(
                engine_phase, key.conversation, hash(key.tenant), rank, now_s, max_entries
            )
            entry.is_established = placement_state is not PlacementState.NEW
        else:
            self._table.use(entry, now_s)
        entry.has_moved = False
        return entry

    def _open(self, proposal: Proposal, entry: Entry | None, ticket: Ticket) -> None:
        request, key, engine_phase, _, placement_state, rank, now_s = proposal
        is_at_home = entry is not None and entry.rank == rank
        resident = entry.likely_resident(now_s) if entry is not None and is_at_home else 0.0
        lease = Lease(
            decision_id=ticket.decision_id,
            item=ticket.item,
            request_id=request.request_id,
            engine_phase=engine_phase,
            conversation=key.conversation,
            entry=entry,
            rank=rank,
            placement=placement_state,
            prompt_tokens=request.prompt_tokens,
            resident_tokens=resident,
            # The last token at least is always computed; so is that of a prompt of unknown length.
            new_tokens=max(request.prompt_tokens - round(engine_phase.retention * resident), 1),
            may_overflow=0 < request.engine.max_active_requests <= max(engine_phase.loads.requests_in_flight),
            opened_at_s=now_s,
        )
        if len(self._leases) >= MAX_LEASES and (oldest := self._leases.oldest) is not None:
            self._expire_lease(oldest, now_s)
        self._leases.add(lease)
        engine_phase.loads.start_work(rank, lease.new_tokens)
        if entry is not None:
            entry.in_flight += 1

    def _close(self, lease: Lease, why: str) -> None:
        self._leases.remove(lease)
        lease.engine_phase.loads.end_work(lease.rank, lease.new_tokens)
        if lease.entry is not None:
            lease.entry.in_flight -= 1
        self._store.add(metrics.LEASES_CLOSED, why)

    def _find_lease(self, report: FinishReport, stream: int, worker_id: str) -> Lease | None:
        if report.decision_id:
            return self._leases.find_decision(report.decision_id)
        if report.seq:
            return self._leases.find_item((stream, report.seq))
        engine_phases = (
            engine_phase
            for engine_phase in self._engine_phases
            if engine_phase.key.worker_id == worker_id and engine_phase.key.phase == report.phase
        )
        return self._leases.find_earlier(engine_phases, report.request_id, stream)

    def _locate(self, lease: Lease, report: FinishReport, now_s: float) -> int | None:
        """Returns the rank that likely computed the prompt, None if that is not known or none did."""
        phase, engine_phase = lease.engine_phase.key.phase, lease.engine_phase
        is_obeyed = report.decision_id == lease.decision_id
        is_obeyed = is_obeyed or (report.reused and report.applied_dp_rank == lease.rank)
        observed = report.observed_dp_rank
        # On decode it is a rank of the prefill engine.
        if observed is not None and phase is not Phase.DECODE and observed < engine_phase.loads.dp_size:
            if is_obeyed and report.applied_directive == RankDirective.PLACE:
                self._judge(lease, observed, now_s)
            return observed
        if report.applied_directive == RankDirective.PLACE:
            self._store.add(metrics.PLACED_RANKS, _label(phase), "unknown")
        has_run = report.outcome in _COMPLETED or report.cached_tokens is not None
        # A worker that decided from memory placed by an earlier decision, hence on the same rank.
        is_obeyed = is_obeyed or (not report.decision_id and report.applied_directive == RankDirective.PLACE)
        is_obeyed = is_obeyed and report.applied_directive != RankDirective.FORWARD
        return lease.rank if has_run and is_obeyed else None

    def _judge(self, lease: Lease, observed: int, now_s: float) -> None:
        """Compares where a request ran with where it was placed."""
        phase, as_placed = lease.engine_phase.key.phase, observed == lease.rank
        if lease.may_overflow and not as_placed:
            # The engine balances what finds its rank full.
            self._store.add(metrics.PLACED_RANKS, _label(phase), "overflow")
            return
        result = "as_placed" if as_placed else "elsewhere"
        self._store.add(metrics.PLACED_RANKS, _label(phase), result)
        if lease.engine_phase.compliance.observe(lease.opened_at_s, as_placed=as_placed, now_s=now_s):
            self._store.add(metrics.PLACEMENT_PAUSES, _label(phase))
            self._on_pause(lease.engine_phase.key)

    def _settle(self, entry: Entry, rank: int, prompt_tokens: int, now_s: float) -> None:
        """Learns that a prompt of a conversation was computed on a rank."""
        likely = entry.likely_resident(now_s)
        entry.is_established = True
        if rank == entry.rank:
            self._table.settle(entry, rank, prompt_tokens or likely, now_s)
        elif entry.engine_phase.retention * likely <= REBIND_SHARE * prompt_tokens:
            self._table.settle(entry, rank, prompt_tokens, now_s)
            entry.has_moved = True
        else:
            # Overflow: the engine had no room, and most of the prompt is still where it was.
            self._table.use(entry, now_s)

    def _forget_engine_phase(self, engine_phase: EnginePhase) -> None:
        for entry in [entry for entry in self._table if entry.engine_phase is engine_phase]:
            self._table.drop(entry, self._clock())
            self._count_forgotten("engine_gone")

    def _count_forgotten(self, why: str) -> None:
        self._store.add(metrics.CONVERSATIONS_FORGOTTEN, why)

    def _count_decision(self, proposal: Proposal) -> None:
        phase = _label(proposal.engine_phase.key.phase)
        self._store.add(metrics.PLACEMENTS, proposal.placement.name.lower(), phase)
        if proposal.placement is PlacementState.NEW:
            self._store.add(metrics.NEW_CONVERSATIONS, phase, _size(proposal.request.prompt_tokens))


def _label(phase: Phase) -> str:
    return phase.name.lower()


def _size(prompt_tokens: int) -> str:
    return next((name for limit, name in _PROMPT_SIZES if prompt_tokens < limit), _LONG_PROMPT)
