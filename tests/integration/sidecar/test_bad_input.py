"""What a broken or hostile peer sends: it gets a status, and nobody else is affected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.message import Message

from routing_hints.v1 import service_pb2, types_pb2
from tests.support.messages import (
    CONVERSATION,
    PINNING_ENGINE,
    AdminStub,
    HintsStub,
    OpenChannel,
    WorkerStream,
    make_batch,
    make_request,
)
from tests.support.sidecar import SidecarServer, get_stats, sum_metric
from tests.support.wait import wait_until

_ENRICH = "/routing_hints.v1.RoutingHintsService/Enrich"
_STREAM = "/routing_hints.v1.RoutingHintsService/EnrichStream"
_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_GOOD = make_request()


def _field(number: int, payload: bytes) -> bytes:
    """One length-delimited field on the wire."""
    size, length = len(payload), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return _varint(number << 3 | 2) + length + bytes([size]) + payload


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _number(number: int, value: int) -> bytes:
    """One varint field on the wire."""
    return _varint(number << 3) + _varint(value)


_PHASE = _number(3, 1)
_LATER = _field(500, b"new") + _number(501, 1)
"""Fields of a later contract."""
_FOUR_RANKS = _field(7, _number(6, 4))

# What is sent, the status, and how its text begins.
_BAD_REQUESTS: dict[str, tuple[bytes, grpc.StatusCode, str]] = {
    "empty": (b"", _INVALID, "phase: "),
    "rank_at_dp_size": (_PHASE + _FOUR_RANKS + _field(6, _number(3, 4)), _INVALID, "hints.dp_rank: "),
    "negative_rank": (_PHASE + _FOUR_RANKS + _field(6, _number(3, -1)), _INVALID, "hints.dp_rank: "),
    "negative_known_rank": (_PHASE + _FOUR_RANKS + _number(12, -1), _INVALID, "known_rank: "),
    "negative_dp_size": (_PHASE + _field(7, _number(6, -1)), _INVALID, "engine.dp_size: "),
    "huge_dp_size": (_PHASE + _field(7, _number(6, 2**32 - 1)), _INVALID, "engine.dp_size: "),
    "invalid_utf8": (_PHASE + _field(1, b"\xff\xfe"), _INVALID, "the message is malformed"),
    "invalid_utf8_in_a_header": (
        _PHASE + _field(5, _field(4, _field(1, b"x-session-id") + _field(2, b"\xc3\x28"))),
        _INVALID,
        "the message is malformed",
    ),
    "surrogate_in_utf8": (_PHASE + _field(1, b"\xed\xa0\x80"), _INVALID, "the message is malformed"),
    "truncated": (_PHASE + b"\x0a\x7f" + b"x", _INVALID, "the message is malformed"),
    "group_end": (b"\x0c", _INVALID, "the message is malformed"),
    "text": (b"GET / HTTP/1.1\r\n\r\n", _INVALID, "the message is malformed"),
    "deeply_nested": (b"\x0b" * 10_000, _INVALID, "the message is malformed"),
    "many_headers": (
        _PHASE + _field(5, b"".join(_field(4, _field(1, b"h%d" % n)) for n in range(257))),
        _INVALID,
        "identity.headers: ",
    ),
    "carriers_over_64_kib": (
        _PHASE + _field(5, b"".join(_field(6, b"x" * 16_384) for _ in range(4))),
        _INVALID,
        "identity: ",
    ),
    "ten_thousand_headers": (
        _PHASE + _field(5, b"".join(_field(4, _field(1, b"h%d" % n)) for n in range(10_000))),
        _INVALID,
        "identity: ",
    ),
    "long_id": (_PHASE + _field(5, _field(1, b"x" * 16_385)), _INVALID, "identity.conversation_id: "),
    "over_4_mib": (_PHASE + _field(8, b"x" * (4 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
}


@pytest.fixture
async def undisturbed(sidecar: SidecarServer, open_channel: OpenChannel) -> AsyncIterator[None]:
    """Another caller, who is served before and after the test; nothing counts as an internal error."""
    channel = await open_channel(sidecar.target)
    stream = WorkerStream(HintsStub(channel))
    await stream.open(PINNING_ENGINE)
    request = make_request(engine_instance=PINNING_ENGINE.instance_id)
    before = await stream.enrich(request)
    yield
    after = await stream.enrich(request)
    assert [decision.hints.conversation_id for decision in (*before, *after)] == [CONVERSATION] * 2
    stream.close()
    assert await sum_metric(AdminStub(channel), "internal_errors") == 0


@pytest.fixture
async def channel(sidecar: SidecarServer, undisturbed: None, open_channel: OpenChannel) -> grpc.aio.Channel:
    """The bad peer's connection."""
    return await open_channel(sidecar.target)


