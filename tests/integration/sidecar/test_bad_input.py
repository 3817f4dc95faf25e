"""What a broken or hostile peer sends: it gets a status, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from routing_hints.v1 import admin_pb2, admin_pb2_grpc, service_pb2, service_pb2_grpc, types_pb2
from tests.support.sidecar import SidecarServer

_ENRICH = "/routing_hints.v1.RoutingHintsService/Enrich"
_STREAM = "/routing_hints.v1.RoutingHintsService/EnrichStream"
_INVALID = grpc.StatusCode.INVALID_ARGUMENT
_GOOD = service_pb2.EnrichRequest(
    phase=types_pb2.PHASE_PREFILL, identity=types_pb2.Identity(conversation_id="conv-7f3a")
)


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
        _PHASE + _field(5, b"".join(_field(4, _field(1, b"h%d" % n)) for n in range(10_000))),
        _INVALID,
        "identity.headers: ",
    ),
    "long_id": (_PHASE + _field(5, _field(1, b"x" * 16_385)), _INVALID, "identity.conversation_id: "),
    "over_4_mib": (_PHASE + _field(8, b"x" * (4 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
}


@pytest.fixture
async def undisturbed(sidecar: SidecarServer) -> AsyncIterator[None]:
    """Another caller, whose stream is answered before and after the test; nothing counts as a defect."""
    async with grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 99)]) as channel:
        stream = service_pb2_grpc.RoutingHintsServiceStub(channel).EnrichStream()

        async def ask(seq: int) -> None:
            item = service_pb2.EnrichItem(seq=seq, request=_GOOD)
            await stream.write(service_pb2.EnrichStreamRequest(items=[item]))
            response = await stream.read()
            assert [result.seq for result in response.results] == [seq]
            assert response.results[0].response.source == types_pb2.IDENTITY_SOURCE_CONVERSATION_ID

        await ask(1)
        yield
        await ask(2)
        stream.cancel()
        admin = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
        stats = await admin.GetStats(admin_pb2.GetStatsRequest())
        assert "defects" not in {counter.name for counter in stats.counters}


@pytest.fixture
async def channel(sidecar: SidecarServer, undisturbed: None) -> AsyncIterator[grpc.aio.Channel]:
    """The bad peer's channel."""
    async with grpc.aio.insecure_channel(sidecar.target) as channel:
        yield channel


@pytest.mark.parametrize("name", sorted(_BAD_REQUESTS))
async def test_a_bad_request_gets_a_status(channel: grpc.aio.Channel, name: str) -> None:
    """The field is named where there is one, and no value is repeated."""
    data, code, beginning = _BAD_REQUESTS[name]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(_ENRICH)(data)
    assert caught.value.code() is code
    assert str(caught.value.details()).startswith(beginning)
    assert "xx" not in str(caught.value.details())


@pytest.mark.parametrize("name", ["invalid_utf8", "truncated", "text", "over_4_mib"])
async def test_a_malformed_message_ends_its_stream_only(channel: grpc.aio.Channel, name: str) -> None:
    """The stream that sent it ends with the status of a unary call."""
    data, code, beginning = _BAD_REQUESTS[name]
    stream = channel.stream_stream(_STREAM)()
    await stream.write(_field(2, _field(2, data)) if name == "invalid_utf8" else data)
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
async def test_an_unknown_enum_is_forwarded(channel: grpc.aio.Channel, data: bytes, notice: str) -> None:
    """A newer client gets an answer that hurts nobody."""
    identity = _field(5, _field(1, b"conv-7f3a"))
    answer = service_pb2.EnrichResponse.FromString(await channel.unary_unary(_ENRICH)(data + identity))
    assert answer.rank_directive == types_pb2.RANK_DIRECTIVE_FORWARD
    assert list(answer.notices) == [notice]
    assert not answer.HasField("hints")


async def test_unknown_fields_are_ignored(channel: grpc.aio.Channel) -> None:
    """A field of a later contract does not change the answer."""
    later = _field(500, b"new") + _number(501, 1)
    call = channel.unary_unary(_ENRICH)
    answers = []
    for data in (_GOOD.SerializeToString(), _GOOD.SerializeToString() + later):
        answer = service_pb2.EnrichResponse.FromString(await call(data))
        answer.ClearField("decision_id")
        answers.append(answer)
    assert answers[0] == answers[1]


async def test_ten_thousand_metadata_entries_are_refused(channel: grpc.aio.Channel) -> None:
    """GRPC's own headers have a limit too."""
    metadata = tuple((f"x-header-{number}", "value") for number in range(10_000))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(_ENRICH)(_GOOD.SerializeToString(), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_unknown_method_is_refused(channel: grpc.aio.Channel) -> None:
    """A call of nothing is UNIMPLEMENTED."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary("/routing_hints.v1.RoutingHintsService/Guess")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("end", ["cancel", "close"])
async def test_a_stream_cut_in_mid_batch_leaves_nothing(
    sidecar: SidecarServer, undisturbed: None, end: str
) -> None:
    """A peer that goes away while its batch is decided does no harm; its stream is closed."""
    items = [service_pb2.EnrichItem(seq=seq, request=_GOOD) for seq in range(4_096)]
    channel = grpc.aio.insecure_channel(sidecar.target, options=[("grpc.channel_id", 1)])
    stream = service_pb2_grpc.RoutingHintsServiceStub(channel).EnrichStream()
    await stream.write(service_pb2.EnrichStreamRequest(items=items))
    if end == "cancel":
        stream.cancel()
    await channel.close()
    async with grpc.aio.insecure_channel(sidecar.target) as other:
        await _wait_for_open_streams(other, 1)


async def _wait_for_open_streams(channel: grpc.aio.Channel, count: int) -> None:
    admin = admin_pb2_grpc.RoutingHintsAdminServiceStub(channel)
    while (await admin.GetStats(admin_pb2.GetStatsRequest())).open_streams != count:
        pass


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
async def test_bytes_that_are_no_grpc_do_no_harm(
    sidecar: SidecarServer, undisturbed: None, data: bytes
) -> None:
    """Another protocol on the socket, and a frame cut in the middle, end their connection only."""
    _, writer = await asyncio.open_unix_connection(Path(sidecar.target.removeprefix("unix:")))
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_a_defect_is_an_error_of_its_item(
    start_sidecar: Callable[[], Awaitable[SidecarServer]], capfd: pytest.CaptureFixture[str]
) -> None:
    """Should the decision fail, the item gets INTERNAL and the log the place, once and without values."""
    server = await start_sidecar()
    broken: Any = object()
    server.holder.current = broken
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub = service_pb2_grpc.RoutingHintsServiceStub(channel)
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Enrich(_GOOD)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
    written = "".join(capfd.readouterr())
    assert written.count("AttributeError in decide") == 1
    assert "conv-7f3a" not in written


def test_the_wire_helpers_speak_protobuf() -> None:
    """The bytes of these tests are what protobuf itself would write."""
    message: Message = service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL, known_rank=300)
    assert _PHASE + _number(12, 300) == message.SerializeToString()
