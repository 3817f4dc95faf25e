"""The recorded hour in an open loop, on a trace of 1,003 lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("simpy", reason="requirements/bench.txt is not installed")

import simpy

from bench.affinity.parameter import load_parameters
from bench.affinity.workload import Conversation, Trace, Turn


class _Recorder:
    """Takes note of what comes when, and answers at once."""

    def __init__(self, env: simpy.Environment) -> None:
        self.remembered: list[str] = []
        self.served: list[tuple[float, int, str]] = []
        self._env = env

    def serve(self, turn: Turn):  # type: ignore[no-untyped-def]
        self.served.append((float(self._env.now), len(turn.prompt), turn.conversation.name))
        yield self._env.timeout(0)

    def remember(self, turn: Turn):  # type: ignore[no-untyped-def]
        self.remembered.append(turn.conversation.name)
        yield self._env.timeout(0)

    def forget(self, conversation: Conversation) -> None:
        raise AssertionError("a trace does not say when a conversation is over")


def test_a_trace_is_played_faster_after_what_came_before_it(tmp_path: Path) -> None:
    """A thousand requests fill the caches; the next three come in a fourth of their time, one is a return."""
    lines = [
        {"timestamp": 1_000 * at, "input_length": 600 + at, "hash_ids": [0, block]}
        for at, block in [*((number, number + 1) for number in range(1_000)), (1_004, 7), (1_012, 2_000)]
    ]
    lines.insert(1_000, {"timestamp": 1_000_000, "input_length": 500, "hash_ids": [0, 1_000_000]})
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    env = simpy.Environment()
    recorder = _Recorder(env)
    Trace(path, 4.0, load_parameters()).start(env, recorder, seed=1)
    env.run(until=10.0)
    assert len(recorder.remembered) == 1_000
    assert [(at_s, tokens) for at_s, tokens, _ in recorder.served] == [(0.0, 500), (1.0, 1_604), (3.0, 1_612)]
    assert [name in recorder.remembered for _, _, name in recorder.served] == [False, True, False]
