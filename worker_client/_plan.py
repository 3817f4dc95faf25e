"""What a worker holds while one engine request runs: its engine parameters, what is observed, and its end."""

from __future__ import annotations

from typing import Any, Protocol

from worker_client._call import Question
from worker_client._engine import EngineProfile
from worker_client._engine_params import EngineParams, assemble_params
from worker_client._gate import OFF, GatedEngine
from worker_client._model import Answer, FinishOutcome, Phase, RankDirective
from worker_client._observation import Observation
from worker_client._request import RequestFacts


class PlanListener(Protocol):
    """Hears what becomes of a plan; the client."""

    def on_params(self, plan: Plan, params: EngineParams) -> None:
        """Called when engine parameters were assembled."""

    def on_finish(self, plan: Plan, outcome: FinishOutcome) -> None:
        """Called once, when the request ended."""

    def on_defect(self, error: Exception) -> None:
        """Called when something failed that the request must not feel."""


class Plan:
    """The decision about one request on one leg. No method raises or waits.

    Attributes:
        facts: what the request said.
        answer: what is to be done.
        gated: the engine under the operator's settings, None while it does not exist yet.
        question: what the sidecar was asked, None if it was not.
        reason: why the client decided itself, a reason token; empty if the sidecar did.
        params: the engine parameters last assembled, None before.
        observation: what was observed so far.
    """

    def __init__(
        self,
        *,
        facts: RequestFacts,
        answer: Answer,
        gated: GatedEngine | None,
        question: Question | None,
        reason: str,
        listener: PlanListener,
    ) -> None:
        self.facts = facts
        self.answer = answer
        self.gated = gated
        self.question = question
        self.reason = reason
        self.params: EngineParams | None = None
        self.observation = _first_observation(facts, self.engine)
        self._listener = listener
        self._is_finished = False

    @property
    def engine(self) -> EngineProfile | None:
        """The engine that runs the request, None while it does not exist yet."""
        return self.gated.profile if self.gated is not None else None

    @property
    def phase(self) -> Phase:
        """The leg: a decode request without a prefill result counts as aggregated."""
        return self.facts.phase

    @property
    def conversation_id(self) -> str | None:
        """The conversation id to attach, None if none is."""
        return self.answer.conversation_id

    @property
    def conversation_hash(self) -> str:
        """Names the conversation in logs; empty without an identity."""
        return self.answer.conversation_hash

    @property
    def notices(self) -> tuple[str, ...]:
        """Tokens for what degraded, of the sidecar and of this client."""
        return (*self.answer.notices, *self.facts.notices)

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
        given = {"disaggregated_params": disaggregated_params, "scheduling_params": scheduling_params}
        try:
            params = assemble_params(
                self.answer,
                self.engine or EngineProfile(),
                router_rank=self.facts.router_rank,
                keeps_given_id=self.reason == OFF,
                disaggregated_params=disaggregated_params,
                scheduling_params=scheduling_params,
            )
        except Exception as error:  # noqa: BLE001  the request goes on with what the caller gave
            self._listener.on_defect(error)
            return given
        self.params = params
        try:
            self._listener.on_params(self, params)
        except Exception as error:  # noqa: BLE001  the parameters are good all the same
            self._listener.on_defect(error)
        return dict(params.kwargs)

    def observe(self, output: object) -> None:
        """Takes note of where the engine ran the request and what it found in its cache.

        Args:
            output: each output of `generate_async`, or each chunk of a worker in Dynamo's shape.
        """
        if self.phase is Phase.DECODE:
            return  # the prefill worker has said it already; this engine's figures are others
        try:
            self.observation.read(output)
        except Exception as error:  # noqa: BLE001  an odd output must not end the request
            self._listener.on_defect(error)

    def finish(self, outcome: FinishOutcome = FinishOutcome.COMPLETED) -> None:
        """Ends the plan; only the first call counts. A block does this by itself."""
        if self._is_finished:
            return
        self._is_finished = True
        try:
            self._listener.on_finish(self, outcome)
        except Exception as error:  # noqa: BLE001  an ended request must not fail afterwards
            self._listener.on_defect(error)

    @property
    def applied_directive(self) -> RankDirective:
        """What was done with the rank; unspecified before engine parameters were asked for."""
        return self.params.applied_directive if self.params is not None else RankDirective.UNSPECIFIED


def _first_observation(facts: RequestFacts, engine: EngineProfile | None) -> Observation:
    if facts.phase is Phase.DECODE:
        return Observation(facts.prefill_rank, facts.prefill_cached_tokens, facts.prefill_instance)
    return Observation(instance=engine.instance_id if engine is not None else "")
