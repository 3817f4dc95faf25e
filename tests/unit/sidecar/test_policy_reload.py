"""Reloading the policy: what counts as a change, what a bad file does, and the swap of the identity part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.policy.file import load_policy
from sidecar.policy.file_watch import FileWatch
from sidecar.policy.holder import PolicyHolder, activate
from sidecar.policy.reload import PolicyReloader
from sidecar.policy.schema import Policy
from sidecar.server.error_boundary import DefectLog
from sidecar.telemetry.counters import Counters

_NOON_S = 1_893_499_200.0
_TWO_PARTS = "identity: {scope: off}\nnext_identity: {effective_at: 2030-01-01T12:00:00Z, scope: all}\n"


class Running:
    """A reloader on a file, and a clock that stands still until told otherwise."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.now_s = _NOON_S - 3600
        self.counters = Counters()
        path.write_text(text)
        self.holder = PolicyHolder(activate(load_policy(path), str(path), now_s=self.now_s))
        self.reloader = PolicyReloader(
            self.holder, path, self.counters, DefectLog(self.counters), clock=lambda: self.now_s
        )

    async def look_twice(self) -> None:
        """A change counts when it is seen at rest."""
        await self.reloader.look()
        await self.reloader.look()

    @property
    def counted(self) -> dict[str, int]:
        """Reloads by outcome, and changes of the identity part."""
        return {
            dict(labels).get("outcome", name): value
            for name, labels, value in self.counters
            if name in ("policy_reloads", "identity_changes")
        }

    def read_gauge(self, name: str) -> list[tuple[object, float]]:
        """Labels and values of a gauge."""
        return [(labels, value) for gauge, labels, value in self.counters.read_gauges() if gauge == name]

    @property
    def mode(self) -> str:
        """The mode in force."""
        return self.holder.current.policy.operational.mode


@pytest.fixture
def running(tmp_path: Path) -> Running:
    """Runs on a policy with the mode `on`."""
    return Running(tmp_path / "policy.yaml", "operational: {mode: on}\n")


async def test_a_changed_file_is_in_force(running: Running) -> None:
    """The second look at the new file reads it."""
    await running.look_twice()
    running.path.write_text("operational: {mode: shadow}\n")
    await running.look_twice()
    assert (running.mode, running.holder.last_error) == ("shadow", "")
    assert running.counted == {"loaded": 1}


async def test_a_file_that_is_being_written_is_not_read(running: Running) -> None:
    """A file that changed since the last look is left alone: half of it may be a policy too."""
    await running.look_twice()
    running.path.write_text("")
    await running.reloader.look()
    running.path.write_text("operational: {mode: shadow}\n")
    await running.reloader.look()
    assert running.mode == "on"
    await running.reloader.look()
    assert running.counted == {"loaded": 1}
    assert running.mode == "shadow"


async def test_a_swapped_symlink_is_a_change(tmp_path: Path) -> None:
    """Kubernetes replaces a link in the path above the file, and the file's own name stays."""
    for name, mode in (("..1", "on"), ("..2", "shadow")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(f"operational: {{mode: {mode}}}\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    holder = PolicyHolder(activate(load_policy(tmp_path / "policy.yaml"), now_s=0.0))
    counters = Counters()
    reloader = PolicyReloader(holder, tmp_path / "policy.yaml", counters, DefectLog(counters))
    for _ in range(2):
        await reloader.look()
    (tmp_path / "..new").symlink_to("..2")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    for _ in range(2):
        await reloader.look()
    assert holder.current.policy.operational.mode == "shadow"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("operational: {mode: onn, x: 1}\n", "operational.mode: Input should be 'on', 'shadow' or 'off'"),
        ("operational: [\n", "policy: is not YAML"),
    ],
)
async def test_a_bad_file_changes_nothing_and_is_seen(running: Running, text: str, error: str) -> None:
    """The policy before it stays; the error, the counter and the gauge say so until a good file comes."""
    await running.look_twice()
    before = running.holder.current
    running.path.write_text(text)
    await running.look_twice()
    assert running.holder.current is before
    assert running.holder.last_error.startswith(error)
    assert running.counted == {"rejected": 1}
    assert running.read_gauge("policy_rejected") == [((), 1)]
    await running.look_twice()
    assert running.counted == {"rejected": 1}, "it is said once"
    running.path.write_text("operational: {mode: off}\n")
    await running.look_twice()
    assert (running.mode, running.holder.last_error) == ("off", "")
    assert running.read_gauge("policy_rejected") == [((), 0)]


