"""Reloading the policy: what is a change, what an invalid file does, and the scheduled change of identity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from routing_hints.metrics import MetricStore
from sidecar.policy.file import load_policy
from sidecar.policy.holder import PolicyHolder, activate
from sidecar.policy.reload import PolicyReloader
from sidecar.policy.schema import Policy
from sidecar.telemetry import metrics
from sidecar.telemetry.internal_error_log import InternalErrorLog
from tests.support.metric_values import read_counts, read_gauge

_NOON_S = 1_893_499_200.0
_TWO_PARTS = "identity: {scope: off}\nnext_identity: {effective_at: 2030-01-01T12:00:00Z, scope: all}\n"


class ReloadHarness:
    """A reloader of a file, with a clock that tests move."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.now_s = _NOON_S - 3600
        self.store = MetricStore(metrics.TABLE)
        path.write_text(text)
        self.holder = PolicyHolder(activate(load_policy(path), str(path), now_s=self.now_s))
        self.reloader = PolicyReloader(
            self.holder, path, self.store, InternalErrorLog(self.store), clock=lambda: self.now_s
        )

    async def poll_twice(self) -> None:
        """A change is loaded once two polls agree."""
        await self.reloader.poll()
        await self.reloader.poll()

    @property
    def counts(self) -> tuple[dict[str, float], float]:
        """Reloads by outcome, and changes of the identity part in force."""
        return (
            read_counts(self.store, metrics.POLICY_RELOADS),
            read_counts(self.store, metrics.IDENTITY_CHANGES).get("", 0),
        )

    @property
    def rejected(self) -> dict[str, float]:
        """The gauge that is 1 while the newest file is rejected."""
        return read_gauge(self.store, metrics.POLICY_REJECTED)

    @property
    def mode(self) -> str:
        """The mode in force."""
        return self.holder.current.policy.operational.mode


@pytest.fixture
def harness(tmp_path: Path) -> ReloadHarness:
    return ReloadHarness(tmp_path / "policy.yaml", "operational: {mode: on}\n")


async def test_changed_file_is_loaded_at_the_second_poll(harness: ReloadHarness) -> None:
    await harness.poll_twice()
    harness.path.write_text("operational: {mode: shadow}\n")
    await harness.poll_twice()
    assert (harness.mode, harness.holder.last_error) == ("shadow", "")
    assert harness.counts == ({"loaded": 1}, 0)


async def test_file_that_changed_since_the_last_poll_is_not_loaded(harness: ReloadHarness) -> None:
    """It may be half written, and half of a policy may be a policy, too."""
    await harness.poll_twice()
    harness.path.write_text("")
    await harness.reloader.poll()
    harness.path.write_text("operational: {mode: shadow}\n")
    await harness.reloader.poll()
    assert harness.mode == "on"
    await harness.reloader.poll()
    assert harness.counts == ({"loaded": 1}, 0)
    assert harness.mode == "shadow"


