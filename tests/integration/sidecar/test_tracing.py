"""Spans of a real sidecar process, as a collector receives them."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from routing_hints.v1 import service_pb2
from tests.support.messages import CONVERSATION, CONVERSATION_HASH, HintsStub, make_request
from tests.support.sidecar import SidecarProcess

pytest.importorskip("opentelemetry.sdk", reason="the extra [otel] is not installed")

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

_TRACE, _PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class _Collector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    def __init__(self) -> None:
        self.received: queue.Queue[Any] = queue.Queue()
        self.port = 0

    def Export(self, request: Any, _context: object) -> Any:  # noqa: N802, the protocol's name
        self.received.put(request)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[_Collector]:
    """An OTLP collector on loopback."""
    started = _Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(started, server)
    started.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield started
    server.stop(grace=None).wait()


def _enrich(sidecar: SidecarProcess, flags: str) -> service_pb2.EnrichResponse:
    request = make_request(model="m", traceparent=f"00-{_TRACE}-{_PARENT}-{flags}")
    with grpc.insecure_channel(sidecar.target) as channel:
        decision: service_pb2.EnrichResponse = HintsStub(channel).Enrich(request)
        return decision


def _stop(sidecar: SidecarProcess) -> None:
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0


def test_the_span_of_a_decision_joins_the_trace_of_its_request(
    collector: _Collector,
    sidecar_environment: dict[str, str],
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """And names the conversation by its hash alone."""
    sidecar_environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.port}"
    sidecar = start_sidecar_process()
    decision = _enrich(sidecar, "01")
    _stop(sidecar)
    request = collector.received.get(timeout=10)
    (resource,) = request.resource_spans
    names = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
    assert names["service.name"] == "routing-hint-sidecar"
    (span,) = resource.scope_spans[0].spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == (
        "routing_hints.decide",
        _TRACE,
        _PARENT,
    )
    assert span.end_time_unix_nano > span.start_time_unix_nano
    attributes = {entry.key: entry.value for entry in span.attributes}
    assert attributes["gen_ai.conversation.id"].string_value == CONVERSATION_HASH
    assert attributes["gen_ai.request.model"].string_value == "m"
    assert attributes["routing_hints.decision_id"].string_value == decision.decision_id
    assert attributes["routing_hints.source"].string_value == "header:x-session-id"
    assert CONVERSATION.encode() not in request.SerializeToString()


def test_a_request_that_its_caller_does_not_sample_gets_no_span(
    collector: _Collector,
    sidecar_environment: dict[str, str],
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    sidecar_environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.port}"
    sidecar = start_sidecar_process()
    _enrich(sidecar, "00")
    _stop(sidecar)
    assert collector.received.empty()


def test_opentelemetry_is_imported_only_where_its_variables_ask_for_it() -> None:
    program = (
        "import sys, sidecar.__main__, sidecar.telemetry.tracing;"
        "assert sidecar.telemetry.tracing.make_tracer({}) is None;"
        "assert sidecar.telemetry.tracing.make_tracer({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x', "
        "'OTEL_SDK_DISABLED': 'true'}) is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_sidecar_serves_without_opentelemetry_and_logs_what_to_install(
    sidecar_environment: dict[str, str], start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """Where spans are asked for and the extra is missing."""
    sidecar_environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    without = "import sys; sys.modules['opentelemetry'] = None; from sidecar.__main__ import main; main()"
    sidecar = start_sidecar_process(interpreter=("-c", without))
    assert _enrich(sidecar, "01").conversation_hash == CONVERSATION_HASH
    _stop(sidecar)
    (line,) = [line for line in sidecar.lines if "tracing_unavailable" in line]
    assert "routing-hint-sidecar[otel]" in line
