"""The tables, from the results as JSON has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bench.affinity.arm import BEFORE, ENGINE, SIDECAR, Arm
from bench.affinity.calibration import BEFORE_P95_S, BEFORE_REQUESTS_PER_S, TOLERANCE
from bench.affinity.observation import Observed, find_flags
from bench.statistic import estimate

Row = dict[str, Any]
REPORTED_AFTER = {"p95": 4.84, "p99": 7.12, "requests_per_s": 50.0}
_HEAD = (
    "| | TTFT p50 s | p95 s | p99 s | requests/s | cached share | skew | moved |\n"
    "|---|---|---|---|---|---|---|---|"
)


def write_report(results: dict[str, Any]) -> str:
    """Returns all tables that the results have data for, as Markdown."""
    sections = [
        ("Fit and prediction", _write_band),
        ("Policies", _write_policies),
        ("Silent failures", _write_failures),
        ("KV room", lambda r: _write_cases(r["kv"]) if "kv" in r else ""),
        ("Public trace, open loop", lambda r: _write_cases(r["trace"]) if "trace" in r else ""),
        ("Sensitivity", lambda r: _write_sensitivity(r["sensitivity"]) if "sensitivity" in r else ""),
    ]
    texts = [(title, write(results)) for title, write in sections]
    return "\n".join(f"### {title}\n\n{text}\n" for title, text in texts if text)


def select(rows: Iterable[Row], arm: Arm | str, case: str | None = None) -> list[Row]:
    """Returns the rows of an arm, by seed."""
    name = arm if isinstance(arm, str) else arm.name
    found = [row for row in rows if row["arm"] == name and case in (None, row["case"])]
    return sorted(found, key=lambda row: row["seed"])


def percentile(rows: Sequence[Row], number: int) -> list[float]:
    """Returns a percentile of TTFT of each row."""
    return [row["ttft_s"][number] for row in rows]


def _line(label: str, rows: Sequence[Row]) -> str:
    cells = [
        *(f"{estimate(percentile(rows, number)):.2f}" for number in (50, 95, 99)),
        format(estimate([row["requests_per_s"] for row in rows]), ".1f"),
        format(estimate([row["cached_share"] for row in rows]), ".3f"),
        format(estimate([row["skew"] for row in rows]), ".2f"),
        format(estimate([row["moved_share"] for row in rows]), ".2f"),
    ]
    return f"| {label} | {' | '.join(cells)} |"


def _write_policies(results: dict[str, Any]) -> str:
    rows = results.get("policies")
    if not rows:
        return ""
    names = list(dict.fromkeys(row["arm"] for row in rows))
    lines = [_HEAD, *(_line(name, select(rows, name)) for name in names)]
    lines += [
        "",
        "Differences of p95, the sidecar on both legs minus the engine, same arrivals, seed by seed:",
        "",
    ]
    for name in names:
        if name.startswith("engine"):
            gap = _subtract(select(rows, SIDECAR), select(rows, name))
            lines.append(f"- against {name}: {estimate(gap):.2f} s")
    return "\n".join(lines)


def _subtract(rows: Sequence[Row], others: Sequence[Row]) -> list[float]:
    """Returns the differences of p95 of equal seeds."""
    by_seed = {row["seed"]: row["ttft_s"][95] for row in others}
    return [row["ttft_s"][95] - by_seed[row["seed"]] for row in rows if row["seed"] in by_seed]


def _write_failures(results: dict[str, Any]) -> str:
    rows, policies = results.get("failures"), results.get("policies")
    if not rows or not policies:
        return ""
    before, after = (float(np.mean(percentile(select(policies, arm), 95))) for arm in (BEFORE, ENGINE))
    lines = ["| failure | p95 s | gain lost | cached share | moved | flags |", "|---|---|---|---|---|---|"]
    groups = [("none (engine, both legs)", select(policies, ENGINE))]
    groups += [(name, select(rows, name)) for name in dict.fromkeys(row["arm"] for row in rows)]
    for name, mine in groups:
        p95 = percentile(mine, 95)
        lost = (float(np.mean(p95)) - after) / (before - after)
        cells = [
            f"{estimate(p95):.2f}",
            f"{lost:.0%}",
            format(estimate([row["cached_share"] for row in mine]), ".3f"),
            format(estimate([row["moved_share"] for row in mine]), ".2f"),
            _show_flags(mine),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _show_flags(rows: Sequence[Row]) -> str:
    """Returns each flag with the number of seeds that raised it, and the notices."""
    flags = Counter(flag for row in rows for flag in find_flags(Observed(**row["observed"])))
    notices = sorted({notice for row in rows for notice in row["observed"]["notices"]})
    texts = [f"{flag} ({count}/{len(rows)})" for flag, count in flags.items()]
    return "; ".join([*texts, *(f"notice `{notice}`" for notice in notices)]) or "-"


def _write_cases(rows: Sequence[Row]) -> str:
    lines = [_HEAD]
    for case in dict.fromkeys(row["case"] for row in rows):
        names = dict.fromkeys(row["arm"] for row in rows if row["case"] == case)
        lines.extend(_line(f"{case}: {name}", select(rows, name, case)) for name in names)
    return "\n".join(lines)


def _write_sensitivity(rows: Sequence[Row]) -> str:
    lines = [
        "| varied | p95 before | engine | sidecar | engine / before | sidecar / engine |",
        "|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        before, engine, sidecar = (
            percentile(select(rows, arm, case), 95) for arm in (BEFORE, ENGINE, SIDECAR)
        )
        cells = [f"{np.mean(values):.2f}" for values in (before, engine, sidecar)]
        cells += [f"{np.mean(engine) / np.mean(before):.2f}", f"{np.mean(sidecar) / np.mean(engine):.2f}"]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _write_band(results: dict[str, Any]) -> str:
    rows, fits = results.get("band"), results.get("fits")
    if not rows or not fits:
        return ""
    within = sum(_error(fit) <= TOLERANCE for fit in results["tried"])
    lines = [
        f'{len(results["tried"])} settings of the two free parameters were tried on "before" alone;',
        (
            f"{within} are within {TOLERANCE:.0%} of p95 {BEFORE_P95_S} s and of "
            f"{BEFORE_REQUESTS_PER_S:g} requests/s."
        ),
        f"Of these, {len(fits)} were run on:",
        "",
        "| tokens/s | step s | fitted p95 | req/s | before p95 | req/s | after p95 | p99 | req/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    figures: dict[str, list[float]] = {"p95": [], "p99": [], "requests_per_s": []}
    for number, fit in enumerate(fits):
        mine = select(rows, ENGINE, str(number))
        after = {
            "p95": percentile(mine, 95),
            "p99": percentile(mine, 99),
            "requests_per_s": [row["requests_per_s"] for row in mine],
        }
        for name, values in after.items():
            figures[name].append(float(np.mean(values)))
        cells = [f"{fit['context_tokens_per_s']:.0f}", f"{fit['generation_step_s']:.4f}"]
        cells += [f"{fit['p95_s']:.2f}", f"{fit['requests_per_s']:.1f}"]
        base = select(rows, BEFORE, str(number))
        rates = [row["requests_per_s"] for row in base]
        cells += [f"{estimate(percentile(base, 95)):.2f}", f"{estimate(rates):.2f}"]
        cells += [f"{estimate(values):.2f}" for values in after.values()]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| after | predicted (over all fits) | report | error |", "|---|---|---|---|"]
    for name, values in figures.items():
        low, high, reported = min(values), max(values), REPORTED_AFTER[name]
        lines.append(
            f"| {name} | {low:.2f} to {high:.2f} | {reported:g} | "
            f"{low / reported - 1:+.0%} to {high / reported - 1:+.0%} |"
        )
    return "\n".join(lines)


def _error(fit: dict[str, float]) -> float:
    return max(abs(fit["p95_s"] / BEFORE_P95_S - 1), abs(fit["requests_per_s"] / BEFORE_REQUESTS_PER_S - 1))
