"""What a worker holds while one engine request runs: its engine parameters, what is observed, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from routing_hints import tokens
from routing_hints.vocabulary import FinishOutcome, Phase, RankDirective
from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams, assemble_params
from worker_client._gate import GatedEngine
from worker_client._model import Decision
from worker_client._observation import Observation
from worker_client._pending_request import PendingRequest
from worker_client._request import RequestFacts


@dataclass(slots=True)
class PlanRecord:
    """Everything that is known of one plan.

    Attributes:
        facts: the request.
        decision: what is to be done.
        gated: the engine under the operator's settings, None while it does not exist yet.
        pending: what was submitted to the sidecar, None if nothing was.
        reason: why the client decided itself, a reason token; empty if the sidecar did.
        params: the engine parameters last assembled, None before.
        observation: what was observed so far.
    """

    facts: RequestFacts
    decision: Decision
    gated: GatedEngine | None
    pending: PendingRequest | None
    reason: str
    params: EngineParams | None = None
    observation: Observation = field(init=False)

    def __post_init__(self) -> None:
        facts = self.facts
        if facts.phase is Phase.DECODE:
            self.observation = Observation(
                facts.prefill_rank, facts.prefill_cached_tokens, facts.prefill_instance
            )
        else:
            self.observation = Observation(instance=self.gated.profile.instance_id if self.gated else "")

    @property
    def applied_directive(self) -> RankDirective:
        """What was done with the rank; unspecified before engine parameters were assembled."""
        return self.params.applied_directive if self.params is not None else RankDirective.UNSPECIFIED

    @property
    def id_attached(self) -> bool:
        """Whether the last engine parameters hold the conversation id."""
        return self.params is not None and self.params.id_attached


class PlanListener(Protocol):
    """Receives what becomes of plans."""

    def on_params(self, record: PlanRecord, params: EngineParams) -> None:
        """Called when engine parameters were assembled."""

    def on_finish(self, record: PlanRecord, outcome: FinishOutcome) -> None:
        """Called once, when the request ended."""

    def on_internal_error(self, error: Exception) -> None:
        """Called when something failed that the request must not feel."""


class Plan:
    """The decision about one request in one phase. No method raises or waits."""

    def __init__(self, record: PlanRecord, listener: PlanListener) -> None:
        self._record = record
        self._listener = listener
        self._is_finished = False

    @property
    def phase(self) -> Phase:
        """The phase; a decode request without a prefill result counts as aggregated."""
        return self._record.facts.phase

    @property
    def decision(self) -> Decision:
        """What is to be done, and who decided it."""
        return self._record.decision

    @property
    def conversation_id(self) -> str | None:
        """The conversation id to attach, None if none is."""
        return self._record.decision.conversation_id

    @property
    def conversation_hash(self) -> str:
        """Names the conversation in logs; empty without an identity."""
        return self._record.decision.conversation_hash

    @property
    def reason(self) -> str:
        """Why the client decided itself, a token of docs/reference.md; empty if the sidecar did."""
        return self._record.reason

    @property
    def is_decided(self) -> bool:
        """Whether anything was decided; if not, the request goes on as if this library were not there."""
        return self._record.pending is not None and self._record.reason != tokens.CLIENT_INTERNAL_ERROR

    @property
    def notices(self) -> tuple[str, ...]:
        """Tokens for what degraded, of the sidecar and of this client."""
        return (*self._record.decision.notices, *self._record.facts.notices)

    @property
    def applied_directive(self) -> RankDirective:
        """What was done with the rank; unspecified before `engine_kwargs` was called."""
        return self._record.applied_directive

    @property
    def observed_rank(self) -> int | None:
        """The attention-DP rank that computed the prompt, None if none was observed."""
        return self._record.observation.rank

    def engine_kwargs(
        self, *, disaggregated_params: Any = None, scheduling_params: Any = None
    ) -> dict[str, Any]:
        """Returns the routing arguments of `LLM.generate_async`, to be splatted into the call.

        Args:
            disaggregated_params: the worker's `DisaggregatedParams` of this request; kept unchanged.
            scheduling_params: the worker's own `SchedulingParams`, if it has any; kept unchanged, and
                its other fields keep their values.

        Returns:
            Exactly the keys `disaggregated_params` and `scheduling_params`, and `conversation_params` where
            the installed release has that argument and an id is attached.
        """
        record = self._record
        given = {"disaggregated_params": disaggregated_params, "scheduling_params": scheduling_params}
        try:
            params = assemble_params(
                record.decision,
                record.gated.profile if record.gated is not None else EngineProfile(),
                router_rank=record.facts.router_rank,
                keeps_given_id=record.reason == tokens.GATE_OFF,
                disaggregated_params=disaggregated_params,
                scheduling_params=scheduling_params,
            )
        except Exception as error:  # noqa: BLE001  the request goes on with what the caller gave
            self._listener.on_internal_error(error)
            return given
        record.params = params
        try:
            self._listener.on_params(record, params)
        except Exception as error:  # noqa: BLE001  the parameters are good all the same
            self._listener.on_internal_error(error)
        return dict(params.kwargs)

    def observe(self, output: object) -> None:
        """Records where the engine ran the request and what it found in its cache.

        Args:
            output: each output of `generate_async`, or each chunk of a worker in Dynamo's shape.
        """
        if self.phase is Phase.DECODE:
            return  # the prefill worker has reported it already; this engine's figures are others
        try:
            self._record.observation.read(output)
        except Exception as error:  # noqa: BLE001  an odd output must not end the request
            self._listener.on_internal_error(error)

    def finish(self, outcome: FinishOutcome = FinishOutcome.COMPLETED) -> None:
        """Ends the plan; only the first call counts. A block does this by itself."""
        if self._is_finished:
            return
        self._is_finished = True
        try:
            self._listener.on_finish(self._record, outcome)
        except Exception as error:  # noqa: BLE001  an ended request must not fail afterwards
            self._listener.on_internal_error(error)


class PendingPlan:
    """A plan that is being made: enter it with `async with`, or await it and call `finish` yourself."""

    def __init__(self, decide: Callable[[], Coroutine[Any, Any, Plan]]) -> None:
        self._decide = decide
        self._plan: Plan | None = None

    def __await__(self) -> Generator[Any, None, Plan]:
        return self._decide().__await__()

    async def __aenter__(self) -> Plan:
        self._plan = await self
        return self._plan

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the request, without waiting: the block may be left in any task, or by the collector."""
        if self._plan is None:
            return
        if error_type is None:
            outcome = FinishOutcome.COMPLETED
        elif issubclass(error_type, (asyncio.CancelledError, GeneratorExit)):
            outcome = FinishOutcome.CANCELLED
        else:
            outcome = FinishOutcome.FAILED
        self._plan.finish(outcome)
