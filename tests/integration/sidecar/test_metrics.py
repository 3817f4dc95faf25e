"""The HTTP side of a real sidecar: what a scrape, a liveness probe and a readiness probe get."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
import trustme
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM, install
from routing_hints.address import TcpAddress
from routing_hints.errors import ConfigurationError
from routing_hints.v1 import service_pb2, types_pb2
from sidecar.app import Clocks
from sidecar.identity.single_use_guard import COHORT_S
from sidecar.server.health import Health
from sidecar.server.web import start_web
from sidecar.telemetry.metrics import TABLE
from tests.support.messages import (
    BALANCING_ENGINE,
    CONVERSATION,
    PINNING_ENGINE,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_finish,
    make_request,
)
from tests.support.sidecar import SidecarServer, get_stats, sum_metric
from tests.support.wait import wait_until
from worker_client import ClientConfig, EngineDialect, EngineProfile, Phase, RoutingHintClient, _metrics
from worker_client.prometheus import StatsCollector

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing; Debian's package prometheus has it"
)

_ANY_PORT = "127.0.0.1:0"
_make_pinned = partial(make_request, engine_instance=PINNING_ENGINE.instance_id, prompt_tokens=100)
_make_placed = partial(make_request, engine_instance=BALANCING_ENGINE.instance_id, prompt_tokens=1_000)


@pytest.fixture
async def sidecar(start_sidecar: Callable[..., Awaitable[SidecarServer]]) -> SidecarServer:
    """A sidecar with an HTTP side."""
    return await start_sidecar(metrics_listen=_ANY_PORT)


async def _get(address: TcpAddress | None, path: str) -> tuple[int, str]:
    assert address is not None
    url = f"http://{address.netloc}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def _scrape_text(server: SidecarServer) -> str:
    status, text = await _get(server.app.metrics_address, "/metrics")
    assert status == 200
    assert CONVERSATION not in text
    return text


async def _scrape(server: SidecarServer) -> dict[str, float]:
    """Returns each sample by its name and its sorted labels, as in `name a=1 b=2`."""
    return {
        " ".join([sample.name, *(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))]): (
            sample.value
        )
        for family in text_string_to_metric_families(await _scrape_text(server))
        for sample in family.samples
    }


async def test_decisions_are_counted_by_phase_carrier_placement_directive_and_mode(
    sidecar: SidecarServer, hints: HintsStub
) -> None:
    for phase in (types_pb2.PHASE_PREFILL, types_pb2.PHASE_DECODE):
        await hints.Enrich(make_request(phase=phase, engine=PINNING_ENGINE))
    found = await _scrape(sidecar)
    for phase in ("prefill", "decode"):
        labels = f"directive=withhold mode=on phase={phase} placement=none source=header"
        assert found[f"routing_hints_decisions_total {labels}"] == 1
    assert found["routing_hints_decision_seconds_count"] == 2
    assert found["routing_hints_decision_seconds_sum"] > 0


async def test_an_explanation_is_not_counted(sidecar: SidecarServer, hints: HintsStub) -> None:
    await hints.Explain(service_pb2.ExplainRequest(request=make_request(engine=PINNING_ENGINE)))
    found = await _scrape(sidecar)
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
    found = await _scrape(sidecar)
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
    before = await _scrape(sidecar)
    await run(151, types_pb2.PHASE_PREFILL, id_attached=False)
    # The response says that the finish reports before it were taken.
    await stream.enrich(_make_pinned())
    after = await _scrape(sidecar)
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
    during = await _scrape(sidecar)
    await stream.exchange(service_pb2.EnrichRequest(), finishes=[make_finish(decision, cached_tokens=0)])
    after = await _scrape(sidecar)

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
    found = await _scrape(sidecar)
    assert found["routing_hints_withheld_without_id_total"] == 0
    assert found["routing_hints_internal_errors_total"] == 0


async def test_policy_and_version_are_metrics(sidecar: SidecarServer) -> None:
    """Revision, epoch and mode are labels, so that a fleet can be compared."""
    policy = sidecar.holder.current.compiled
    name = f"identity_epoch={policy.identity_epoch} mode=on revision={policy.revision}"
    found = await _scrape(sidecar)
    assert found[f"routing_hints_policy_info {name}"] == 1
    assert found[f"routing_hints_build_info version={version('routing-hint-sidecar')}"] == 1


class _EveryMetricHarness:
    """A sidecar whose clock the test turns, and events that move every metric of it."""

    def __init__(
        self,
        folder: Path,
        start_sidecar: Callable[..., Awaitable[SidecarServer]],
        open_channel: OpenChannel,
    ) -> None:
        self._policy = folder / "policy.yaml"
        self._folder = folder
        self._start_sidecar = start_sidecar
        self._open_channel = open_channel
        self._now_s = 1_000.0

    async def run(self) -> None:
        """Starts the sidecar and lets everything happen to it."""
        self._policy.write_text("")
        issued = trustme.CA().issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(str(self._folder / "tls.pem"))
        self.sidecar = await self._start_sidecar(
            metrics_listen=_ANY_PORT,
            policy=str(self._policy),
            listen=("tcp://localhost:0",),
            tls_cert=str(self._folder / "tls.pem"),
            tls_key=str(self._folder / "tls.pem"),
            clocks=Clocks(monotonic=lambda: self._now_s),
        )
        channel = await self._open_channel(self.sidecar.target)
        self.hints, self.admin = HintsStub(channel), AdminStub(channel)
        self.stream = WorkerStream(self.hints)
        await self.stream.open(PINNING_ENGINE, BALANCING_ENGINE)
        await self._use_ids_once()
        await self._place_and_pin()
        await self._disobey()
        with pytest.raises(grpc.aio.AioRpcError, match="phase: must be set"):
            await self.hints.Enrich(service_pb2.EnrichRequest())
        await self._change_identity()

    async def _use_ids_once(self) -> None:
        for number in range(100):
            await self.hints.Enrich(make_request(f"used-once-{number}", request_id=f"r-{number}"))
        for _ in range(2):  # ids that join a cohort, and the time that they have to come again
            self._now_s += COHORT_S
            await self.hints.Enrich(make_request())

    async def _place_and_pin(self) -> None:
        names = [f"conversation-{number}" for number in range(4)]
        router = types_pb2.RoutingHints(dp_rank=0)
        final = types_pb2.Identity(session_control=types_pb2.SessionControl(session_id="a", action="close"))
        decisions = await self.stream.enrich(
            *[_make_placed(name) for name in names],
            *[_make_placed(name, hints=router) for name in names],
            _make_placed(identity=final),
            _make_pinned(),
        )
        await self.stream.exchange(
            service_pb2.EnrichRequest(),
            finishes=[
                *[make_finish(one, cached_tokens=7, local_reason="sidecar-timed-out") for one in decisions],
                service_pb2.Finish(decision_id="unknown"),
                service_pb2.Finish(local_reason="x" * 257),
            ],
        )

    async def _disobey(self) -> None:
        for number in range(11):
            (placed,) = await self.stream.enrich(_make_placed(f"moved-{number}"))
            elsewhere = (placed.hints.dp_rank + 1) % 4
            await self.stream.finish(make_finish(placed, observed_dp_rank=elsewhere))

    async def _change_identity(self) -> None:
        self._policy.write_text("identity: {scope: all}")
        self.sidecar.app.reload_policy()

        async def is_changed() -> bool:
            return await sum_metric(self.admin, "identity_changes") > 0

        await wait_until(is_changed, "the new policy")


@pytest.fixture
async def everything(
    tmp_path: Path, start_sidecar: Callable[..., Awaitable[SidecarServer]], open_channel: OpenChannel
) -> AsyncIterator[_EveryMetricHarness]:
    """A sidecar to which everything has happened."""
    harness = _EveryMetricHarness(tmp_path, start_sidecar, open_channel)
    await harness.run()
    yield harness
    harness.stream.close()


async def test_every_counter_and_gauge_has_one_name_labels_and_value_in_get_stats_and_in_a_scrape(
    everything: _EveryMetricHarness,
) -> None:
    found = await _scrape(everything.sidecar)
    declared = {metric.name: metric for metric in TABLE if metric.kind != "histogram"}
    shown = (await get_stats(everything.admin)).metrics
    for series in shown:
        metric = declared[series.name]
        assert set(series.labels) == set(metric.labels)
        suffix = "_total" if metric.kind == "counter" else ""
        labels = (f"{name}={series.labels[name]}" for name in sorted(series.labels))
        assert found.pop(" ".join([TABLE.prefix + series.name + suffix, *labels])) == series.value
    # When a write fails and when the call is cancelled before it is gRPC's choice.
    assert declared.keys() - {series.name for series in shown} <= {"lost_calls"}
    left = {name.partition(" ")[0] for name in found if name.startswith(TABLE.prefix)}
    assert left == {f"routing_hints_decision_seconds_{part}" for part in ("bucket", "count", "sum")}


async def test_each_metric_of_a_scrape_has_its_own_help(everything: _EveryMetricHarness) -> None:
    families = {
        family.name: family.documentation
        for family in text_string_to_metric_families(await _scrape_text(everything.sidecar))
        if family.name.startswith(TABLE.prefix)
    }
    declared = {TABLE.prefix + metric.name: metric.help for metric in TABLE}
    declared.pop("routing_hints_lost_calls")
    families.pop("routing_hints_lost_calls", "")
    assert families == declared
    assert len(set(families.values())) == len(families)


def _check_by_promtool(text: str) -> None:
    """Fails on what Prometheus' own linter has to say."""
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_promtool
async def test_promtool_finds_nothing_in_a_scrape_of_the_sidecar(everything: _EveryMetricHarness) -> None:
    _check_by_promtool(await _scrape_text(everything.sidecar))


