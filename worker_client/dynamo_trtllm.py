"""Adopts this client in Dynamo's own TensorRT-LLM handlers (`dynamo.trtllm`) without changing them.

    import runpy
    from worker_client.dynamo_trtllm import adopt_handlers

    adopt_handlers()
    runpy.run_module("dynamo.trtllm", run_name="__main__", alter_sys=True)

Dynamo's prefill, decode and aggregated handlers all generate in `HandlerBase._generate_locally_impl`, which
calls `self.engine.llm.generate_async` once. That step is wrapped: the plan is awaited first, then Dynamo's
generator runs on a view of its handler whose `engine.llm.generate_async` has the routing arguments replaced.
`generate` is not wrapped: Dynamo reads its signature to choose the push path, which a wrapper would silently
disable. Source: `request_handlers/handler_base.py` and `push_egress.py` of Dynamo 1.2.1 and 1.6.1.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from types import CodeType
from typing import Any

from routing_hints.errors import ConfigurationError, ConfigurationProblem
from routing_hints.vocabulary import AdpRouter, FinishOutcome, Phase, RankSource
from worker_client._client import RoutingHintClient
from worker_client._engine import EngineProfile, EngineSource
from worker_client._plan import Plan
from worker_client._untrusted_input import as_mapping

_BASE = "dynamo.trtllm.request_handlers.handler_base"
_HANDLERS = "dynamo.trtllm.request_handlers.handlers"
_STEP = "_generate_locally_impl"
_STEP_PARAMETERS = ("self", "request", "context", "embeddings", "ep_disaggregated_params")
_PHASES = {"PREFILL": Phase.PREFILL, "DECODE": Phase.DECODE, "AGGREGATED": Phase.AGGREGATED}
_ROUTING_ARGUMENTS = ("disaggregated_params", "scheduling_params", "conversation_params")


def adopt_handlers(
    client: RoutingHintClient | None = None, *, records_first_rank: bool = False
) -> RoutingHintClient:
    """Makes every handler that Dynamo creates in this process call the client for its requests.

    Call it once, before Dynamo's worker starts.

    Args:
        client: the client to use; by default one with the settings of the environment.
        records_first_rank: see `EngineProfile`.

    Returns:
        The client, for its counters.

    Raises:
        ConfigurationError: the installed Dynamo's handlers do not generate where this module expects it, or
            were adopted before; has a problem for each difference. Nothing is changed then.
    """
    base = _load_handlers()
    client = client or RoutingHintClient.from_env()
    setattr(base, _STEP, _wrap(getattr(base, _STEP), client, records_first_rank))
    return client


def _wrap(
    step: Callable[..., AsyncIterator[Any]], client: RoutingHintClient, records_first_rank: bool
) -> Callable[..., AsyncIterator[Any]]:
    engines: weakref.WeakKeyDictionary[Any, EngineSource] = weakref.WeakKeyDictionary()

    def engine_of(handler: Any) -> EngineSource:
        if handler not in engines:
            engines[handler] = _HandlerEngine(handler, records_first_rank)
        return engines[handler]

    @functools.wraps(step)
    async def generate(
        handler: Any, request: Any, context: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        phase = _PHASES.get(getattr(handler.disaggregation_mode, "name", ""), Phase.UNSPECIFIED)
        async with client.plan(request, context, phase=phase, engine=engine_of(handler)) as plan:
            async with aclosing(
                step(_view_handler(handler, plan), request, context, *args, **kwargs)
            ) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    plan.observe(chunk)
                    yield chunk
                    if isinstance(as_mapping(chunk).get("finish_reason"), dict):
                        plan.finish(FinishOutcome.FAILED)  # Dynamo reports an error as {"error": text}
            if context.is_stopped() or context.is_killed():
                plan.finish(FinishOutcome.CANCELLED)

    generate._routing_hints = True  # type: ignore[attr-defined]
    return generate


class _HandlerEngine:
    """The engine of a handler, with the affinity options of Dynamo's own command line applied.

    The names are those of `HandlerBase.__init__` of Dynamo 1.6.1; older releases have neither option.
    """

    def __init__(self, handler: Any, records_first_rank: bool) -> None:
        engine = handler.engine  # not the handler: it is the key of a weak dictionary that holds this
        self._lazy = EngineProfile.lazy(lambda: engine.llm, records_first_rank=records_first_rank)
        self._is_forced = getattr(handler, "_engine_conversation_affinity_override", False) is True
        self._source = RankSource.UNSPECIFIED
        if getattr(handler, "_conversation_affinity_dp_rank_source", "") == "dynamo":
            self._source = RankSource.ROUTER
        self._detected: EngineProfile | None = None
        self._profile: EngineProfile | None = None

    def current(self) -> EngineProfile | None:
        profile = self._lazy.current()
        if profile is None:
            return None
        if profile is not self._detected:
            self._detected = profile
            router = profile.adp_router
            if self._is_forced and router is AdpRouter.UNKNOWN:
                router = AdpRouter.CONVERSATION
            self._profile = replace(profile, adp_router=router, rank_source=self._source)
        return self._profile


def _view_handler(handler: Any, plan: Plan) -> Any:
    if not plan.is_decided:
        return handler  # nothing was decided, so Dynamo's own arguments are kept
    engine = handler.engine
    llm = engine.llm
    generate_async = llm.generate_async

    @functools.wraps(generate_async)  # Dynamo reads the signature to tell bad requests from bad releases
    def with_hints(*args: Any, **kwargs: Any) -> Any:
        others = {name: value for name, value in kwargs.items() if name not in _ROUTING_ARGUMENTS}
        hints = plan.engine_kwargs(disaggregated_params=kwargs.get("disaggregated_params"))
        return generate_async(*args, **others, **hints)

    return _View(handler, "engine", _View(engine, "llm", _View(llm, "generate_async", with_hints)))


class _View:
    """A view of an object with one attribute replaced; all others are read from and written to the object."""

    __slots__ = ("_name", "_value", "_viewed")

    def __init__(self, viewed: Any, name: str, value: Any) -> None:
        object.__setattr__(self, "_viewed", viewed)
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_value", value)

    def __getattr__(self, name: str) -> Any:
        return self._value if name == self._name else getattr(self._viewed, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._viewed, name, value)


def _load_handlers() -> Any:
    """Returns `HandlerBase` of the installed Dynamo if it generates where `adopt_handlers` expects it.

    Raises:
        ConfigurationError: it does not; has a problem for each difference.
    """
    try:
        module = importlib.import_module(_BASE)
        handlers = importlib.import_module(_HANDLERS)
    except Exception as error:  # importing an engine can fail in any way, not only by ImportError
        problem = ConfigurationProblem("dynamo", f"{_BASE} can't be imported: {error!r}")
        raise ConfigurationError([problem]) from error
    problems = [ConfigurationProblem("dynamo", text) for text in _find_problems(module, handlers)]
    if problems:
        raise ConfigurationError(problems)
    return module.HandlerBase


def _find_problems(module: Any, handlers: Any) -> Iterator[str]:
    base = getattr(module, "HandlerBase", None)
    step = getattr(base, _STEP, None)
    if base is None or not inspect.isasyncgenfunction(step):
        yield f"{_BASE}.HandlerBase.{_STEP} is not an async generator"
        return
    if hasattr(step, "_routing_hints"):
        yield "the handlers were adopted before"
        return
    parameters = tuple(inspect.signature(step).parameters)
    if parameters != _STEP_PARAMETERS:
        yield f"HandlerBase.{_STEP} takes {parameters}, expected {_STEP_PARAMETERS}"
    outer = getattr(base, "generate_locally", None)
    if _STEP not in _names_in(outer):
        yield f"HandlerBase.generate_locally does not call {_STEP}"
    used = _names_in(step)
    for name in ("engine", "llm", "generate_async", "disaggregated_params", "scheduling_params"):
        if name not in used:
            yield f"HandlerBase.{_STEP} does not use {name}"
    if "disaggregation_mode" not in _names_in(base.__init__):
        yield "HandlerBase has no disaggregation_mode"
    modes = getattr(getattr(module, "DisaggregationMode", None), "__members__", ())
    for mode in _PHASES:
        if mode not in modes:
            yield f"{_BASE}.DisaggregationMode has no {mode}"
    for name in ("PrefillHandler", "DecodeHandler", "AggregatedHandler"):
        handler = getattr(handlers, name, None)
        if getattr(handler, _STEP, None) is not step:
            yield f"{_HANDLERS}.{name} does not generate in HandlerBase.{_STEP}"


def _names_in(function: Any) -> frozenset[str]:
    """Returns the names of attributes, keywords and keys that a function uses."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return frozenset()
    names = set(code.co_names)
    for constant in code.co_consts:
        names.update(constant if isinstance(constant, tuple) else (constant,))
    return frozenset(name for name in names if isinstance(name, str))
