"""Every field of a request decides, and is in the key of the client's memory, or is known not to decide.

A remembered decision is applied to every request of the same key. A field that decides and is not in the key
would apply the decision about one request to another. A new field of the contract is on none of these lists,
and fails here until somebody has decided which one it belongs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from routing_hints.v1 import service_pb2
from tests.support.builders import build_pending, build_profile
from worker_client import Phase, RequestKind, _codec
from worker_client._model import ClientPolicy
from worker_client._pending_request import PendingRequest
from worker_client._request import AgentContext, RequestFacts, SessionControl

POLICY = ClientPolicy(
    headers=("h",), metadata=("m",), body=("b",), annotations=("a:",), baggage=("session.id",)
)
AGENT = AgentContext("session", "parent", False, "trajectory", "parent-trajectory")
CONTROL = SessionControl("session", "open", 1)
BASE: dict[str, Any] = {
    "phase": Phase.PREFILL,
    "request_id": "request",
    "model": "model",
    "tenant": "tenant",
    "prompt_tokens": 1,
    "traceparent": "trace",
    "conversation_id": "conversation",
    "agent_context": AGENT,
    "session_control": CONTROL,
    "headers": {"h": "1"},
    "metadata": {"m": "1"},
    "annotations": ("a:1",),
    "body": {"b": "1"},
    "router_rank": 0,
}
"""A request with every field that the client fills in."""

IN_KEY: dict[str, dict[str, Any]] = {
    "phase": {"phase": Phase.DECODE},
    "identity.conversation_id": {"conversation_id": "other"},
    "identity.agent_context.session_id": {"agent_context": replace(AGENT, session_id="other")},
    "identity.agent_context.parent_session_id": {"agent_context": replace(AGENT, parent_session_id="other")},
    "identity.agent_context.trajectory_id": {"agent_context": replace(AGENT, trajectory_id="other")},
    "identity.agent_context.parent_trajectory_id": {
        "agent_context": replace(AGENT, parent_trajectory_id="other")
    },
    "identity.session_control.session_id": {"session_control": replace(CONTROL, session_id="other")},
    "identity.headers": {"headers": {"h": "2"}},
    "identity.metadata": {"metadata": {"m": "2"}},
    "identity.annotations": {"annotations": ("a:2",)},
    "identity.body": {"body": {"b": "2"}},
    "model": {"model": "other"},
    "tenant": {"tenant": "other"},
    "engine_instance": {"instance_id": "other"},
    # Whether the upstream router sent a rank decides whether the sidecar places; which one does not.
    "hints.dp_rank": {"router_rank": None},
}
"""By path: a change of the facts, or of the engine, that changes this field alone."""

DOES_NOT_DECIDE: dict[str, dict[str, Any]] = {
    # Constant: no request of another kind is submitted.
    "kind": {"kind": RequestKind.UNSPECIFIED},
    # Weighs the placement of a first turn, to which later turns then return.
    "prompt_tokens": {"prompt_tokens": 2},
    "traceparent": {"traceparent": "other"},
    # State that this is a conversation's last request, which ends it and changes no id and no rank.
    "identity.agent_context.session_final": {"agent_context": replace(AGENT, session_final=True)},
    "identity.session_control.action": {"session_control": replace(CONTROL, action="close")},
    "identity.session_control.timeout": {"session_control": replace(CONTROL, timeout=2)},
}
"""The sidecar decides alike whatever they hold."""

HOLDS_FOR_ONE_REQUEST: dict[str, dict[str, Any]] = {
    # Chooses the share of a rollout where there is no conversation; then nothing is remembered.
    "request_id": {"request_id": "other"},
    # What the client remembers itself.
    "known_rank": {"known_rank": 1},
}
"""A decision that rests on them is not remembered, or was made from what is."""

NOT_FILLED_IN = {
    # The stream's hello names the worker.
    "worker_id",
    # Only a response has them.
    "hints.conversation_id",
    "hints.affinity_key",
}
"""Fields that the client leaves unset."""

LISTS = {**IN_KEY, **DOES_NOT_DECIDE, **HOLDS_FOR_ONE_REQUEST}


def walk_leaves(message: Descriptor, prefix: str = "") -> Iterator[str]:
    """The path of every field that holds a value; a map is one."""
    for field in message.fields:
        path = prefix + field.name
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.type == FieldDescriptor.TYPE_MESSAGE and not is_map:
            yield from walk_leaves(field.message_type, f"{path}.")
        else:
            yield path


LEAVES = [
    path
    for path in sorted(walk_leaves(service_pb2.EnrichRequest.DESCRIPTOR))
    if not path.startswith("engine.")  # on a stream `engine_instance` stands for it
]
FILLED_IN = [path for path in LEAVES if path not in NOT_FILLED_IN]


def build(instance_id: str = "engine", known_rank: int = 0, **changes: Any) -> PendingRequest:
    engine = build_profile(instance_id=instance_id)
    pending = build_pending(RequestFacts(**{**BASE, **changes}), engine, POLICY)
    pending.known_rank = known_rank
    return pending


def encode(pending: PendingRequest) -> service_pb2.EnrichRequest:
    item = service_pb2.EnrichItem()
    _codec.fill_item(item, pending)
    return item.request


def read_leaf(message: Message, path: str) -> object:
    """The value at a path; None where a message on the way, or an optional field, is unset."""
    *parents, name = path.split(".")
    for parent in parents:
        if not message.HasField(parent):
            return None
        message = getattr(message, parent)
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name):
        return None
    value = getattr(message, name)
    return sorted(value.items()) if hasattr(value, "items") else value


def list_filled(message: service_pb2.EnrichRequest) -> list[str]:
    assert not message.HasField("engine")
    empty = service_pb2.EnrichRequest()
    return [path for path in LEAVES if read_leaf(message, path) not in (None, read_leaf(empty, path))]


def list_changed(one: service_pb2.EnrichRequest, other: service_pb2.EnrichRequest) -> list[str]:
    return [path for path in LEAVES if read_leaf(one, path) != read_leaf(other, path)]


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_of_a_request_is_on_one_list(path: str) -> None:
    """A new field fails here: does the sidecar decide by it?"""
    lists = (IN_KEY, DOES_NOT_DECIDE, HOLDS_FOR_ONE_REQUEST, NOT_FILLED_IN)
    assert sum(path in names for names in lists) == 1


def test_no_list_has_a_field_that_a_request_has_not() -> None:
    assert set(LISTS) | NOT_FILLED_IN <= set(LEAVES)


async def test_the_client_fills_in_exactly_the_fields_that_are_listed_so() -> None:
    assert list_filled(encode(build())) == FILLED_IN


@pytest.mark.parametrize("path", IN_KEY)
async def test_a_field_that_decides_is_in_the_key(path: str) -> None:
    base, changed = build(), build(**IN_KEY[path])
    assert list_changed(encode(base), encode(changed)) == [path]
    assert base.key != changed.key


@pytest.mark.parametrize("path", [*DOES_NOT_DECIDE, *HOLDS_FOR_ONE_REQUEST])
async def test_a_field_that_changes_in_a_conversation_is_not_in_the_key(path: str) -> None:
    """Its next turn would not find the decision."""
    base, changed = build(), build(**LISTS[path])
    assert list_changed(encode(base), encode(changed)) == [path]
    assert base.key == changed.key


async def test_which_rank_the_router_sent_is_not_in_the_key() -> None:
    """It changes with each request, and only whether there is one decides."""
    assert build(router_rank=0).key == build(router_rank=1).key


async def test_a_member_of_baggage_that_the_policy_names_is_in_the_key() -> None:
    first, second = (build(headers={"h": "1", "baggage": f"session.id={name}"}) for name in ("s1", "s2"))
    assert list_changed(encode(first), encode(second)) == ["identity.headers"]
    assert first.key != second.key


async def test_another_member_of_baggage_is_neither_sent_nor_in_the_key() -> None:
    """Tracers write some that change with each request."""
    first, second = (build(headers={"h": "1", "baggage": f"session.id=s1,trace={n}"}) for n in (1, 2))
    assert list_changed(encode(first), encode(second)) == []
    assert first.key == second.key