async def test_swapped_symbolic_link_above_the_file_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes updates a ConfigMap."""
    for name, mode in (("..1", "on"), ("..2", "shadow")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(f"operational: {{mode: {mode}}}\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    holder = PolicyHolder(activate(load_policy(tmp_path / "policy.yaml"), now_s=0.0))
    store = MetricStore(metrics.TABLE)
    reloader = PolicyReloader(holder, tmp_path / "policy.yaml", store, InternalErrorLog(store))
    for _ in range(2):
        await reloader.poll()
    (tmp_path / "..new").symlink_to("..2")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    for _ in range(2):
        await reloader.poll()
    assert holder.current.policy.operational.mode == "shadow"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("operational: {mode: onn, x: 1}\n", "operational.mode: Input should be 'on', 'shadow' or 'off'"),
        ("operational: [\n", "policy: is not YAML"),
    ],
)
async def test_invalid_file_changes_nothing_and_is_visible_until_a_valid_one_comes(
    harness: ReloadHarness, text: str, error: str
) -> None:
    await harness.poll_twice()
    before = harness.holder.current
    harness.path.write_text(text)
    await harness.poll_twice()
    assert harness.holder.current is before
    assert harness.holder.last_error.startswith(error)
    assert harness.counts == ({"rejected": 1}, 0)
    assert harness.rejected == {"": 1}
    await harness.poll_twice()
    assert harness.counts == ({"rejected": 1}, 0), "one file is rejected once"
    harness.path.write_text("operational: {mode: off}\n")
    await harness.poll_twice()
    assert (harness.mode, harness.holder.last_error) == ("off", "")
    assert harness.rejected == {"": 0}


async def test_last_error_has_every_problem_of_an_invalid_file(harness: ReloadHarness) -> None:
    harness.path.write_text("operational: {mode: onn}\nidentity: {scope: some}\n")
    await harness.poll_twice()
    assert [line.partition(":")[0] for line in harness.holder.last_error.splitlines()] == [
        "operational.mode",
        "identity.scope",
    ]


async def test_file_that_was_removed_changes_nothing_and_is_named(harness: ReloadHarness) -> None:
    await harness.poll_twice()
    harness.path.unlink()
    await harness.poll_twice()
    assert harness.mode == "on"
    assert harness.holder.last_error.endswith("policy.yaml: No such file or directory")


async def test_request_to_reload_loads_at_once_and_says_where_nothing_changed(harness: ReloadHarness) -> None:
    """That is SIGHUP."""
    harness.path.write_text("operational: {mode: shadow}\n")
    await harness.reloader.poll(is_requested=True)
    assert harness.mode == "shadow"
    await harness.reloader.poll(is_requested=True)
    assert harness.counts == ({"loaded": 1, "unchanged": 1}, 0)


async def test_file_with_an_equal_policy_replaces_nothing(harness: ReloadHarness) -> None:
    before = harness.holder.current
    harness.path.write_text("operational: {mode: on}  # the same\n")
    await harness.poll_twice()
    assert harness.holder.current is before
    assert harness.counts == ({}, 0)


async def test_operational_part_changes_at_once_and_the_identity_part_at_its_time(
    harness: ReloadHarness,
) -> None:
    epoch = harness.holder.current.compiled.identity_epoch
    harness.path.write_text(
        "operational: {mode: shadow}\nnext_identity: {effective_at: 2030-01-01T12:00:00Z, scope: all}\n"
    )
    await harness.poll_twice()
    assert (harness.mode, harness.holder.current.compiled.identity_epoch) == ("shadow", epoch)
    harness.now_s = _NOON_S - 0.001
    await harness.reloader.poll()
    assert harness.holder.current.compiled.identity_epoch == epoch
    harness.now_s = _NOON_S
    await harness.reloader.poll()
    assert harness.holder.current.compiled.identity_epoch != epoch
    assert harness.counts == ({"loaded": 1}, 1)


async def test_scheduled_change_sets_the_event_of_those_who_wait(tmp_path: Path) -> None:
    """The file was loaded before, and the policy says so."""
    harness = ReloadHarness(tmp_path / "policy.yaml", _TWO_PARTS)
    change, loaded_at = harness.holder.next_change, harness.holder.current.loaded_at
    harness.now_s = _NOON_S + 5
    await harness.reloader.poll()
    assert change.is_set()
    assert not harness.holder.next_change.is_set()
    assert harness.holder.current.loaded_at == loaded_at


async def test_sidecar_that_starts_after_a_scheduled_change_agrees_with_the_others(tmp_path: Path) -> None:
    early = ReloadHarness(tmp_path / "policy.yaml", _TWO_PARTS)
    late = activate(load_policy(early.path), now_s=_NOON_S + 1).compiled
    assert early.holder.current.compiled.identity_epoch != late.identity_epoch
    early.now_s = _NOON_S
    await early.reloader.poll()
    assert early.holder.current.compiled == late


async def test_identity_part_without_a_schedule_changes_at_once_with_a_warning(
    harness: ReloadHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sidecars that load the file later differ until then."""
    harness.path.write_text("identity: {scope: all}\n")
    await harness.poll_twice()
    assert harness.counts == ({"loaded": 1}, 1)
    assert "identity_policy_changed_without_schedule" in "".join(capfd.readouterr())


async def test_request_to_reload_the_embedded_policy_changes_nothing_and_says_why(
    capfd: pytest.CaptureFixture[str],
) -> None:
    holder, store = PolicyHolder(activate(Policy())), MetricStore(metrics.TABLE)
    before = holder.current
    await PolicyReloader(holder, None, store, InternalErrorLog(store)).poll(is_requested=True)
    assert holder.current is before
    assert "policy_not_reloaded" in "".join(capfd.readouterr())