@pytest.mark.parametrize("name", sorted(_BAD_REQUESTS))
async def test_a_bad_request_gets_a_status_that_names_the_field_and_repeats_no_value(
    channel: grpc.aio.Channel, name: str
) -> None:
    data, code, beginning = _BAD_REQUESTS[name]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(_ENRICH)(data)
    assert caught.value.code() is code
    assert str(caught.value.details()).startswith(beginning)
    assert "xx" not in str(caught.value.details())


@pytest.mark.parametrize("name", ["invalid_utf8", "truncated", "text", "over_4_mib"])
async def test_a_malformed_message_ends_its_stream_alone(channel: grpc.aio.Channel, name: str) -> None:
    """With the status of a unary call."""
    data, code, beginning = _BAD_REQUESTS[name]
    stream = channel.stream_stream(_STREAM)()
    await stream.write(_field(3, _field(2, data)) if name == "invalid_utf8" else data)
    assert await stream.code() is code
    assert str(await stream.details()).startswith(beginning)


@pytest.mark.parametrize(
    ("data", "notice"),
    [
        (_number(3, 99), "unknown-enum:phase"),
        (_number(3, -1), "unknown-enum:phase"),
        (_number(3, 2**31 - 1), "unknown-enum:phase"),
        (_PHASE + _number(4, 99), "unknown-enum:kind"),
        (_PHASE + _field(7, _number(2, 99)), "unknown-enum:engine.dialect"),
        (_PHASE + _field(7, _number(3, 99)), "unknown-enum:engine.adp_router"),
        (_PHASE + _field(7, _number(4, 99)), "unknown-enum:engine.rank_source"),
    ],
)
async def test_a_request_with_an_enum_of_a_newer_client_is_forwarded(
    channel: grpc.aio.Channel, data: bytes, notice: str
) -> None:
    identity = _field(5, _field(1, b"conv-7f3a"))
    decision = service_pb2.EnrichResponse.FromString(await channel.unary_unary(_ENRICH)(data + identity))
    assert decision.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
    assert list(decision.notices) == [notice]
    assert not decision.HasField("hints")


@pytest.mark.parametrize(
    ("number", "field"), [(2, "dialect"), (3, "adp_router"), (4, "rank_source")], ids=lambda value: str(value)
)
async def test_requests_to_an_engine_with_an_enum_of_a_newer_client_are_forwarded(
    stream: WorkerStream, number: int, field: str
) -> None:
    engine = PINNING_ENGINE.SerializeToString() + _number(number, 99)
    await stream.open(types_pb2.EngineProfile.FromString(engine))
    (decision,) = await stream.enrich(make_request(engine_instance=PINNING_ENGINE.instance_id))
    assert decision.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
    assert list(decision.notices) == [f"unknown-enum:engines.{field}"]


