"""Flips one rule at a time and expects that a captured request's expectation then fails.

Run it with `make mutation`. Each mutant is a copy of the sources in which one piece of text is replaced; it
runs in a process of its own. A mutant that no row notices is a rule that the captured requests do not hold.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SOURCES = ("sidecar", "worker_client", "examples", "tests")


def main() -> int:
    """Runs every mutant; returns 1 if one survives or can't be made."""
    mutants: list[dict[str, str]] = yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text())
    if run_rows_of(ROOT) != 0:
        print("rows fail without any mutant")
        return 1
    bad = [verdict for mutant in mutants if (verdict := try_mutant(mutant)) is not None]
    print(*bad, f"{len(mutants) - len(bad)} of {len(mutants)} flipped rules are noticed", sep="\n")
    return 1 if bad else 0


def try_mutant(mutant: dict[str, str]) -> str | None:
    """Returns what is wrong with a mutant, None if some row notices it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in SOURCES:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / mutant["file"]
        source = path.read_text()
        if source.count(mutant["old"]) != 1:
            return f"can't be made, its text occurs {source.count(mutant['old'])} times: {mutant['rule']}"
        path.write_text(source.replace(mutant["old"], mutant["new"]))
        return f"SURVIVED: {mutant['rule']}" if run_rows_of(copy) == 0 else None


def run_rows_of(folder: Path) -> int:
    """Runs the rows in a process of its own; returns 0 if all hold."""
    command = [sys.executable, "-m", "tests.mutation.check_rules", "rows"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


async def run_rows() -> int:
    """Runs the rows in this process, the contract's codecs included; returns 1 at the first that fails."""
    from routing_hints.v1 import service_pb2
    from sidecar.decision.conversation_end import Lifecycle
    from sidecar.decision.recorder import Recorder
    from sidecar.decision.service import Decider
    from sidecar.identity.carrier_monitor import IdentityWatch
    from sidecar.identity.single_use_guard import OneShotGuard
    from sidecar.placement.placement import Placement
    from sidecar.policy.holder import PolicyHolder, activate
    from sidecar.policy.schema import Policy
    from sidecar.telemetry.counters import Counters
    from tests.support.captures import load_rows
    from tests.support.rows import affinity_of, list_differences
    from worker_client import Answer, ClientConfig, EngineProfile, codec
    from worker_client._model import ClientPolicy
    from worker_client._request import RequestFacts
    from worker_client._selected_carriers import pick_carriers
    from worker_client.testing import FakeClient

    for row in load_rows():
        holder = PolicyHolder(activate(Policy.model_validate(row.get("policy") or {})))
        view = holder.current.view
        sent = ClientPolicy(
            headers=view.headers, metadata=view.metadata, body=view.body, annotations=view.annotations
        )
        counters = Counters()
        placement = Placement(time.monotonic, counters, lambda phase: None)
        decider = Decider(
            holder,
            placement,
            Recorder(time.time),
            counters,
            IdentityWatch(OneShotGuard(time.monotonic), counters),
            Lifecycle(placement, counters),
            observe_latency_s=lambda seconds: None,
            tracer=None,
        )

        def answer(
            facts: RequestFacts, engine: EngineProfile, decider: Decider = decider, sent: ClientPolicy = sent
        ) -> Answer:
            message = service_pb2.EnrichRequest()
            codec.fill_request(
                message,
                facts,
                pick_carriers(facts, sent),
                engine_pb=codec.encode_engine(engine),
                router_rank=facts.router_rank,
                known_rank=None,
            )
            response = service_pb2.EnrichResponse()
            decider.decide(message, response)
            return codec.decode_answer(response)

        client = FakeClient(answer, config=ClientConfig(affinity=affinity_of(row)))
        if await list_differences(row, client):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(run_rows()) if sys.argv[1:] == ["rows"] else main())