async def test_all_faults_of_a_bad_file_are_kept(running: Running) -> None:
    """One fault a line, as at the start."""
    running.path.write_text("operational: {mode: onn}\nidentity: {scope: some}\n")
    await running.look_twice()
    assert [line.partition(":")[0] for line in running.holder.last_error.splitlines()] == [
        "operational.mode",
        "identity.scope",
    ]


async def test_a_file_that_went_away_changes_nothing(running: Running) -> None:
    """The policy stays, and the error names the file."""
    await running.look_twice()
    running.path.unlink()
    await running.look_twice()
    assert running.mode == "on"
    assert running.holder.last_error.endswith("policy.yaml: No such file or directory")


async def test_asking_reads_at_once(running: Running) -> None:
    """SIGHUP reads the file without waiting for it to rest, and says so where nothing changed."""
    running.path.write_text("operational: {mode: shadow}\n")
    await running.reloader.look(is_asked=True)
    assert running.mode == "shadow"
    await running.reloader.look(is_asked=True)
    assert running.counted == {"loaded": 1, "unchanged": 1}


async def test_a_touched_file_is_no_change(running: Running) -> None:
    """Equal content replaces nothing."""
    before = running.holder.current
    running.path.write_text("operational: {mode: on}  # the same\n")
    await running.look_twice()
    assert running.holder.current is before
    assert running.counted == {}


async def test_the_operational_part_changes_at_once_and_the_identity_part_in_time(running: Running) -> None:
    """One file can do both: mode now, identity at its moment."""
    epoch = running.holder.current.compiled.identity_epoch
    running.path.write_text(
        "operational: {mode: shadow}\nnext_identity: {effective_at: 2030-01-01T12:00:00Z, scope: all}\n"
    )
    await running.look_twice()
    assert (running.mode, running.holder.current.compiled.identity_epoch) == ("shadow", epoch)
    running.now_s = _NOON_S - 0.001
    await running.reloader.look()
    assert running.holder.current.compiled.identity_epoch == epoch
    running.now_s = _NOON_S
    await running.reloader.look()
    assert running.holder.current.compiled.identity_epoch != epoch
    assert running.counted == {"loaded": 1, "identity_changes": 1}


async def test_a_change_tells_whoever_waits(tmp_path: Path) -> None:
    """The event of the holder is set by a swap of the identity part, and the next one is another event."""
    running = Running(tmp_path / "policy.yaml", _TWO_PARTS)
    change, loaded_at = running.holder.next_change, running.holder.current.loaded_at
    running.now_s = _NOON_S + 5
    await running.reloader.look()
    assert change.is_set()
    assert not running.holder.next_change.is_set()
    assert running.holder.current.loaded_at == loaded_at


async def test_a_sidecar_that_starts_late_agrees(tmp_path: Path) -> None:
    """One that starts before the moment waits with the others, one that starts after it has the next part."""
    early = Running(tmp_path / "policy.yaml", _TWO_PARTS)
    late = activate(load_policy(early.path), now_s=_NOON_S + 1).compiled
    assert early.holder.current.compiled.identity_epoch != late.identity_epoch
    early.now_s = _NOON_S
    await early.reloader.look()
    assert early.holder.current.compiled == late


async def test_an_identity_part_without_a_moment_changes_at_once_and_warns(
    running: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sidecars that read the file later differ until then, which the log says."""
    running.path.write_text("identity: {scope: all}\n")
    await running.look_twice()
    assert running.counted == {"loaded": 1, "identity_changes": 1}
    assert "identity_changed_at_once" in "".join(capfd.readouterr())


async def test_an_embedded_policy_has_nothing_to_reload(capfd: pytest.CaptureFixture[str]) -> None:
    """Asking for it changes nothing and says why."""
    holder, counters = PolicyHolder(activate(Policy())), Counters()
    before = holder.current
    await PolicyReloader(holder, None, counters, DefectLog(counters)).look(is_asked=True)
    assert holder.current is before
    assert "policy_not_reloaded" in "".join(capfd.readouterr())


def test_an_equal_stamp_is_no_change(tmp_path: Path) -> None:
    """A file that was taken is not reported until it becomes another one."""
    path = tmp_path / "file"
    path.write_text("a")
    watch = FileWatch(path)
    assert [watch.has_changed(), watch.has_changed()] == [False, True]
    watch.take()
    assert not watch.has_changed()
    other = tmp_path / "other"
    other.write_text("a")
    os.replace(other, path)
    assert [watch.has_changed(), watch.has_changed()] == [False, True]
