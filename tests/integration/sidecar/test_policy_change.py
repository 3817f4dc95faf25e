"""A policy that changes while requests come: the real process, a file behind links, and open streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta, timezone
from itertools import groupby
from pathlib import Path

import grpc
import grpc.aio
import pytest

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarProcess
from worker_client import (
    AdpRouter,
    ClientConfig,
    EngineDialect,
    EngineProfile,
    Origin,
    Phase,
    RoutingHintClient,
)

ON = "operational: {mode: on}\n"
SHADOW = "operational: {mode: shadow}\n"
BROKEN = "operational: {mode: onn}\n"
_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS, adp_router=types_pb2.ADP_ROUTER_CONVERSATION
)


class ConfigMap:
    """A policy file as Kubernetes mounts it: a link to a file below a link that is swapped."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.path = folder / "policy.yaml"
        self._versions = 0
        self.write(text)
        self.path.symlink_to("..data/policy.yaml")

    def write(self, text: str) -> None:
        """Puts another version in place, in one step."""
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir()
        (version / "policy.yaml").write_text(text)
        (self.folder / "..new").symlink_to(version.name)
        os.replace(self.folder / "..new", self.folder / "..data")


@pytest.fixture
def config(tmp_path: Path) -> ConfigMap:
    """A mounted policy with mode `on`."""
    return ConfigMap(tmp_path, ON)


@pytest.fixture
def sidecar(start_sidecar_process: Callable[..., SidecarProcess], config: ConfigMap) -> SidecarProcess:
    """The real process on that policy."""
    return start_sidecar_process("--policy", str(config.path))