async def test_unknown_fields_of_a_request_are_ignored(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(_ENRICH)
    decisions = []
    for data in (_GOOD.SerializeToString(), _GOOD.SerializeToString() + _LATER):
        decision = service_pb2.EnrichResponse.FromString(await call(data))
        decision.ClearField("decision_id")
        decisions.append(decision)
    assert decisions[0] == decisions[1]


async def test_unknown_fields_at_every_level_of_a_stream_are_ignored(
    channel: grpc.aio.Channel, admin: AdminStub
) -> None:
    """What a worker client sends that is newer than its sidecar."""
    message = service_pb2.EnrichStreamRequest(
        hello=service_pb2.StreamHello(worker_id="w", client_version="9.0.0"),
        engines=[PINNING_ENGINE],
        items=make_batch(make_request(engine_instance=PINNING_ENGINE.instance_id)).items,
        finishes=[service_pb2.Finish(decision_id="x")],
    )
    item, request = message.items[0], message.items[0].request
    parts: tuple[Message, ...] = (message.hello, message.engines[0], request.identity, request, item)
    for part in (*parts, message.finishes[0], message):
        part.MergeFromString(_LATER)
    stream = channel.stream_stream(_STREAM)()
    await stream.write(message.SerializeToString())
    response = service_pb2.EnrichStreamResponse.FromString(await stream.read())
    (result,) = response.results
    assert response.HasField("policy")
    assert result.response.hints.conversation_id == CONVERSATION
    assert result.response.rank_directive == types_pb2.RANK_DIRECTIVE_WITHHOLD
    assert "9.0.0" in {shown.client_version for shown in (await get_stats(admin)).streams}
    assert await sum_metric(admin, "finishes") == 1
    stream.cancel()


async def test_ten_thousand_headers_of_grpc_itself_are_refused(channel: grpc.aio.Channel) -> None:
    metadata = tuple((f"x-header-{number}", "value") for number in range(10_000))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(_ENRICH)(_GOOD.SerializeToString(), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_unknown_method_is_unimplemented(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/routing_hints.v1.RoutingHintsService/Guess")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_peer_that_leaves_while_its_batch_is_decided_leaves_no_stream(
    sidecar: SidecarServer, undisturbed: None, open_channel: OpenChannel, end: str
) -> None:
    channel = grpc.aio.insecure_channel(sidecar.target, options=[("grpc.use_local_subchannel_pool", 1)])
    stream = HintsStub(channel).EnrichStream()
    await stream.write(make_batch(*[_GOOD] * 4_096))
    if end == "cancel":
        stream.cancel()
    await channel.close()
    admin = AdminStub(await open_channel(sidecar.target))

    async def is_closed() -> bool:
        return await sum_metric(admin, "open_streams") == 1

    await wait_until(is_closed, "the stream of the peer to end")


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 1_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        _PREFACE,
        _PREFACE + b"\xff" * 1_000,
        # Settings, then the beginning of a HEADERS frame of 16 KiB.
        _PREFACE
        + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
        + b"\x00\x40\x00\x01\x04\x00\x00\x00\x01"
        + b"x" * 9,
    ],
)
async def test_bytes_that_are_no_grpc_end_their_connection_alone(
    sidecar: SidecarServer, undisturbed: None, data: bytes
) -> None:
    _, writer = await asyncio.open_unix_connection(Path(sidecar.target.removeprefix("unix:")))
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_an_internal_error_is_an_error_of_its_request_and_logged_once_without_values(
    start_sidecar: Callable[[], Awaitable[SidecarServer]],
    open_channel: OpenChannel,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = await start_sidecar()
    channel = await open_channel(server.target)
    hints = HintsStub(channel)
    stream = WorkerStream(hints)
    await stream.open()
    good = server.holder.current
    broken: Any = object()
    server.holder.current = replace(good, compiled=broken)
    for _ in range(2):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hints.Enrich(_GOOD)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
    results = await stream.exchange(_GOOD, _GOOD)
    assert [result.error.code for result in results] == [service_pb2.ERROR_CODE_INTERNAL] * 2
    server.holder.current = good
    assert len(await stream.enrich(_GOOD)) == 1
    assert await sum_metric(AdminStub(channel), "internal_errors") == 4
    written = "".join(capfd.readouterr())
    # One place for single calls and one for streams.
    assert written.count("AttributeError in ") == 2
    assert "decide:" in written
    assert CONVERSATION not in written
    stream.close()


def test_the_helpers_of_these_tests_write_what_protobuf_writes() -> None:
    message: Message = service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL, known_rank=300)
    assert _PHASE + _number(12, 300) == message.SerializeToString()
