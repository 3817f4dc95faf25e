"""A policy that changes while requests come: the real process, a file behind links, and open streams."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from routing_hints.v1 import admin_pb2, service_pb2, types_pb2
from tests.support.builders import build_profile
from tests.support.messages import (
    CONVERSATION,
    PINNING_ENGINE,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_request,
)
from tests.support.sidecar import SidecarProcess, make_client, read_metric
from tests.support.wait import wait_until
from worker_client import Origin, Phase

ON = "operational: {mode: on}\n"
SHADOW = "operational: {mode: shadow}\n"
BROKEN = "operational: {mode: onn}\n"
ACME = "order: [{header: X-Acme}, conversation_id]"
_make_request = partial(make_request, engine=PINNING_ENGINE)


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


async def _get_policy(admin: AdminStub) -> admin_pb2.GetPolicyResponse:
    shown: admin_pb2.GetPolicyResponse = await admin.GetPolicy(admin_pb2.GetPolicyRequest())
    return shown


async def _schedule(config: ConfigMap, sidecar: SidecarProcess) -> datetime:
    """Announces another identity policy; returns the moment from which it holds."""
    moment = datetime.now(timezone.utc) + timedelta(seconds=5)
    config.write(f"next_identity: {{effective_at: '{moment.isoformat()}', {ACME}}}\n")
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_loaded")
    return moment


async def test_a_new_policy_is_pushed_to_an_idle_stream(stream: WorkerStream, config: ConfigMap) -> None:
    """A swapped link is a change, and needs no signal."""
    first = await stream.open()
    config.write(SHADOW)
    pushed = await stream.read_policy()
    assert pushed.revision != first.revision
    assert pushed.identity_epoch == first.identity_epoch
    assert list(pushed.local_sources) == []


async def test_a_change_under_load_fails_no_request(stream: WorkerStream, config: ConfigMap) -> None:
    """Each is decided by the old policy or by the new one, and each decision says by which."""
    first = await stream.open()
    revisions: list[str] = []

    async def is_changed() -> bool:
        (decision,) = await stream.enrich(_make_request())
        assert decision.identity_epoch == first.identity_epoch
        shadows = "mode-shadow" in decision.notices
        assert shadows is (decision.policy_revision != first.revision)
        revisions.append(decision.policy_revision)
        if len(revisions) == 20:
            config.write(SHADOW)
        return shadows

    await wait_until(is_changed, lambda: f"the change, over {len(revisions)} requests", pause_s=0)
    for _ in range(20):
        await is_changed()
    assert [revision for revision, _ in groupby(revisions)] == [first.revision, revisions[-1]]


async def test_a_broken_file_changes_nothing(
    stream: WorkerStream, admin: AdminStub, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """Log, counter and GetPolicy say what is wrong until a good file comes."""
    first = await stream.open()
    config.write(BROKEN)
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_rejected")
    (decision,) = await stream.enrich(_make_request())
    assert decision.policy_revision == first.revision
    assert decision.hints.conversation_id == CONVERSATION
    shown = await _get_policy(admin)
    assert shown.revision == first.revision
    assert shown.last_error == "operational.mode: Input should be 'on', 'shadow' or 'off'"
    reloads = await read_metric(admin, "policy_reloads")
    assert set(reloads) == {"rejected"}
    assert await read_metric(admin, "policy_rejected") == {"": 1}
    config.write(SHADOW)
    assert (await stream.read_policy()).revision != first.revision
    assert (await _get_policy(admin)).last_error == ""
    assert await read_metric(admin, "policy_rejected") == {"": 0}


async def test_sighup_reads_the_file_again(
    admin: AdminStub, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_unchanged")
    config.write(SHADOW)
    sidecar.signal(signal.SIGHUP)
    await asyncio.to_thread(sidecar.wait_for_line, "policy_loaded")
    assert "mode: shadow" in (await _get_policy(admin)).yaml


async def test_the_identity_part_changes_at_its_moment(
    stream: WorkerStream, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """The stream gets the names of both parts first, and then the new epoch, with no further file."""
    first = await stream.open()
    moment = await _schedule(config, sidecar)
    announced = await stream.read_policy()
    assert (announced.identity_epoch, announced.revision) == (first.identity_epoch, first.revision)
    assert set(announced.identity_headers) == {*first.identity_headers, "x-acme"}
    changed = await stream.read_policy()
    assert datetime.now(timezone.utc) >= moment
    assert changed.identity_epoch != first.identity_epoch
    assert changed.revision != first.revision
    assert list(changed.identity_headers) == ["x-acme", "x-tenant-id"]
    (decision,) = await stream.enrich(_make_request())
    assert decision.identity_epoch == changed.identity_epoch
    assert decision.source == types_pb2.IDENTITY_SOURCE_NONE


async def _enrich_until_changed(
    enrich: Callable[[], Awaitable[service_pb2.EnrichResponse]],
) -> list[tuple[str, str, str]]:
    """Revision, epoch and id of each decision, until a hundred of the second epoch have come."""
    seen: list[tuple[str, str, str]] = []

    async def is_changed() -> bool:
        decision = await enrich()
        seen.append((decision.policy_revision, decision.identity_epoch, decision.hints.conversation_id))
        return seen[-1][1] != seen[0][1]

    await wait_until(is_changed, "the second epoch", pause_s=0)
    for _ in range(100):
        await is_changed()
    return seen


async def test_an_identity_change_under_load_fails_no_request(
    hints: HintsStub, config: ConfigMap, sidecar: SidecarProcess
) -> None:
    """Streams and single calls get the old id by the old epoch, and from one decision on the new."""
    request = _make_request(identity=types_pb2.Identity(headers={"x-session-id": "old", "X-Acme": "new"}))
    streams = [WorkerStream(hints) for _ in range(3)]
    for stream in streams:
        await stream.open()
    await _schedule(config, sidecar)

    def enrich_by(stream: WorkerStream) -> Callable[[], Awaitable[service_pb2.EnrichResponse]]:
        async def enrich() -> service_pb2.EnrichResponse:
            return (await stream.enrich(request))[0]

        return enrich

    runs = await asyncio.gather(
        _enrich_until_changed(lambda: hints.Enrich(request)),
        *(_enrich_until_changed(enrich_by(stream)) for stream in streams),
    )
    steps = [[decision for decision, _ in groupby(seen)] for seen in runs]
    assert [[conversation_id for _, _, conversation_id in each] for each in steps] == [["old", "new"]] * 4
    assert len({tuple(each) for each in steps}) == 1
    (old_revision, old_epoch, _), (new_revision, new_epoch, _) = steps[0]
    assert old_revision != new_revision
    assert old_epoch != new_epoch
    for stream in streams:
        stream.close()


async def test_the_worker_client_follows_a_change(config: ConfigMap, sidecar: SidecarProcess) -> None:
    """It sends a carrier as soon as the policy names it, and attaches no id of the old policy."""
    engine = build_profile()
    headers = {"X-Acme": "new-name", "X-Session-Id": "old-name"}
    async with make_client(sidecar.target) as client:

        async def name_conversation() -> str | None:
            async with client.plan({}, phase=Phase.PREFILL, engine=engine, headers=headers) as plan:
                assert plan.decision.origin is Origin.SIDECAR
                return plan.conversation_id

        assert await name_conversation() == "old-name"
        config.write(f"identity: {{{ACME}}}\n")
        sidecar.signal(signal.SIGHUP)
        await asyncio.to_thread(sidecar.wait_for_line, "identity_policy_changed_without_schedule")
        # A request that goes out before the push arrives is without the new header.
        assert await wait_until(name_conversation, "an id by the new policy") == "new-name"


async def test_a_change_logs_nothing_about_streams_whose_peers_are_gone(
    config: ConfigMap, sidecar: SidecarProcess, open_channel: OpenChannel
) -> None:
    hints = HintsStub(await open_channel(sidecar.target))
    streams = [WorkerStream(hints) for _ in range(21)]
    for stream in streams:
        await stream.open()
    kept = streams.pop()
    for stream in streams:
        stream.close()
    config.write(SHADOW)
    sidecar.signal(signal.SIGHUP)
    await kept.read_policy()
    kept.close()
    sidecar.signal(signal.SIGTERM)
    assert await asyncio.to_thread(sidecar.wait) == 0
    events = [json.loads(line)["event"] for line in sidecar.lines]
    assert [event for event, _ in groupby(events)] == [
        "sidecar_started",
        "stream_opened",
        "policy_loaded",
        "sidecar_draining",
        "sidecar_stopped",
    ]
