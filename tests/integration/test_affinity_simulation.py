"""The affinity simulation as a whole: real clients, a real sidecar process per worker, small figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("simpy", reason="requirements/bench.txt is not installed")

from bench.affinity import arm as arms
from bench.affinity.arm import Arm, Failure
from bench.affinity.fleet import SidecarFleet
from bench.affinity.observation import find_flags
from bench.affinity.parameter import load_parameters
from bench.affinity.trial import Outcome, Trial
from bench.affinity.workload import ClosedLoop

pytestmark = pytest.mark.timeout(180)

_SMALL = replace(load_parameters(), concurrency=60, duration_s=12.0, warm_up_s=4.0)
_FLAGS = {
    Failure.NO_ID_ON_CONTEXT: "no id on the context leg",
    Failure.NO_ID_ON_GENERATION: "no id on the generation leg",
    Failure.RANK_FORCED: "rank forced",
    Failure.RANK_WITHHELD_WITHOUT_ID: "conversation_affinity_not_honoured",
    Failure.ENGINE_IGNORES_ID: "conversation_affinity_not_honoured",
    Failure.NO_IDENTITY_RANK_WITHHELD: "no id on the context leg",
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[SidecarFleet]:
    """Sidecars for all runs of this module."""
    with SidecarFleet() as started:
        yield started


async def _run(fleet: SidecarFleet, arm: Arm, seed: int = 1) -> Outcome:
    return await Trial(_SMALL, ClosedLoop(_SMALL), arm, seed).run(fleet)


@pytest.mark.parametrize("arm", [arms.ENGINE, arms.SIDECAR], ids=lambda arm: arm.name)
async def test_a_seed_repeats_a_run_exactly(fleet: SidecarFleet, arm: Arm) -> None:
    """Two runs on the same sidecars are equal in every figure, and another seed's is not."""
    first, other, second = [await _run(fleet, arm, seed) for seed in (1, 2, 1)]
    assert first == second
    assert first.ttft_s != other.ttft_s


@pytest.mark.parametrize("arm", [arms.ENGINE, arms.SIDECAR], ids=lambda arm: arm.name)
async def test_affinity_keeps_conversations_and_their_prefixes(fleet: SidecarFleet, arm: Arm) -> None:
    """Nothing moves, and more is found in the caches than where everything is scattered."""
    before, after = await _run(fleet, arms.BEFORE), await _run(fleet, arm)
    assert after.moved_share == 0.0
    assert before.moved_share > 0.5
    assert after.cached_share > before.cached_share + 0.1


async def test_affinity_that_works_raises_no_flag(fleet: SidecarFleet) -> None:
    """The negative control of the flags."""
    assert find_flags((await _run(fleet, arms.ENGINE)).observed) == []


@pytest.mark.parametrize("failure", _FLAGS, ids=lambda failure: failure.name.lower())
async def test_each_silent_failure_is_flagged(fleet: SidecarFleet, failure: Failure) -> None:
    """The workers' own counters and log lines give it away."""
    arm = next(arm for arm in arms.FAILURES if arm.failure is failure)
    assert _FLAGS[failure] in find_flags((await _run(fleet, arm)).observed)
