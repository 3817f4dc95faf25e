"""Counters and gauges, as GetStats and /metrics read them."""

from __future__ import annotations

from sidecar.telemetry.counters import Counters


def test_counters_add_up_by_name_and_labels() -> None:
    """Each combination of labels has a value of its own."""
    counters = Counters()
    counters.add("a", ("x", "1"))
    counters.add("a", ("x", "1"), amount=4)
    counters.add("a", ("x", "2"))
    assert list(counters) == [("a", (("x", "1"),), 5), ("a", (("x", "2"),), 1)]


def test_a_declared_counter_is_readable_at_zero_and_keeps_its_value() -> None:
    """Declaring makes it readable, does not count as raising it, and never resets it."""
    counters = Counters()
    counters.declare("a")
    assert list(counters.read_counters()) == [("a", (), 0)]
    assert list(counters) == []
    counters.add("a")
    counters.declare("a")
    assert list(counters) == [("a", (), 1)]


def test_a_gauge_is_read_when_looked_at() -> None:
    """Its value is that of the moment, not of the registration."""
    counters = Counters()
    values = [1.0]
    counters.gauge("g", lambda: [((("x", "1"),), values[-1])])
    assert list(counters.read_gauges()) == [("g", (("x", "1"),), 1.0)]
    values.append(2.0)
    assert list(counters.read_gauges()) == [("g", (("x", "1"),), 2.0)]
