"""The reuse generations of workers: they only rise, and are bounded."""

from __future__ import annotations

import pytest

from sidecar.decision.generation import MAX_WORKERS, ReuseGenerations


class GenerationHarness:
    """Generations and the changes that they reported."""

    def __init__(self) -> None:
        self.changes: list[str | None] = []
        self.generations = ReuseGenerations(self.changes.append)


@pytest.fixture
def harness() -> GenerationHarness:
    return GenerationHarness()


def test_a_change_for_one_worker_leaves_the_others(harness: GenerationHarness) -> None:
    before = harness.generations.of("b")
    harness.generations.raise_for("a")
    assert harness.generations.of("a") > before
    assert harness.generations.of("b") == before
    assert harness.changes == ["a"]


def test_a_change_for_all_workers_raises_every_number(harness: GenerationHarness) -> None:
    harness.generations.raise_for("a")
    before = {name: harness.generations.of(name) for name in ("a", "b")}
    harness.generations.raise_all()
    assert all(harness.generations.of(name) > number for name, number in before.items())
    assert harness.changes == ["a", None]


def test_too_many_workers_count_together_and_no_number_comes_again(harness: GenerationHarness) -> None:
    for _ in range(5):
        harness.generations.raise_for("a")
    highest = harness.generations.of("a")
    for number in range(MAX_WORKERS):
        harness.generations.raise_for(f"worker-{number}")
    assert harness.changes[-1] is None
    assert harness.generations.of("a") == harness.generations.of("never seen") > highest
