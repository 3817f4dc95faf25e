"""Every declared metric is published under its name with its labels and its help, and promtool is content."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc.aio
import pytest
import trustme
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from examples.fake_engine import CONVERSATION_PARAMS, FakeLLM, install
from routing_hints.v1 import service_pb2, types_pb2
from sidecar.app import Clocks
from sidecar.identity.single_use_guard import COHORT_S
from sidecar.telemetry.metrics import TABLE
from tests.support.messages import (
    BALANCING_ENGINE,
    CONVERSATION,
    PINNING_ENGINE,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_applied,
    make_finish,
    make_request,
)
from tests.support.scrape import scrape, scrape_text
from tests.support.sidecar import SidecarServer, get_stats, make_client, sum_metric
from tests.support.wait import wait_until
from worker_client import EngineDialect, EngineProfile, Phase, _metrics
from worker_client.prometheus import StatsCollector

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing; Debian's package prometheus has it"
)
_make_pinned = partial(make_request, engine_instance=PINNING_ENGINE.instance_id, prompt_tokens=100)
_make_placed = partial(make_request, engine_instance=BALANCING_ENGINE.instance_id, prompt_tokens=1_000)


class EveryMetricHarness:
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
            metrics_listen="127.0.0.1:0",
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
        await self._reuse()
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

    async def _reuse(self) -> None:
        (decision,) = await self.stream.enrich(_make_pinned())
        dropped = service_pb2.DroppedRequests(source_detail=decision.source_detail, count=2)
        await self.stream.call.write(service_pb2.EnrichStreamRequest(dropped=[dropped]))
        await self.stream.exchange(_make_pinned(), applied=make_applied(decision))

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
) -> AsyncIterator[EveryMetricHarness]:
    """A sidecar to which everything has happened."""
    harness = EveryMetricHarness(tmp_path, start_sidecar, open_channel)
    await harness.run()
    yield harness
    harness.stream.close()


async def test_every_counter_and_gauge_has_one_name_labels_and_value_in_get_stats_and_in_a_scrape(
    everything: EveryMetricHarness,
) -> None:
    found = await scrape(everything.sidecar)
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


async def test_each_metric_of_a_scrape_has_its_own_help(everything: EveryMetricHarness) -> None:
    families = {
        family.name: family.documentation
        for family in text_string_to_metric_families(await scrape_text(everything.sidecar))
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
async def test_promtool_finds_nothing_in_a_scrape_of_the_sidecar(everything: EveryMetricHarness) -> None:
    _check_by_promtool(await scrape_text(everything.sidecar))


async def _scrape_worker(sidecar: SidecarServer) -> str:
    """Returns what a worker publishes after requests with its sidecar, without it, and of odd kinds."""
    registry = CollectorRegistry()
    with install(CONVERSATION_PARAMS):
        llm = FakeLLM(CONVERSATION_PARAMS, 4, router="conversation")
        engine = EngineProfile.detect(llm)
        async with make_client(sidecar.target) as client:
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
    # These need a sidecar that is late, refuses, corrects or is gone for long, or a client's own error.
    unmoved = {
        "late_decisions",
        "refused_items",
        "reuse_corrected",
        "reuse_dropped",
        "finishes_lost",
        "internal_errors",
    }
    assert declared.keys() - families.keys() == {_metrics.TABLE.prefix + name for name in unmoved}


@needs_promtool
async def test_promtool_finds_nothing_in_a_scrape_of_a_worker(sidecar: SidecarServer) -> None:
    _check_by_promtool(await _scrape_worker(sidecar))


@needs_promtool
def test_promtool_finds_a_metric_without_help() -> None:
    """The control: the checks above can fail."""
    with pytest.raises(AssertionError, match="help text"):
        _check_by_promtool("routing_hints_client_plans_total 1\n")
