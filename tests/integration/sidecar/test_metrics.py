"""The HTTP side of a real sidecar: what a scrape, a liveness probe and a readiness probe get."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

import aiohttp
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from sidecar.address import TcpAddress
from sidecar.fault import ConfigurationError
from sidecar.server.health import Health
from sidecar.server.web import start_web
from tests.support.sidecar import SidecarServer

_ANY_PORT = TcpAddress("127.0.0.1", 0)
_SESSION = "conv-7f3a-secret"


@pytest.fixture
async def watched(start_sidecar: Callable[..., Awaitable[SidecarServer]]) -> SidecarServer:
    """A sidecar with an HTTP side."""
    return await start_sidecar(metrics_listen=_ANY_PORT)


@pytest.fixture
async def stub(watched: SidecarServer) -> AsyncIterator[Any]:
    """A stub of its service."""
    async with grpc.aio.insecure_channel(watched.target) as channel:
        yield service_pb2_grpc.RoutingHintsServiceStub(channel)


async def _get(address: TcpAddress | None, path: str) -> tuple[int, str]:
    assert address is not None
    url = f"http://{address.netloc}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def _scrape(server: SidecarServer) -> dict[str, float]:
    status, text = await _get(server.app.metrics_address, "/metrics")
    assert status == 200
    assert _SESSION not in text
    return {
        sample.name
        + "".join(f" {name}={sample.labels[name]}" for name in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _request(phase: types_pb2.Phase = types_pb2.PHASE_PREFILL, **fields: Any) -> service_pb2.EnrichRequest:
    engine = types_pb2.EngineProfile(
        dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
        adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    )
    identity = types_pb2.Identity(headers={"x-session-id": _SESSION})
    return service_pb2.EnrichRequest(
        phase=phase, engine=engine, identity=identity, prompt_tokens=100, **fields
    )


async def test_decisions_are_counted_by_all_that_an_operator_asks_for(
    watched: SidecarServer, stub: Any
) -> None:
    """Leg, carrier, decision, directive and mode are labels, and the time of each is in the histogram."""
    await stub.Enrich(_request())
    await stub.Enrich(_request(types_pb2.PHASE_DECODE))
    found = await _scrape(watched)
    common = "decision=none directive=withhold mode=on"
    for phase in ("prefill", "decode"):
        assert found[f"routing_hints_decisions_total {common} phase={phase} source=header"] == 1
    assert found["routing_hints_decision_seconds_count"] == 2
    assert found["routing_hints_decision_seconds_sum"] > 0


async def test_explaining_counts_as_nothing(watched: SidecarServer, stub: Any) -> None:
    """Looking at a decision is none."""
    await stub.Explain(service_pb2.ExplainRequest(request=_request()))
    assert not [name for name in await _scrape(watched) if name.startswith("routing_hints_decisions_total")]


async def test_what_became_of_a_stream_is_measured(watched: SidecarServer, stub: Any) -> None:
    """What was applied, observed and cached is as the worker reported it."""
    call = stub.EnrichStream()
    await call.write(service_pb2.EnrichStreamRequest(hello=service_pb2.StreamHello(worker_id="w")))
    await call.read()
    for seq, cached in ((1, 0), (2, 80)):
        item = service_pb2.EnrichItem(seq=seq, request=_request())
        await call.write(service_pb2.EnrichStreamRequest(items=[item]))
        answer = (await call.read()).results[0].response
        finish = service_pb2.Finish(
            phase=types_pb2.PHASE_PREFILL,
            decision_id=answer.decision_id,
            applied_directive=answer.rank_directive,
            id_attached=True,
            observed_dp_rank=3,
            cached_tokens=cached,
            local_reason="sidecar-late" if seq == 2 else "",
        )
        await call.write(service_pb2.EnrichStreamRequest(finishes=[finish]))
    # The answer to a further item says that the message before it was taken.
    item = service_pb2.EnrichItem(seq=3, request=_request())
    await call.write(service_pb2.EnrichStreamRequest(items=[item]))
    await call.read()
    found = await _scrape(watched)
    labels = "applied_directive=withhold decision=none"
    assert found[f"routing_hints_effects_total {labels} effect=first phase=prefill"] == 1
    assert found[f"routing_hints_effects_total {labels} effect=same phase=prefill"] == 1
    assert found[f"routing_hints_cached_tokens_total {labels} phase=prefill"] == 80
    assert found[f"routing_hints_prompt_tokens_total {labels} phase=prefill"] == 200
    assert found["routing_hints_local_reasons_total reason=sidecar-late"] == 1
    assert found["routing_hints_affinity_active phase=prefill"] == 1
    assert found["routing_hints_open_streams"] == 1
    call.cancel()


async def _finish(call: Any, seq: int, request: service_pb2.EnrichRequest, *, id_attached: bool) -> None:
    """Sends a request and its end, which says that the answer was applied with the id or without."""
    item = service_pb2.EnrichItem(seq=seq, request=request)
    await call.write(service_pb2.EnrichStreamRequest(items=[item]))
    answer = (await call.read()).results[0].response
    finish = service_pb2.Finish(
        phase=request.phase,
        decision_id=answer.decision_id,
        applied_directive=answer.rank_directive if id_attached else types_pb2.RANK_DIRECTIVE_FORWARD,
        id_attached=id_attached,
        seq=seq,
    )
    await call.write(service_pb2.EnrichStreamRequest(finishes=[finish]))


async def test_a_later_regression_shows(watched: SidecarServer, stub: Any) -> None:
    """The share of affinity is of a leg's recent requests, so it falls where a worker stops attaching ids."""
    call = stub.EnrichStream()
    await call.write(service_pb2.EnrichStreamRequest(hello=service_pb2.StreamHello(worker_id="w")))
    await call.read()
    for seq in range(200):
        await _finish(call, seq, _request(), id_attached=True)
        await _finish(call, seq, _request(types_pb2.PHASE_DECODE), id_attached=True)
    before = await _scrape(watched)
    for seq in range(200, 351):
        await _finish(call, seq, _request(), id_attached=False)
    # The answer says that the ends before it were taken.
    await _finish(call, 351, _request(types_pb2.PHASE_DECODE), id_attached=True)
    after = await _scrape(watched)
    name = "routing_hints_affinity_active phase="
    assert (before[f"{name}prefill"], before[f"{name}decode"]) == (1, 1)
    assert (after[f"{name}prefill"], after[f"{name}decode"]) == (0.245, 1)
    assert after["routing_hints_withheld_without_id_total"] == 0
    call.cancel()


