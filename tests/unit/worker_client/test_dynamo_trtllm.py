"""Adoption in Dynamo's handlers, on handlers of the same structure; tests/e2e has Dynamo's own."""

from __future__ import annotations

import enum
import gc
import inspect
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM, install
from routing_hints.v1 import service_pb2
from tests.support.builders import build_request
from worker_client import Affinity, ClientConfig, ConfigurationError, RankDirective
from worker_client.dynamo_trtllm import adopt_handlers
from worker_client.testing import FakeClient

PACKAGE = "dynamo.trtllm.request_handlers"


class DisaggregationMode(enum.Enum):
    """As `dynamo.trtllm.constants` has it."""

    AGGREGATED = "prefill_and_decode"
    PREFILL = "prefill"
    DECODE = "decode"
    ENCODE = "encode"


def make_handlers() -> dict[str, ModuleType]:
    """Returns modules whose classes generate as Dynamo's do."""
    base_module, handlers = ModuleType(f"{PACKAGE}.handler_base"), ModuleType(f"{PACKAGE}.handlers")

    class HandlerBase:
        def __init__(self, llm: Any, mode: DisaggregationMode, **settings: Any) -> None:
            self.engine = SimpleNamespace(llm=llm)
            self.disaggregation_mode = mode
            self.first_generation = True
            vars(self).update(settings)

        async def generate_locally(self, request: Any, context: Any) -> AsyncIterator[Any]:
            async for chunk in self._generate_locally_impl(request, context):
                yield chunk

        async def _generate_locally_impl(
            self, request: Any, context: Any, embeddings: Any = None, ep_disaggregated_params: Any = None
        ) -> AsyncIterator[Any]:
            self.first_generation = False
            generate_async = self.engine.llm.generate_async
            self.signature = inspect.signature(generate_async)
            result = generate_async(
                inputs=request["token_ids"],
                disaggregated_params=None,
                scheduling_params=CONVERSATION_PARAMS.scheduling_params(attention_dp_rank=3),
                priority=0.5,
            )
            async for output in result:
                yield {"token_ids": output.outputs[0].token_ids, "finish_reason": request.get("end", "stop")}

    vars(base_module).update(HandlerBase=HandlerBase, DisaggregationMode=DisaggregationMode)
    for name in ("PrefillHandler", "DecodeHandler", "AggregatedHandler"):
        setattr(handlers, name, type(name, (HandlerBase,), {}))
    return {module.__name__: module for module in (base_module, handlers)}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Makes the handlers importable, and an engine's classes."""
    found = make_handlers()
    parents = ("dynamo", "dynamo.trtllm", PACKAGE)
    for name, module in {**{parent: ModuleType(parent) for parent in parents}, **found}.items():
        monkeypatch.setitem(sys.modules, name, module)
    with install(CONVERSATION_PARAMS):
        yield found


@pytest.fixture
def base(modules: dict[str, ModuleType]) -> Any:
    return modules[f"{PACKAGE}.handler_base"].HandlerBase


class Context:
    """What a handler gets beside the request."""

    stopped = False

    def id(self) -> str:
        return "request-1"

    def is_stopped(self) -> bool:
        return self.stopped

    def is_killed(self) -> bool:
        return False


async def run(base: Any, request: dict[str, Any], context: Any = None, **settings: Any) -> tuple[Any, Any]:
    """Sends a request through an aggregated handler; returns the handler and its engine's call."""
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
    handler = base(llm, settings.pop("mode", DisaggregationMode.AGGREGATED), **settings)
    async for _ in handler.generate_locally(request, context or Context()):
        pass
    return handler, llm.calls[-1]


async def test_the_id_is_attached_the_rank_withheld_and_the_handlers_other_arguments_stay(base: Any) -> None:
    client = FakeClient()
    assert adopt_handlers(client) is client
    _, call = await run(base, build_request(rank=1))
    assert call.conversation_id == "conversation-0001"
    assert call.kwargs["scheduling_params"] is None
    assert call.kwargs["priority"] == 0.5
    assert [finish.outcome for finish in client.finishes] == [service_pb2.FINISH_OUTCOME_COMPLETED]


async def test_what_the_generator_sets_is_set_on_the_handler_and_the_proxy_has_the_engines_signature(
    base: Any,
) -> None:
    adopt_handlers(FakeClient())
    handler, _ = await run(base, build_request(rank=1))
    assert handler.first_generation is False
    assert handler.signature == inspect.signature(FakeLLM.generate_async.__get__(handler.engine.llm))


@pytest.mark.parametrize("request_fields", [{"_HEALTH_CHECK": True}, {}], ids=["health-check", "gate-off"])
async def test_the_handlers_own_arguments_stay_where_nothing_is_decided(
    base: Any, request_fields: dict[str, Any]
) -> None:
    affinity = Affinity.AUTO if request_fields else Affinity.OFF
    adopt_handlers(FakeClient(config=ClientConfig(affinity=affinity)))
    _, call = await run(base, build_request(rank=1, **request_fields))
    assert call.conversation_id is None
    assert call.kwargs["scheduling_params"].attention_dp_rank == 3


async def test_a_handler_of_another_mode_is_left_alone(base: Any) -> None:
    client = FakeClient()
    adopt_handlers(client)
    _, call = await run(base, build_request(rank=1), mode=DisaggregationMode.ENCODE)
    assert client.requests == []
    assert call.kwargs["scheduling_params"].attention_dp_rank == 3


async def test_the_rank_source_of_dynamos_command_line_is_honored(base: Any) -> None:
    """With source `dynamo` the router's rank goes out beside the id, as in Dynamo."""
    adopt_handlers(FakeClient())
    _, call = await run(base, build_request(rank=1), _conversation_affinity_dp_rank_source="dynamo")
    assert call.conversation_id == "conversation-0001"
    assert call.kwargs["scheduling_params"].attention_dp_rank == 1
    assert call.kwargs["scheduling_params"].attention_dp_relax is False