@pytest.fixture
async def channel(sidecar: SidecarProcess) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to it."""
    async with grpc.aio.insecure_channel(sidecar.target) as opened:
        yield opened


def _batch(seq: int) -> service_pb2.EnrichStreamRequest:
    request = service_pb2.EnrichRequest(
        request_id=f"r-{seq}",
        phase=types_pb2.PHASE_PREFILL,
        identity=types_pb2.Identity(headers={"x-session-id": "conv-7f3a"}),
        engine=_ENGINE,
    )
    return service_pb2.EnrichStreamRequest(items=[service_pb2.EnrichItem(seq=seq, request=request)])


async def _get_policy(channel: grpc.aio.Channel) -> admin_pb2.GetPolicyResponse:
    return await admin_pb2_grpc.RoutingHintsAdminServiceStub(channel).GetPolicy(admin_pb2.GetPolicyRequest())


async def _open_stream(
    channel: grpc.aio.Channel,
) -> tuple[grpc.aio.StreamStreamCall, service_pb2.ClientPolicy]:
    stream = service_pb2_grpc.RoutingHintsServiceStub(channel).EnrichStream()
    await stream.write(service_pb2.EnrichStreamRequest(hello=service_pb2.StreamHello(worker_id="w")))
    return stream, (await stream.read()).policy


async def test_an_idle_stream_hears_of_a_new_policy(channel: grpc.aio.Channel, config: ConfigMap) -> None:
    """A swapped link is seen without a signal, and pushed to a worker that asks nothing."""
    stream, first = await _open_stream(channel)
    config.write(SHADOW)
    message = await stream.read()
    assert message.policy.revision != first.revision
    assert message.policy.identity_epoch == first.identity_epoch
    assert list(message.policy.local_sources) == []
    assert list(message.results) == []
    stream.cancel()


async def test_a_change_under_load_fails_no_request(channel: grpc.aio.Channel, config: ConfigMap) -> None:
    """Every request is answered, by the old policy or by the new one, and each answer says by which."""
    stream, first = await _open_stream(channel)
    revisions: list[str] = []
    changed = False
    seq = 0
    while len(set(revisions)) < 2 or revisions[-1] == first.revision:
        seq += 1
        await stream.write(_batch(seq))
        message = await stream.read()
        while not message.results:
            message = await stream.read()
        (result,) = message.results
        assert result.WhichOneof("outcome") == "response"
        assert result.response.identity_epoch == first.identity_epoch
        shadows = "mode-shadow" in result.response.notices
        assert shadows is (result.response.policy_revision != first.revision)
        revisions.append(result.response.policy_revision)
        if seq == 20 and not changed:
            changed = True
            config.write(SHADOW)
    assert revisions[0] == first.revision
    assert revisions == sorted(revisions, key=lambda revision: revision != first.revision), "it changes once"
    stream.cancel()


async def test_a_broken_file_changes_nothing(
    channel: grpc.aio.Channel, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """Answers stay as they were; log, counter and GetPolicy say what is wrong until a good file comes."""
    stream, first = await _open_stream(channel)
    config.write(BROKEN)
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_rejected")
    await stream.write(_batch(1))
    answered = await stream.read()
    assert answered.results[0].response.policy_revision == first.revision
    assert answered.results[0].response.hints.conversation_id == "conv-7f3a"
    shown = await _get_policy(channel)
    assert shown.revision == first.revision
    assert shown.last_error == "operational.mode: Input should be 'on', 'shadow' or 'off'"
    admin = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
    counters = (await admin.GetStats(admin_pb2.GetStatsRequest())).counters
    rejected = [c.value for c in counters if c.name == "policy_reloads" and c.labels["outcome"] == "rejected"]
    assert len(rejected) == 1
    assert rejected[0] >= 1
    config.write(SHADOW)
    assert (await stream.read()).policy.revision != first.revision
    assert (await _get_policy(channel)).last_error == ""
    stream.cancel()


async def test_a_signal_reloads(
    channel: grpc.aio.Channel, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """SIGHUP does not end the process, and reads the file again."""
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_unchanged")
    config.write(SHADOW)
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_loaded")
    assert "mode: shadow" in (await _get_policy(channel)).yaml


async def test_the_identity_part_changes_at_its_moment(
    channel: grpc.aio.Channel, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """The stream hears of the names of both parts first, and then of the new epoch, with no further file."""
    stream, first = await _open_stream(channel)
    moment = datetime.now(timezone.utc) + timedelta(seconds=5)
    order = "order: [{header: X-Acme}, conversation_id]"
    config.write(f"next_identity: {{effective_at: '{moment.isoformat()}', {order}}}\n")
    sidecar.signal(signal.SIGHUP)
    announced = (await stream.read()).policy
    assert (announced.identity_epoch, announced.revision) == (first.identity_epoch, first.revision)
    assert set(announced.identity_headers) == {*first.identity_headers, "x-acme"}
    swapped = (await stream.read()).policy
    assert datetime.now(timezone.utc) >= moment
    assert swapped.identity_epoch != first.identity_epoch
    assert swapped.revision != first.revision
    assert list(swapped.identity_headers) == ["x-acme", "x-tenant-id"]
    await stream.write(_batch(1))
    answer = (await stream.read()).results[0].response
    assert answer.identity_epoch == swapped.identity_epoch
    assert answer.source == types_pb2.IDENTITY_SOURCE_NONE
    stream.cancel()


async def _name_until_changed(
    name: Callable[[], Awaitable[service_pb2.EnrichResponse]],
) -> list[tuple[str, str, str]]:
    """Revision, epoch and id of each answer, until a hundred of the second epoch have come."""
    seen: list[tuple[str, str, str]] = []
    while sum(answer[1] != seen[0][1] for answer in seen) < 100:
        answer = await name()
        seen.append((answer.policy_revision, answer.identity_epoch, answer.hints.conversation_id))
    return seen


async def test_an_identity_change_under_load_fails_no_request(
    channel: grpc.aio.Channel, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """Each stream and unary caller gets the old name by the old epoch, and from one answer on the new."""
    request = service_pb2.EnrichRequest(
        phase=types_pb2.PHASE_PREFILL,
        identity=types_pb2.Identity(headers={"x-session-id": "old-name", "X-Acme": "new-name"}),
        engine=_ENGINE,
    )
    moment = datetime.now(timezone.utc) + timedelta(seconds=5)
    order = "order: [{header: X-Acme}, conversation_id]"
    config.write(f"next_identity: {{effective_at: '{moment.isoformat()}', {order}}}\n")
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_loaded")

    async def ask_by_stream() -> list[tuple[str, str, str]]:
        stream, _ = await _open_stream(channel)

        async def name() -> service_pb2.EnrichResponse:
            item = service_pb2.EnrichItem(seq=1, request=request)
            await stream.write(service_pb2.EnrichStreamRequest(items=[item]))
            message = await stream.read()
            while not message.results:
                message = await stream.read()
            assert message.results[0].WhichOneof("outcome") == "response"
            return message.results[0].response

        seen = await _name_until_changed(name)
        stream.cancel()
        return seen

    enrich = service_pb2_grpc.RoutingHintsServiceStub(channel).Enrich
    runs = await asyncio.gather(
        ask_by_stream(), ask_by_stream(), ask_by_stream(), _name_until_changed(lambda: enrich(request))
    )
    steps = [[answer for answer, _ in groupby(seen)] for seen in runs]
    assert [[name for _, _, name in each] for each in steps] == [["old-name", "new-name"]] * 4
    assert len({tuple(each) for each in steps}) == 1
    (old_revision, old_epoch, _), (new_revision, new_epoch, _) = steps[0]
    assert old_revision != new_revision
    assert old_epoch != new_epoch


async def test_the_worker_client_follows_a_change(config: ConfigMap, sidecar: SidecarProcess) -> None:
    """A client with an open stream sends a carrier as soon as the policy names it, and names no old id."""
    engine = EngineProfile(dialect=EngineDialect.CONVERSATION_PARAMS, adp_router=AdpRouter.CONVERSATION)
    settings = ClientConfig(
        target=f"unix://{sidecar.socket_path}", known_timeout_s=20.0, unknown_timeout_s=20.0
    )
    headers = {"X-Acme": "new-name", "X-Session-Id": "old-name"}
    async with RoutingHintClient(settings) as client:

        async def name_conversation() -> str | None:
            async with client.plan({}, phase=Phase.PREFILL, engine=engine, headers=headers) as plan:
                assert plan.answer.origin is Origin.SIDECAR
                return plan.conversation_id

        assert await name_conversation() == "old-name"
        config.write("identity: {order: [{header: X-Acme}, conversation_id]}\n")
        sidecar.signal(signal.SIGHUP)
        await asyncio.to_thread(sidecar.wait_for_line, "identity_changed_at_once")
        names = [await name_conversation()]
        while names[-1] is None:
            # The question went out before the push arrived, without the new header.
            names.append(await name_conversation())
        assert names[-1] == "new-name"
        assert set(names[:-1]) <= {None}


async def test_a_change_does_not_disturb_a_stream_whose_peer_is_gone(
    config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """Streams that were cut in any state leave no line in the log when the policy changes."""
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        for _ in range(20):
            stream, _ = await _open_stream(channel)
            stream.cancel()
        kept, _ = await _open_stream(channel)
        config.write(SHADOW)
        sidecar.signal(signal.SIGHUP)
        await kept.read()
        kept.cancel()
    sidecar.signal(signal.SIGTERM)
    assert await asyncio.to_thread(sidecar.wait) == 0
    events = [json.loads(line)["event"] for line in sidecar.lines]
    assert set(events) == {"sidecar_started", "policy_loaded", "sidecar_draining", "sidecar_stopped"}