async def test_placement_shows_its_table_its_load_and_its_skew(watched: SidecarServer, stub: Any) -> None:
    """A long prompt in flight loads one of four ranks; once it has ended its tokens are resident there."""
    call = stub.EnrichStream()
    engine = types_pb2.EngineProfile(
        instance_id="1",
        dialect=types_pb2.ENGINE_DIALECT_RANK_ONLY,
        adp_router=types_pb2.ADP_ROUTER_DEFAULT,
        rank_source=types_pb2.RANK_SOURCE_SIDECAR,
        dp_size=4,
    )
    hello = service_pb2.StreamHello(worker_id="w", engine=engine)
    await call.write(service_pb2.EnrichStreamRequest(hello=hello))
    await call.read()
    request = service_pb2.EnrichRequest(
        phase=types_pb2.PHASE_PREFILL,
        identity=types_pb2.Identity(headers={"x-session-id": _SESSION}),
        prompt_tokens=1_000,
    )
    item = service_pb2.EnrichItem(seq=1, request=request)
    await call.write(service_pb2.EnrichStreamRequest(items=[item]))
    answer = (await call.read()).results[0].response
    assert answer.rank_directive == types_pb2.RANK_DIRECTIVE_PLACE
    rank = answer.hints.dp_rank
    during = await _scrape(watched)
    finish = service_pb2.Finish(
        phase=request.phase,
        decision_id=answer.decision_id,
        applied_directive=answer.rank_directive,
        observed_dp_rank=rank,
        cached_tokens=0,
        seq=1,
    )
    await call.write(service_pb2.EnrichStreamRequest(finishes=[finish]))
    await call.write(service_pb2.EnrichStreamRequest(items=[service_pb2.EnrichItem(seq=2)]))
    await call.read()
    after = await _scrape(watched)
    prefix, leg = "routing_hints_placement", "phase=prefill"
    assert during["routing_hints_placements_total decision=new phase=prefill"] == 1
    assert (during[f"{prefix}_conversations {leg}"], during[f"{prefix}_requests_in_flight {leg}"]) == (1, 1)
    assert during[f"{prefix}_outstanding_tokens {leg} rank={rank}"] == 1_000
    assert during[f"{prefix}_outstanding_skew_percent {leg}"] == 400
    assert (after[f"{prefix}_conversations {leg}"], after[f"{prefix}_requests_in_flight {leg}"]) == (1, 0)
    assert after[f"{prefix}_outstanding_tokens {leg} rank={rank}"] == 0
    assert after[f"{prefix}_resident_tokens {leg} rank={rank}"] == pytest.approx(1_000, rel=0.01)
    assert after[f"{prefix}_resident_skew_percent {leg}"] == 400
    assert after[f"{prefix}_paused {leg}"] == 0
    assert after["routing_hints_placed_ranks_total observed=as_placed phase=prefill"] == 1
    assert after["routing_hints_leases_closed_total why=finished"] == 1
    call.cancel()


async def test_what_must_never_happen_shows_at_zero(watched: SidecarServer) -> None:
    """An alert on a rise needs a value before the rise."""
    found = await _scrape(watched)
    assert found["routing_hints_withheld_without_id_total"] == 0
    assert found["routing_hints_defects_total"] == 0


async def test_the_policy_in_force_is_a_metric(watched: SidecarServer) -> None:
    """Revision, epoch and mode are labels, so that a fleet can be compared."""
    policy = watched.holder.current.compiled
    name = f"identity_epoch={policy.identity_epoch} mode=on revision={policy.revision}"
    found = await _scrape(watched)
    assert found[f"routing_hints_policy_info {name}"] == 1
    assert found[f"routing_hints_build_info version={version('routing-hint-sidecar')}"] == 1


async def test_a_drain_flips_readiness_and_not_liveness() -> None:
    """A draining sidecar is not ready, and nobody must restart it for that."""
    health = Health(("listener", "sigterm"))
    web = await start_web(_ANY_PORT, CollectorRegistry(), health)
    health.set("listener", True)
    health.set("sigterm", True)
    assert await _get(web.address, "/readyz") == (200, "listener: ok\nsigterm: ok\n")
    health.set("sigterm", False)
    assert await _get(web.address, "/readyz") == (503, "listener: ok\nsigterm: not ok\n")
    assert await _get(web.address, "/livez") == (200, "ok\n")
    await web.stop()


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/healthz"])
async def test_other_paths_are_not_found(watched: SidecarServer, path: str) -> None:
    """Nothing else is served there."""
    assert (await _get(watched.app.metrics_address, path))[0] == 404


async def test_a_taken_port_is_said(start_sidecar: Callable[..., Awaitable[SidecarServer]]) -> None:
    """The fault names the option and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = TcpAddress("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigurationError) as raised:
            await start_sidecar(metrics_listen=address)
    assert str(raised.value) == f"metrics-listen: {address}: the port is taken"