async def _scrape_worker(sidecar: SidecarServer) -> str:
    """Returns what a worker publishes after requests with its sidecar, without it, and of odd kinds."""
    registry = CollectorRegistry()
    target = sidecar.target.replace("unix:", "unix://")
    with install(CONVERSATION_PARAMS):
        llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
        engine = EngineProfile.detect(llm)
        settings = ClientConfig(target=target, known_timeout_s=20.0, unknown_timeout_s=20.0)
        async with RoutingHintClient(settings) as client:
            registry.register(StatsCollector(client))

            async def run(session_id: str, phase: Phase = Phase.PREFILL) -> None:
                request = {
                    "token_ids": [1] * 40,
                    "agent_context": {"session_id": session_id},
                    "routing": {"dp_rank": 9},
                }
                params = CONVERSATION_PARAMS.disaggregated_params(request_type="context_only")
                async with client.plan(request, phase=phase, engine=engine) as plan:
                    kwargs = plan.engine_kwargs(disaggregated_params=params)
                    async for output in llm.generate_async(request["token_ids"], **kwargs):
                        plan.observe(output)

            for session_id in (CONVERSATION, CONVERSATION, ""):
                await run(session_id)
            await run(CONVERSATION, Phase.UNSPECIFIED)
            without_params = replace(engine, instance_id="other", dialect=EngineDialect.DISAGGREGATED_PARAMS)
            async with client.plan(
                {"agent_context": {"session_id": CONVERSATION}}, phase=Phase.PREFILL, engine=without_params
            ) as plan:
                plan.engine_kwargs()
            await sidecar.app.stop(drain_timeout_s=0)
            await run(CONVERSATION)
            text = generate_latest(registry).decode()
    assert CONVERSATION not in text
    return text


