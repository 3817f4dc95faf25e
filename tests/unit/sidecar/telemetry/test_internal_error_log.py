"""Errors that no rule accounts for: each is counted, and each place logged once."""

from __future__ import annotations

import pytest

from routing_hints.metrics import MetricStore
from sidecar.telemetry import metrics
from sidecar.telemetry.internal_error_log import InternalErrorLog
from tests.support.metric_values import read_counts


def _fail_here() -> None:
    raise RuntimeError("a secret of the request")


def _fail_elsewhere() -> None:
    raise RuntimeError("a secret of the request")


def test_internal_error_is_counted_each_time_and_logged_once_per_place_without_its_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    store = MetricStore(metrics.TABLE)
    log = InternalErrorLog(store)
    assert read_counts(store, metrics.INTERNAL_ERRORS) == {"": 0}
    for fail in (_fail_here, _fail_here, _fail_elsewhere):
        with pytest.raises(RuntimeError) as caught:
            fail()
        log.report(caught.value)
    assert read_counts(store, metrics.INTERNAL_ERRORS) == {"": 3}
    written = "".join(capfd.readouterr())
    assert written.count("RuntimeError in ") == 2
    assert "RuntimeError in _fail_here:" in written
    assert "RuntimeError in _fail_elsewhere:" in written
    assert "secret" not in written
