"""The HTTP side of a real sidecar: what a scrape, a liveness probe and a readiness probe get."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry

from routing_hints.address import TcpAddress
from routing_hints.errors import ConfigurationError
from routing_hints.v1 import service_pb2, types_pb2
from sidecar.server.health import Health
from sidecar.server.web import start_web
from tests.support.messages import (
    BALANCING_ENGINE,
    PINNING_ENGINE,
    HintsStub,
    WorkerStream,
    make_finish,
    make_request,
)
from tests.support.scrape import get_page, scrape
from tests.support.sidecar import SidecarServer

_make_pinned = partial(make_request, engine_instance=PINNING_ENGINE.instance_id, prompt_tokens=100)
_make_placed = partial(make_request, engine_instance=BALANCING_ENGINE.instance_id, prompt_tokens=1_000)


@pytest.fixture
async def sidecar(start_sidecar: Callable[..., Awaitable[SidecarServer]]) -> SidecarServer:
    """A sidecar with an HTTP side."""
    return await start_sidecar(metrics_listen="127.0.0.1:0")


async def test_decisions_are_counted_by_phase_carrier_placement_directive_and_mode(
    sidecar: SidecarServer, hints: HintsStub
) -> None:
    for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_DECODE):
        await hints.Enrich(make_request(phase=phase, engine=PINNING_ENGINE))
    found = await scrape(sidecar)
    for phase in ("prefill", "decode"):
        labels = f"directive=withhold mode=on phase={phase} placement=none source=header"
        assert found[f"routing_hints_decisions_total {labels}"] == 1
    assert found["routing_hints_decision_seconds_count"] == 2
    assert found["routing_hints_decision_seconds_sum"] > 0


async def test_an_explanation_is_not_counted(sidecar: SidecarServer, hints: HintsStub) -> None:
    await hints.Explain(service_pb2.ExplainRequest(request=make_request(engine=PINNING_ENGINE)))
    found = await scrape(sidecar)
    assert not [name for name in found if name.startswith("routing_hints_decisions_total")]
    assert found["routing_hints_decision_seconds_count"] == 0


async def test_what_was_applied_observed_and_cached_is_counted_as_reported(
    sidecar: SidecarServer, stream: WorkerStream
) -> None:
    await stream.open(PINNING_ENGINE)
    for cached, reason in ((0, ""), (80, "sidecar-timed-out")):
        (decision,) = await stream.enrich(_make_pinned())
        await stream.finish(
            make_finish(decision, observed_dp_rank=3, cached_tokens=cached, local_reason=reason)
        )
    # The response to a further request says that the messages before it were taken.
    await stream.enrich(_make_pinned())
    found = await scrape(sidecar)
    returns = (
        "routing_hints_conversation_returns_total applied_directive=withhold phase=prefill placement=none"
    )
    assert found[f"{returns} result=first"] == 1
    assert found[f"{returns} result=same"] == 1
    labels = "applied_directive=withhold phase=prefill placement=none"
    assert found[f"routing_hints_cached_tokens_total {labels}"] == 80
    assert found[f"routing_hints_prompt_tokens_total {labels}"] == 200
    assert found["routing_hints_local_reasons_total reason=sidecar-timed-out"] == 1
    assert found["routing_hints_affinity_active_ratio phase=prefill"] == 1
    assert found["routing_hints_open_streams"] == 1


async def test_the_share_of_affinity_falls_where_a_worker_stops_attaching_ids(
    sidecar: SidecarServer, stream: WorkerStream
) -> None:
    """It is a share of a phase's last 200 requests, so that a later regression shows."""
    await stream.open(PINNING_ENGINE)

    async def run(count: int, phase: types_pb2.Phase, *, id_attached: bool) -> None:
        for _ in range(count):
            (decision,) = await stream.enrich(_make_pinned(phase=phase))
            applied = decision.rank_directive if id_attached else types_pb2.RANK_DIRECTIVE_FORWARD
            await stream.finish(
                make_finish(decision, phase=phase, applied_directive=applied, id_attached=id_attached)
            )

    await run(200, types_pb2.PHASE_PREFILL, id_attached=True)
    await run(200, types_pb2.PHASE_DECODE, id_attached=True)
    await stream.enrich(_make_pinned())
    before = await scrape(sidecar)
    await run(151, types_pb2.PHASE_PREFILL, id_attached=False)
    # The response says that the finish reports before it were taken.
    await stream.enrich(_make_pinned())
    after = await scrape(sidecar)
    name = "routing_hints_affinity_active_ratio phase="
    assert (before[f"{name}prefill"], before[f"{name}decode"]) == (1, 1)
    assert (after[f"{name}prefill"], after[f"{name}decode"]) == (0.245, 1)
    assert after["routing_hints_withheld_without_id_total"] == 0


