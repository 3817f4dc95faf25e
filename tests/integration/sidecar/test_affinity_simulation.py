"""The affinity simulation as a whole: real clients, a real sidecar process per worker, small figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("simpy", reason="requirements/bench.txt is not installed")

from bench.affinity import arm as arms
from bench.affinity.arm import Arm, Failure
from bench.affinity.fleet import SidecarFleet
from bench.affinity.observation import Observed, find_flags
from bench.affinity.parameter import load_parameters
from bench.affinity.trial import Outcome, Trial
from bench.affinity.workload import ClosedLoop

pytestmark = pytest.mark.timeout(180)

_SMALL = replace(load_parameters(), concurrency=60, duration_s=12.0, warm_up_s=4.0)
_FLAGS = {
    Failure.NO_ID_ON_CONTEXT: "no id in the context phase",
    Failure.NO_ID_ON_GENERATION: "no id in the generation phase",
    Failure.RANK_FORCED: "rank forced",
    Failure.RANK_WITHHELD_WITHOUT_ID: "conversation_affinity_not_honored",
    Failure.ENGINE_IGNORES_ID: "conversation_affinity_not_honored",
    Failure.NO_IDENTITY_RANK_WITHHELD: "no id in the context phase",
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[SidecarFleet]:
    """Sidecars for all runs of this module."""
    with SidecarFleet() as started:
        yield started


async def _run(fleet: SidecarFleet, arm: Arm, seed: int = 1) -> Outcome:
    return await Trial(_SMALL, ClosedLoop(_SMALL), arm, seed).run(fleet)


@pytest.mark.parametrize("arm", [arms.ENGINE, arms.SIDECAR], ids=lambda arm: arm.name)
async def test_a_seed_repeats_a_run_in_every_figure_and_another_seed_does_not(
    fleet: SidecarFleet, arm: Arm
) -> None:
    """Although the sidecars have the state of the runs before."""
    first, other, second = [await _run(fleet, arm, seed) for seed in (1, 2, 1)]
    assert first == second
    assert first.ttft_s != other.ttft_s


@pytest.mark.parametrize("arm", [arms.ENGINE, arms.SIDECAR], ids=lambda arm: arm.name)
async def test_affinity_keeps_conversations_and_their_prefixes(fleet: SidecarFleet, arm: Arm) -> None:
    before, after = await _run(fleet, arms.BEFORE), await _run(fleet, arm)
    assert after.moved_share == 0.0
    assert before.moved_share > 0.5
    assert after.cached_share > before.cached_share + 0.1


@pytest.mark.parametrize("arm", [arms.ENGINE, arms.LEAST_TOKENS], ids=lambda arm: arm.name)
async def test_affinity_that_works_raises_no_flag(fleet: SidecarFleet, arm: Arm) -> None:
    """The control of the flags."""
    assert find_flags((await _run(fleet, arm)).observed) == []


@pytest.mark.parametrize("failure", _FLAGS, ids=lambda failure: failure.name.lower())
async def test_each_silent_failure_loses_the_gain_of_its_phase_and_is_flagged(
    fleet: SidecarFleet, failure: Failure
) -> None:
    """By the workers' own counters and log lines, since no request fails."""
    arm = next(arm for arm in arms.FAILURES if arm.failure is failure)
    healthy, failed = await _run(fleet, arms.ENGINE), await _run(fleet, arm)
    if failure is Failure.NO_ID_ON_GENERATION:
        assert failed.held_share < healthy.held_share - 0.1
    else:
        assert failed.cached_share < healthy.cached_share - 0.1
    assert _FLAGS[failure] in find_flags(failed.observed)


@pytest.mark.timeout(400)
def test_the_quick_command_writes_tables_figures_and_plots(tmp_path: Path) -> None:
    """With no flag where affinity works, and the right one at each failure."""
    command = [sys.executable, "-m", "bench.affinity", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=380)
    rows = json.loads((tmp_path / "affinity.json").read_text(encoding="utf-8"))
    assert {row["seed"] for part in rows.values() for row in part} == {1}
    flags = {
        row["arm"]: find_flags(Observed(**row["observed"])) for row in rows["policies"] + rows["failures"]
    }
    assert flags[arms.ENGINE.name] == []
    for failure, flag in _FLAGS.items():
        assert flag in flags[failure.value]
    text = (tmp_path / "affinity.md").read_text(encoding="utf-8")
    assert "### Policies" in text
    assert "### Silent failures" in text
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["affinity-ttft.png", "affinity-work.png"]
