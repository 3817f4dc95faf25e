"""The tables, from the results as JSON has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bench.affinity.arm import BEFORE, ENGINE, SIDECAR, Arm
from bench.affinity.calibration import (
    BEFORE_P95_S,
    BEFORE_REQUESTS_PER_S,
    READINGS,
    TOLERANCE,
    Fit,
)
from bench.affinity.observation import Observed, find_flags
from bench.statistic import estimate

Row = dict[str, Any]
REPORTED_AFTER = {
    "p95 s": 4.84,
    "p99 s": 7.12,
    "requests/s": 50.0,
    "p95, of before": 4.84 / BEFORE_P95_S,
    "requests/s, of before": 50.0 / BEFORE_REQUESTS_PER_S,
}
_HEAD = (
    "| | TTFT p50 s | p95 s | p99 s | requests/s | cached share | skew | moved | sidecar less this, s |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
_BAND_HEAD = (
    "| tokens/s | step s | fitted p95 s | requests/s | before p95 s | requests/s | after p95 s | p99 s "
    "| requests/s | p95, of before | requests/s, of before |"
)


def write_report(results: dict[str, Any]) -> str:
    """Returns all tables that the results have data for, as Markdown."""
    sections = [
        ("Fit and prediction", _write_band),
        ("Policies", _write_policies),
        ("Silent failures", _write_failures),
        ("KV room", lambda r: _write_cases(r["kv"]) if "kv" in r else ""),
        ("Public trace, open loop", lambda r: _write_cases(r["trace"]) if "trace" in r else ""),
        ("Sensitivity", lambda r: _write_sensitivity(r) if {"sensitivity", "policies"} <= r.keys() else ""),
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


def _line(label: str, rows: Sequence[Row], sidecar: Sequence[Row]) -> str:
    cells = [
        *(f"{estimate(percentile(rows, number)):.2f}" for number in (50, 95, 99)),
        format(estimate([row["requests_per_s"] for row in rows]), ".1f"),
        format(estimate([row["cached_share"] for row in rows]), ".3f"),
        format(estimate([row["skew"] for row in rows]), ".2f"),
        format(estimate([row["moved_share"] for row in rows]), ".2f"),
        "-" if rows == sidecar else format(estimate(_subtract(sidecar, rows)), "+.2f"),
    ]
    return f"| {label} | {' | '.join(cells)} |"


def _write_policies(results: dict[str, Any]) -> str:
    rows = results.get("policies")
    if not rows:
        return ""
    sidecar = select(rows, SIDECAR)
    names = dict.fromkeys(row["arm"] for row in rows)
    return "\n".join([_HEAD, *(_line(name, select(rows, name), sidecar) for name in names)])


def _subtract(rows: Sequence[Row], others: Sequence[Row]) -> list[float]:
    """Returns the differences of p95 of equal seeds."""
    by_seed = {row["seed"]: row["ttft_s"][95] for row in others}
    return [row["ttft_s"][95] - by_seed[row["seed"]] for row in rows if row["seed"] in by_seed]


def _write_failures(results: dict[str, Any]) -> str:
    rows, policies = results.get("failures"), results.get("policies")
    if not rows or not policies:
        return ""
    before, after = (float(np.mean(percentile(select(policies, arm), 95))) for arm in (BEFORE, ENGINE))
    lines = [
        "| failure | TTFT p95 s | gain lost | requests/s | cached | held by generation | moved | flags |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups = [("none (engine, both phases)", select(policies, ENGINE))]
    groups += [(name, select(rows, name)) for name in dict.fromkeys(row["arm"] for row in rows)]
    groups += [("no affinity (scattered)", select(policies, BEFORE))]
    for name, mine in groups:
        lost = estimate([100 * (p95 - after) / (before - after) for p95 in percentile(mine, 95)])
        cells = [
            f"{estimate(percentile(mine, 95)):.2f}",
            f"{lost:.0f} %",
            format(estimate([row["requests_per_s"] for row in mine]), ".1f"),
            *(
                format(estimate([row[share] for row in mine]), ".3f")
                for share in ("cached_share", "held_share")
            ),
            format(estimate([row["moved_share"] for row in mine]), ".2f"),
            "(gate off)" if name.startswith("no affinity") else _show_flags(mine),
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
        sidecar = select(rows, SIDECAR, case)
        names = dict.fromkeys(row["arm"] for row in rows if row["case"] == case)
        lines.extend(_line(f"{case}: {name}", select(rows, name, case), sidecar) for name in names)
    return "\n".join(lines)


def _write_sensitivity(results: dict[str, Any]) -> str:
    """Returns one line for each setting, those of other parts that belong here among them."""
    cases = {"as fitted": results["policies"]}
    for part, label in (("kv", "KV room "), ("sensitivity", "")):
        for row in results.get(part, []):
            cases.setdefault(f"{label}{row['case']}", []).append(row)
    lines = [
        "| varied | p95 s before | engine | sidecar | engine of before, % | sidecar less engine, s | flags |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, rows in cases.items():
        before, engine, sidecar = (select(rows, arm) for arm in (BEFORE, ENGINE, SIDECAR))
        p95 = [percentile(mine, 95) for mine in (before, engine, sidecar)]
        share = [100 * after / base for base, after in zip(p95[0], p95[1], strict=True)]
        cells = [f"{estimate(values):.2f}" for values in p95]
        cells += [f"{estimate(share):.0f}", f"{estimate(_subtract(sidecar, engine)):+.2f}"]
        lines.append(f"| {case} | {' | '.join([*cells, _show_flags(engine)])} |")
    return "\n".join(lines)


def _write_band(results: dict[str, Any]) -> str:
    if not {"band", "policies"} <= results.keys():
        return ""
    rows = [*results["band"], *({**row, "case": "balanced 0"} for row in results["policies"])]
    return "\n\n".join(_write_reading(reading, before, rows, results) for reading, before in READINGS.items())


def _write_reading(reading: str, before: Arm, rows: Sequence[Row], results: dict[str, Any]) -> str:
    tried = [Fit(**fit) for fit in results["tried"][reading]]
    fits = [Fit(**fit) for fit in results["fits"][reading]]
    good = [fit for fit in fits if fit.error <= TOLERANCE]
    lines = [
        f'"Before" is: {before.name}. {len(tried)} settings were tried on it alone.',
        f"{len(good)} are within {TOLERANCE:.0%} of {BEFORE_P95_S} s and {BEFORE_REQUESTS_PER_S:g}/s.",
        f"The best is off by {fits[0].error:.1%}. These were run on:",
        "",
        _BAND_HEAD,
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    figures: dict[str, list[float]] = {name: [] for name in REPORTED_AFTER}
    for number, fit in enumerate(fits):
        base, after = (select(rows, arm, f"{reading} {number}") for arm in (before, ENGINE))
        values = {
            "p95 s": percentile(after, 95),
            "p99 s": percentile(after, 99),
            "requests/s": _rates(after),
            "p95, of before": _divide(percentile(after, 95), percentile(base, 95)),
            "requests/s, of before": _divide(_rates(after), _rates(base)),
        }
        for name, figure in values.items():
            figures[name].append(float(np.mean(figure)))
        cells = [f"{fit.context_tokens_per_s:.0f}", f"{fit.generation_step_s:.4f}"]
        cells += [f"{fit.p95_s:.2f}", f"{fit.requests_per_s:.1f}"]
        cells += [f"{estimate(percentile(base, 95)):.2f}", f"{estimate(_rates(base)):.1f}"]
        cells += [f"{estimate(figure):.2f}" for figure in values.values()]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| after | predicted (over these settings) | report | error |", "|---|---|---|---|"]
    for name, means in figures.items():
        low, high, reported = min(means), max(means), REPORTED_AFTER[name]
        lines.append(
            f"| {name} | {low:.2f} to {high:.2f} | {reported:.4g} | "
            f"{low / reported - 1:+.0%} to {high / reported - 1:+.0%} |"
        )
    return "\n".join(lines)


def _rates(rows: Sequence[Row]) -> list[float]:
    return [row["requests_per_s"] for row in rows]


def _divide(values: Sequence[float], bases: Sequence[float]) -> list[float]:
    return [value / base for value, base in zip(values, bases, strict=True)]