async def test_placement_shows_its_table_its_load_and_its_skew(
    sidecar: SidecarServer, stream: WorkerStream
) -> None:
    """A long prompt in flight loads one of four ranks; once it has ended its tokens are resident there."""
    await stream.open(BALANCING_ENGINE)
    (decision,) = await stream.enrich(_make_placed())
    assert decision.rank_directive == types_pb2.RANK_DIRECTIVE_PLACE
    rank = decision.hints.dp_rank
    during = await scrape(sidecar)
    await stream.exchange(service_pb2.EnrichRequest(), finishes=[make_finish(decision, cached_tokens=0)])
    after = await scrape(sidecar)

    def name(what: str) -> str:
        return f"routing_hints_placement_{what} phase=prefill"

    assert during["routing_hints_placements_total phase=prefill placement=new"] == 1
    assert (during[name("conversations")], during[name("requests_in_flight")]) == (1, 1)
    assert during[f"{name('outstanding_tokens')} rank={rank}"] == 1_000
    assert during[name("outstanding_skew_ratio")] == 4
    assert (after[name("conversations")], after[name("requests_in_flight")]) == (1, 0)
    assert after[f"{name('outstanding_tokens')} rank={rank}"] == 0
    assert after[f"{name('resident_tokens')} rank={rank}"] == pytest.approx(1_000, rel=0.01)
    assert after[name("resident_skew_ratio")] == 4
    assert after[name("paused")] == 0
    assert after["routing_hints_placed_ranks_total observed=as_placed phase=prefill"] == 1
    assert after["routing_hints_leases_closed_total why=finished"] == 1


async def test_what_must_never_happen_shows_at_zero(sidecar: SidecarServer) -> None:
    """An alert on a rise needs a value before the rise."""
    found = await scrape(sidecar)
    assert found["routing_hints_withheld_without_id_total"] == 0
    assert found["routing_hints_internal_errors_total"] == 0


async def test_policy_and_version_are_metrics(sidecar: SidecarServer) -> None:
    """Revision, epoch and mode are labels, so that a fleet can be compared."""
    policy = sidecar.holder.current.compiled
    name = f"identity_epoch={policy.identity_epoch} mode=on revision={policy.revision}"
    found = await scrape(sidecar)
    assert found[f"routing_hints_policy_info {name}"] == 1
    assert found[f"routing_hints_build_info version={version('routing-hint-sidecar')}"] == 1


async def test_a_drain_ends_readiness_and_not_liveness() -> None:
    """A draining sidecar is not ready, and nobody must restart it for that."""
    health = Health(("listener", "accepting"))
    web = await start_web(TcpAddress("127.0.0.1", 0), CollectorRegistry(), health)
    health.set("listener", True)
    health.set("accepting", True)
    assert await get_page(web.address, "/readyz") == (200, "listener: ok\naccepting: ok\n")
    health.set("accepting", False)
    assert await get_page(web.address, "/readyz") == (503, "listener: ok\naccepting: not ok\n")
    assert await get_page(web.address, "/livez") == (200, "ok\n")
    await web.stop()


async def test_readiness_of_a_sidecar_names_its_components(sidecar: SidecarServer) -> None:
    assert await get_page(sidecar.app.metrics_address, "/readyz") == (200, "listener: ok\naccepting: ok\n")


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/healthz"])
async def test_other_paths_are_not_found(sidecar: SidecarServer, path: str) -> None:
    assert (await get_page(sidecar.app.metrics_address, path))[0] == 404


async def test_a_taken_port_is_a_configuration_error_of_its_option(
    start_sidecar: Callable[..., Awaitable[SidecarServer]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = TcpAddress("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigurationError) as raised:
            await start_sidecar(metrics_listen=address.netloc)
    assert str(raised.value) == f"metrics-listen: {address}: the port is taken"
