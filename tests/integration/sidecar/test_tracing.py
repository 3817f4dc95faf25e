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

from routing_hints.v1 import service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarProcess

pytest.importorskip("opentelemetry.sdk", reason="the extra [otel] is not installed")

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

_TRACE, _PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
_SESSION = "conv-7f3a"
_HASH = "7c5832ae00b4609f"  # of docs/contract.md


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
    taker = _Collector()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(taker, server)
    taker.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield taker
    server.stop(grace=None).wait()


def _enrich(sidecar: SidecarProcess, flags: str) -> service_pb2.EnrichResponse:
    request = service_pb2.EnrichRequest(
        request_id="r-1",
        phase=types_pb2.PHASE_PREFILL,
        model="m",
        identity=types_pb2.Identity(headers={"x-session-id": _SESSION}),
        traceparent=f"00-{_TRACE}-{_PARENT}-{flags}",
    )
    with grpc.insecure_channel(sidecar.target) as channel:
        answer: service_pb2.EnrichResponse = service_pb2_grpc.RoutingHintsServiceStub(channel).Enrich(request)
        return answer


def _stop(sidecar: SidecarProcess) -> None:
    sidecar.signal(signal.SIGTERM)
    assert sidecar.wait() == 0


def test_a_decision_joins_the_trace_of_its_request(
    collector: _Collector,
    sidecar_environment: dict[str, str],
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """The span has the caller's trace and parent, and names the conversation by its hash alone."""
    sidecar_environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.port}"
    sidecar = start_sidecar_process()
    answer = _enrich(sidecar, "01")
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
    assert attributes["gen_ai.conversation.id"].string_value == _HASH
    assert attributes["gen_ai.request.model"].string_value == "m"
    assert attributes["routing_hints.decision_id"].string_value == answer.decision_id
    assert attributes["routing_hints.source"].string_value == "header:x-session-id"
    assert _SESSION.encode() not in request.SerializeToString()


def test_a_caller_who_does_not_sample_gets_no_span(
    collector: _Collector,
    sidecar_environment: dict[str, str],
    start_sidecar_process: Callable[..., SidecarProcess],
) -> None:
    """The sampling decision is the caller's."""
    sidecar_environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.port}"
    sidecar = start_sidecar_process()
    _enrich(sidecar, "00")
    _stop(sidecar)
    assert collector.received.empty()


def test_nothing_is_imported_when_off() -> None:
    """Without OpenTelemetry's variables the sidecar starts without its weight."""
    program = (
        "import sys, sidecar.__main__, sidecar.telemetry.tracing;"
        "assert sidecar.telemetry.tracing.make_tracer({}) is None;"
        "assert sidecar.telemetry.tracing.make_tracer({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x', "
        "'OTEL_SDK_DISABLED': 'true'}) is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_asked_for_and_not_installed_is_said(
    sidecar_environment: dict[str, str], start_sidecar_process: Callable[..., SidecarProcess]
) -> None:
    """The sidecar serves all the same, and its log says what to install."""
    sidecar_environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = "http://127.0.0.1:1"
    without = "import sys; sys.modules['opentelemetry'] = None; from sidecar.__main__ import main; main()"
    sidecar = start_sidecar_process(interpreter=("-c", without))
    assert _enrich(sidecar, "01").conversation_hash == _HASH
    _stop(sidecar)
    (line,) = [line for line in sidecar.lines if "tracing_unavailable" in line]
    assert "routing-hint-sidecar[otel]" in line
