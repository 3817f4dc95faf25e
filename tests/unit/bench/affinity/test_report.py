"""What the tables of the affinity simulation say, on rows made by hand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("simpy", reason="requirements/bench.txt is not installed")

from bench.affinity import arm as arms
from bench.affinity.arm import Arm
from bench.affinity.report import write_report

_HEALTHY = {
    "attached_context": 1.0,
    "attached_generation": 1.0,
    "moved": 0.0,
    "warnings": [],
    "rank_forced": False,
    "notices": {},
}


def _row(arm: Arm, seed: int, p95_s: float, requests_per_s: float = 50.0, case: str = "") -> dict[str, Any]:
    return {
        "case": case,
        "arm": arm.name,
        "seed": seed,
        "ttft_s": [p95_s] * 101,
        "requests_per_s": requests_per_s,
        "cached_share": 0.5,
        "held_share": 0.25,
        "skew": 1.0,
        "moved_share": 0.0,
        "observed": _HEALTHY,
    }


def _fit(p95_s: float) -> dict[str, float]:
    return {
        "context_tokens_per_s": 50_000.0,
        "generation_step_s": 0.01,
        "p95_s": p95_s,
        "requests_per_s": 46.0,
        "seeds": 5,
    }


def test_the_band_covers_every_setting_and_is_held_against_the_report() -> None:
    """After 2.42 s and 4.84 s where the report has 4.84 s: 50 % too low to right; of "before" as well."""
    rows = []
    for reading, before in (("balanced", arms.BEFORE), ("forced", arms.BEFORE_FORCED)):
        for number, after_s in enumerate((2.42, 4.84)):
            case = f"{reading} {number}"
            rows += [_row(before, seed, 8.0, 46.0, case) for seed in (1, 2)]
            rows += [_row(arms.ENGINE, seed, after_s, 60.0, case) for seed in (1, 2)]
    fits = {reading: [_fit(8.39), _fit(8.6)] for reading in ("balanced", "forced")}
    policies = [{**row, "case": ""} for row in rows if row["case"] == "balanced 0"]
    policies += [_row(arms.SIDECAR, seed, 2.42) for seed in (1, 2)]
    band = [row for row in rows if row["case"] != "balanced 0"]
    text = write_report({"band": band, "policies": policies, "tried": fits, "fits": fits})
    assert text.count("| p95 s | 2.42 to 4.84 | 4.84 | -50% to +0% |") == 2
    assert text.count("| requests/s | 60.00 to 60.00 | 50 | +20% to +20% |") == 2
    assert text.count("2 are within 5% of 8.39 s and 46/s.") == 2


def test_a_difference_is_taken_seed_by_seed() -> None:
    """The sidecar is 1 s faster in either seed, however far the seeds are apart."""
    rows = [_row(arms.ENGINE, 1, 3.0), _row(arms.ENGINE, 2, 9.0)]
    rows += [_row(arms.SIDECAR, 1, 2.0), _row(arms.SIDECAR, 2, 8.0)]
    lines = write_report({"policies": rows}).splitlines()
    engine = next(line for line in lines if line.startswith("| engine"))
    assert engine.endswith("| -1.00 ± 0.00 |")


def test_a_failure_is_held_against_the_gain() -> None:
    """Between 4 s with affinity and 8 s without, 7 s has lost 75 % of the gain; flags count by seed."""
    failure = arms.FAILURES[0]
    bad = _row(failure, 1, 7.0)
    bad["observed"] = {**_HEALTHY, "attached_context": 0.0}
    policies = [_row(arms.BEFORE, 1, 8.0), _row(arms.ENGINE, 1, 4.0), _row(arms.SIDECAR, 1, 4.0)]
    text = write_report({"policies": policies, "failures": [bad]})
    line = next(line for line in text.splitlines() if line.startswith(f"| {failure.name}"))
    assert "| 75 % |" in line
    assert line.endswith("| no id in the context phase (1/1) |")
    assert "| none (engine, both phases) | 4.00 | 0 % |" in text