async def test_a_worker_publishes_every_counter_with_its_own_labels_and_help(sidecar: SidecarServer) -> None:
    declared = {_metrics.TABLE.prefix + metric.name: metric for metric in _metrics.TABLE}
    families = {
        family.name: family for family in text_string_to_metric_families(await _scrape_worker(sidecar))
    }
    for name, family in families.items():
        metric = declared[name]
        assert (family.type, family.documentation) == ("counter", metric.help)
        for sample in family.samples:
            assert sample.name == f"{name}_total"
            assert set(sample.labels) == set(metric.labels)
    assert len({family.documentation for family in families.values()}) == len(families)
    # These need a sidecar that is late, refuses or is gone for long, or an error of the client's own.
    unmoved = {"late_decisions", "refused_items", "finishes_lost", "internal_errors"}
    assert declared.keys() - families.keys() == {_metrics.TABLE.prefix + name for name in unmoved}


@needs_promtool
async def test_promtool_finds_nothing_in_a_scrape_of_a_worker(sidecar: SidecarServer) -> None:
    _check_by_promtool(await _scrape_worker(sidecar))


@needs_promtool
def test_promtool_finds_a_metric_without_help() -> None:
    """The control: the checks above can fail."""
    with pytest.raises(AssertionError, match="help text"):
        _check_by_promtool("routing_hints_client_plans_total 1\n")


async def test_a_drain_ends_readiness_and_not_liveness() -> None:
    """A draining sidecar is not ready, and nobody must restart it for that."""
    health = Health(("listener", "accepting"))
    web = await start_web(TcpAddress("127.0.0.1", 0), CollectorRegistry(), health)
    health.set("listener", True)
    health.set("accepting", True)
    assert await _get(web.address, "/readyz") == (200, "listener: ok\naccepting: ok\n")
    health.set("accepting", False)
    assert await _get(web.address, "/readyz") == (503, "listener: ok\naccepting: not ok\n")
    assert await _get(web.address, "/livez") == (200, "ok\n")
    await web.stop()


async def test_readiness_of_a_sidecar_names_its_components(sidecar: SidecarServer) -> None:
    assert await _get(sidecar.app.metrics_address, "/readyz") == (200, "listener: ok\naccepting: ok\n")


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/healthz"])
async def test_other_paths_are_not_found(sidecar: SidecarServer, path: str) -> None:
    assert (await _get(sidecar.app.metrics_address, path))[0] == 404


async def test_a_taken_port_is_a_configuration_error_of_its_option(
    start_sidecar: Callable[..., Awaitable[SidecarServer]],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = TcpAddress("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigurationError) as raised:
            await start_sidecar(metrics_listen=address.netloc)
    assert str(raised.value) == f"metrics-listen: {address}: the port is taken"
