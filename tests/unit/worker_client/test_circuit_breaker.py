from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from worker_client._circuit_breaker import CircuitBreaker
from worker_client._once_logger import OnceLogger

TIMEOUT_S = 0.2


@pytest.fixture
def breaker() -> CircuitBreaker:
    return CircuitBreaker(OnceLogger(), TIMEOUT_S)


def test_it_opens_once_the_first_request_waits_for_longer_than_any_may(breaker: CircuitBreaker) -> None:
    breaker.record_written(10.0)
    breaker.record_written(10.15)
    assert not breaker.is_unresponsive(10.2)
    assert not breaker.is_unresponsive(10.25)  # the first probe
    assert breaker.is_unresponsive(10.26)


def test_one_request_a_second_is_sent_while_it_is_open(breaker: CircuitBreaker) -> None:
    breaker.record_written(10.0)
    times_s = [11.0 + tenths / 10 for tenths in range(35)]
    sent_s = [now_s for now_s in times_s if not breaker.is_unresponsive(now_s)]
    assert sent_s == [11.0, 12.0, 13.0, 14.0]


def test_any_message_of_the_sidecar_closes_it(breaker: CircuitBreaker) -> None:
    breaker.record_written(10.0)
    breaker.is_unresponsive(11.0)
    assert breaker.is_unresponsive(11.1)
    breaker.record_response()
    assert not breaker.is_unresponsive(11.2)
    breaker.record_written(11.2)
    assert not breaker.is_unresponsive(11.3)


def test_it_closes_when_nothing_is_pending(breaker: CircuitBreaker) -> None:
    """Nobody owes a response to what was never sent."""
    breaker.record_written(10.0)
    breaker.record_nothing_pending()
    assert not breaker.is_unresponsive(20.0)


def test_an_outage_is_logged_once_and_so_is_its_end(breaker: CircuitBreaker) -> None:
    with capture_logs() as lines:
        for _ in range(2):
            breaker.log_once("socket-missing")
            breaker.log_once("connection-refused")
            breaker.record_response()
            breaker.record_response()
    assert [(line["event"], line.get("reason")) for line in lines] == [
        ("sidecar_unavailable", "socket-missing"),
        ("sidecar_recovered", None),
    ] * 2
