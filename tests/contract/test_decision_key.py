"""Every field of a request is in the key of remembered decisions, or on a list of those that do not decide.

A field that decides and is missing from the key would give one request the decision about another one. So a
new field of the contract fails here until it is in the key, or on a list on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from routing_hints.v1 import service_pb2, types_pb2

DOES_NOT_DECIDE = {
    "request_id": "names the request in records and logs; chooses by itself during a rollout, see below",
    "worker_id": "names an engine phase, which placement looks up after the decision",
    "model": "as worker_id",
    "prompt_tokens": "weighs a request in placement, after the decision",
    "traceparent": "joins a span to its trace",
    "known_rank": "is adopted by placement, after the decision",
    "hints.conversation_id": "ignored in a request",
    "hints.affinity_key": "ignored in a request",
    "engine.version": "shown in the log",
}
PRESENCE_DECIDES = {"hints.dp_rank": "whether the router chose a rank decides, which one it was does not"}

NUMBER_TYPES = (
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_FLOAT,
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_SFIXED32,
    FieldDescriptor.TYPE_SFIXED64,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
)
TEXTS = ("a", "b")
# Two values of each type.
VALUES: dict[int, tuple[Any, Any]] = {
    FieldDescriptor.TYPE_BOOL: (True, False),
    FieldDescriptor.TYPE_BYTES: (b"a", b"b"),
    FieldDescriptor.TYPE_STRING: TEXTS,
    **dict.fromkeys(NUMBER_TYPES, (1, 2)),
}
# Ranks have to be below it.
VALUES_BY_PATH: dict[str, tuple[Any, Any]] = {"engine.dp_size": (4, 8)}

FieldPath = tuple[FieldDescriptor, ...]


def list_leaves(descriptor: Descriptor, before: FieldPath = ()) -> Iterator[FieldPath]:
    """Gives the path of every field that is not a message of fields; a map is one leaf."""
    for field in descriptor.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is None or is_map:
            yield (*before, field)
        else:
            yield from list_leaves(field.message_type, (*before, field))


def name_path(path: FieldPath) -> str:
    return ".".join(field.name for field in path)


def is_repeated(field: FieldDescriptor) -> bool:
    # protobuf before 6.31 has no such property, and later ones warn about `label`.
    found: bool | None = getattr(field, "is_repeated", None)
    return found if found is not None else field.label == FieldDescriptor.LABEL_REPEATED


def set_leaf(message: Message, path: FieldPath, index: int) -> None:
    """Sets a field to the first or the second of its values."""
    *parents, leaf = path
    target = message
    for parent in parents:
        child = getattr(target, parent.name)
        target = child.add() if is_repeated(parent) else child
    if leaf.message_type is not None:
        getattr(target, leaf.name)["name"] = TEXTS[index]
        return
    value = VALUES_BY_PATH.get(name_path(path), VALUES[leaf.type])[index]
    if is_repeated(leaf):
        getattr(target, leaf.name).append(value)
    else:
        setattr(target, leaf.name, value)


def find_holder(message: Message, path: FieldPath) -> Message:
    """Returns the message that has the field, for a path without repeated messages."""
    for parent in path[:-1]:
        message = getattr(message, parent.name)
    return message


def make_message(
    message_class: type[Message], paths: Iterable[FieldPath], other: FieldPath | None = None
) -> Any:
    """Returns a message with the first value in every field, and the second one in the field `other`."""
    message = message_class()
    for path in paths:
        set_leaf(message, path, 1 if path == other else 0)
    return message


def make_pair(path: FieldPath) -> tuple[service_pb2.EnrichRequest, service_pb2.EnrichRequest]:
    """Returns two requests with every field set that differ in this one only."""
    leaves = list(list_leaves(service_pb2.EnrichRequest.DESCRIPTOR))
    pair = [make_message(service_pb2.EnrichRequest, leaves, other) for other in (None, path)]
    if name_path(path) == "engine_instance":
        # Read only where the request has no profile of its own.
        for message in pair:
            message.ClearField("engine")
    return pair[0], pair[1]


class KeyHarness:
    """The sidecar from the message to its memory of decisions."""

    def __init__(self, policy: str = "") -> None:
        # The worker client's tests run where the sidecar's libraries are not installed.
        parse_policy = pytest.importorskip(
            "sidecar.policy.file", reason="the sidecar is not installed"
        ).parse_policy
        from sidecar.decision.cache import DecisionCache
        from sidecar.policy.compiler import compile_policy
        from sidecar.wire.engine_codec import EngineRegistry
        from sidecar.wire.response_codec import serialize_decision

        self._policy = compile_policy(parse_policy(policy))
        self._engines = EngineRegistry()
        for instance_id in TEXTS:
            self._engines.register(types_pb2.EngineProfile(instance_id=instance_id))
        self._make_cache = lambda: DecisionCache(serialize_decision)

    def decide_all(self, *messages: service_pb2.EnrichRequest) -> list[Any]:
        """Decides about requests in order; a remembered decision is the same object."""
        from sidecar.wire.request_codec import decode_request

        cache = self._make_cache()
        decoded = (decode_request(message, self._engines) for message in messages)
        return [cache.decide(*each, self._policy, frozenset()) for each in decoded]

    def share_a_key(self, first: service_pb2.EnrichRequest, second: service_pb2.EnrichRequest) -> bool:
        """Returns whether the second request gets the decision about the first one."""
        decided = self.decide_all(first, second, first, second)
        # One that is not remembered would look like one with a key of its own.
        assert decided[0] is decided[2]
        assert decided[1] is decided[3]
        return decided[0] is decided[1]


@pytest.fixture
def harness() -> KeyHarness:
    return KeyHarness()


LEAVES = list(list_leaves(service_pb2.EnrichRequest.DESCRIPTOR))


@pytest.mark.parametrize("path", LEAVES, ids=map(name_path, LEAVES))
def test_field_is_in_the_key_or_on_a_list_of_those_that_do_not_decide(
    path: FieldPath, harness: KeyHarness
) -> None:
    is_listed = name_path(path) in {**DOES_NOT_DECIDE, **PRESENCE_DECIDES}
    assert harness.share_a_key(*make_pair(path)) is is_listed


@pytest.mark.parametrize("name", PRESENCE_DECIDES)
def test_presence_of_the_field_is_in_the_key(name: str, harness: KeyHarness) -> None:
    path = next(path for path in LEAVES if name_path(path) == name)
    present, _ = make_pair(path)
    absent = service_pb2.EnrichRequest()
    absent.CopyFrom(present)
    find_holder(absent, path).ClearField(path[-1].name)
    assert not harness.share_a_key(present, absent)


@pytest.mark.parametrize("name", ["identity", "identity.agent_context", "identity.session_control", "hints"])
def test_absent_message_differs_from_one_with_values(name: str, harness: KeyHarness) -> None:
    present = make_message(service_pb2.EnrichRequest, LEAVES)
    absent = make_message(
        service_pb2.EnrichRequest, [path for path in LEAVES if not name_path(path).startswith(f"{name}.")]
    )
    assert not harness.share_a_key(present, absent)


# A phase must be set.
ENUM_LEAVES = [path for path in LEAVES if path[-1].enum_type is not None and name_path(path) != "phase"]


@pytest.mark.parametrize("path", ENUM_LEAVES, ids=map(name_path, ENUM_LEAVES))
def test_unknown_enum_value_differs_from_an_unset_one(path: FieldPath, harness: KeyHarness) -> None:
    """Both are decoded as UNSPECIFIED, and only the unknown one is forwarded for that."""
    unset, unknown = (make_message(service_pb2.EnrichRequest, LEAVES) for _ in range(2))
    for message, number in ((unset, 0), (unknown, 99)):
        setattr(find_holder(message, path), path[-1].name, number)
    assert not harness.share_a_key(unset, unknown)


def test_lists_name_fields_of_the_contract_and_none_twice() -> None:
    names = {name_path(path) for path in LEAVES}
    assert names >= DOES_NOT_DECIDE.keys()
    assert names >= PRESENCE_DECIDES.keys()
    assert not DOES_NOT_DECIDE.keys() & PRESENCE_DECIDES.keys()


def test_walk_reaches_the_fields_of_nested_messages() -> None:
    names = {name_path(path) for path in LEAVES}
    assert {
        "phase",
        "engine_instance",
        "identity.headers",
        "identity.annotations",
        "identity.agent_context.session_final",
        "identity.session_control.timeout",
        "hints.dp_rank",
        "engine.max_active_requests",
    } <= names
    assert not {"identity", "identity.agent_context", "engine", "hints", "identity.headers.key"} & names


def test_requests_of_a_pair_differ_in_their_field_only() -> None:
    """So a verdict is about that field."""
    for path in LEAVES:
        first, second = make_pair(path)
        assert first != second
        for message in (first, second):
            find_holder(message, path).ClearField(path[-1].name)
        assert first == second, name_path(path)


def test_without_the_lists_exactly_their_fields_fail(harness: KeyHarness) -> None:
    """Negative control: this is what a new field on neither list looks like."""
    failing = {name_path(path) for path in LEAVES if harness.share_a_key(*make_pair(path))}
    assert failing == DOES_NOT_DECIDE.keys() | PRESENCE_DECIDES.keys()


def test_field_that_is_new_in_the_contract_is_walked_and_set() -> None:
    """Negative control of the walk: fields of every kind, in a message of their own, repeated or not."""
    string, message = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_MESSAGE
    one, many = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    prompt = DescriptorProto(name="Prompt")
    prompt.field.add(name="blocks", number=1, type=FieldDescriptorProto.TYPE_BYTES, label=one)
    prompt.field.add(name="end", number=2, type=FieldDescriptorProto.TYPE_FIXED64, label=one)
    request = DescriptorProto(name="Request")
    request.field.add(name="model", number=1, type=string, label=one)
    request.field.add(name="prompt", number=2, type=message, label=one, type_name=".test.Prompt")
    request.field.add(name="prompts", number=3, type=message, label=many, type_name=".test.Prompt")
    file = FileDescriptorProto(name="test.proto", package="test", syntax="proto3")
    file.message_type.extend([prompt, request])
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    message_class = GetMessageClass(pool.FindMessageTypeByName("test.Request"))
    paths = list(list_leaves(message_class.DESCRIPTOR))
    names = ["model", "prompt.blocks", "prompt.end", "prompts.blocks", "prompts.end"]
    assert [name_path(path) for path in paths] == names
    first = make_message(message_class, paths)
    assert all(make_message(message_class, paths, path) != first for path in paths)


def test_request_id_decides_only_during_a_rollout_and_is_not_remembered_then() -> None:
    """That is why it may stand on the list: such a decision holds for its request only."""
    message = service_pb2.EnrichRequest(phase=types_pb2.PHASE_PREFILL, request_id="r")
    first, again = KeyHarness("operational: {rollout_percent: 50}").decide_all(message, message)
    assert first is not again
    assert first == again