@pytest.mark.parametrize(("is_forced", "attached"), [(True, "conversation-0001"), (False, None)])
async def test_affinity_of_dynamos_command_line_fills_in_a_config_that_can_not_be_read(
    base: Any, is_forced: bool, attached: str | None
) -> None:
    adopt_handlers(FakeClient())
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
    llm.args = SimpleNamespace()  # type: ignore[assignment]
    handler = base(llm, DisaggregationMode.AGGREGATED, _engine_conversation_affinity_override=is_forced)
    async for _ in handler.generate_locally(build_request(rank=1), Context()):
        pass
    assert llm.calls[-1].conversation_id == attached


async def test_an_error_chunk_is_a_failed_request(base: Any) -> None:
    """Dynamo's handlers report an error in a chunk and end normally."""
    client = FakeClient()
    adopt_handlers(client)
    await run(base, build_request(rank=1, end={"error": "no"}))
    assert [finish.outcome for finish in client.finishes] == [service_pb2.FINISH_OUTCOME_FAILED]


async def test_a_stopped_context_is_a_cancelled_request(base: Any) -> None:
    """Dynamo's handlers end normally when a client has gone away; its context says so."""
    client = FakeClient()
    adopt_handlers(client)
    context = Context()
    context.stopped = True
    await run(base, build_request(rank=1), context)
    assert [finish.outcome for finish in client.finishes] == [service_pb2.FINISH_OUTCOME_CANCELLED]


async def test_closing_the_adopted_generator_closes_dynamos_and_ends_the_request_once(base: Any) -> None:
    client = FakeClient()
    adopt_handlers(client)
    llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
    chunks = base(llm, DisaggregationMode.AGGREGATED)._generate_locally_impl(build_request(rank=1), Context())
    await chunks.__anext__()
    await chunks.aclose()
    assert [finish.outcome for finish in client.finishes] == [service_pb2.FINISH_OUTCOME_CANCELLED]
    assert client.stats()["applied"] == {RankDirective.WITHHOLD.name.lower(): 1}


async def test_another_engine_of_a_handler_is_another_instance(base: Any) -> None:
    """As with `EngineProfile.lazy`: its cache is empty."""
    client = FakeClient()
    adopt_handlers(client)
    handler = base(FakeLLM(CONVERSATION_PARAMS, 4, router="conversation"), DisaggregationMode.AGGREGATED)
    for llm in (handler.engine.llm, FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")):
        handler.engine.llm = llm
        async for _ in handler.generate_locally(build_request(rank=1), Context()):
            pass
    assert len({pending.engine.instance_id for pending in client.requests}) == 2


async def test_adopted_handlers_are_not_kept_alive(base: Any) -> None:
    adopt_handlers(FakeClient())
    handler, _ = await run(base, build_request(rank=1))
    reference = weakref.ref(handler)
    del handler
    gc.collect()
    assert reference() is None


def test_a_second_adoption_is_refused(base: Any) -> None:
    """Two plans for one request would be the worker's mistake, so it is named at start."""
    adopt_handlers(FakeClient())
    with pytest.raises(ConfigurationError, match="adopted before"):
        adopt_handlers(FakeClient())


def test_a_missing_dynamo_is_named() -> None:
    with pytest.raises(ConfigurationError, match="handler_base can't be imported"):
        adopt_handlers(FakeClient())


def _lose_step(base: Any) -> None:
    del base._generate_locally_impl


def _rename_parameter(base: Any) -> None:
    async def step(self: Any, request: Any, ctx: Any) -> AsyncIterator[Any]:
        yield self.engine.llm.generate_async(disaggregated_params=ctx, scheduling_params=request)

    base._generate_locally_impl = step


def _call_engine_elsewhere(base: Any) -> None:
    async def step(
        self: Any, request: Any, context: Any, embeddings: Any = None, ep_disaggregated_params: Any = None
    ) -> AsyncIterator[Any]:
        yield self.submit(request, scheduling_params=None, disaggregated_params=None)

    base._generate_locally_impl = step


def _bypass_step(base: Any) -> None:
    async def generate_locally(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        yield self.generate_somehow(request, context)

    base.generate_locally = generate_locally


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_lose_step, "_generate_locally_impl is not an async generator"),
        (_rename_parameter, "takes ('self', 'request', 'ctx')"),
        (_call_engine_elsewhere, "does not use generate_async"),
        (_bypass_step, "generate_locally does not call _generate_locally_impl"),
    ],
)
def test_an_unknown_release_is_refused_and_left_as_it_is(base: Any, change: Any, named: str) -> None:
    change(base)
    before = getattr(base, "_generate_locally_impl", None)
    with pytest.raises(ConfigurationError) as refusal:
        adopt_handlers(FakeClient())
    assert named in str(refusal.value)
    assert getattr(base, "_generate_locally_impl", None) is before


def test_every_difference_is_named_at_once(modules: dict[str, ModuleType], base: Any) -> None:
    handlers = modules[f"{PACKAGE}.handlers"]
    handlers.DecodeHandler._generate_locally_impl = lambda self: None
    modules[f"{PACKAGE}.handler_base"].DisaggregationMode = enum.Enum("Mode", ["PREFILL", "DECODE"])
    with pytest.raises(ConfigurationError) as refusal:
        adopt_handlers(FakeClient())
    assert len(refusal.value.problems) == 2
    assert "DecodeHandler" in str(refusal.value)
    assert "no AGGREGATED" in str(refusal.value)
