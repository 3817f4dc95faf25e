"""Reads the vectors: one file per family of clients, format in docs/conformance.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from routing_hints.v1 import service_pb2, types_pb2
from sidecar.policy.identity_schema import IdentityPolicy

DEFAULT_POLICY = "default"
_FOLDER = files("sidecar.conformance")
_REPEATS = "_repeats"
# An engine that pins conversations, takes an id, and places sub-agents by their parent.
_ENGINE = types_pb2.EngineProfile(
    dialect=types_pb2.ENGINE_DIALECT_CONVERSATION_PARAMS,
    adp_router=types_pb2.ADP_ROUTER_CONVERSATION,
    dp_size=4,
    subagent_affinity=True,
)


@dataclass(frozen=True, slots=True)
class Vector:
    """One request and the decision expected for it."""

    family: str
    name: str
    about: tuple[str, ...]
    """The carriers that it covers."""
    symptom: str
    """A failure seen in other systems that must not occur here; empty for none."""
    why: str
    policy: str
    """Name of the identity part that it applies to."""
    request: service_pb2.EnrichRequest
    expect: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"

    @property
    def is_taken(self) -> bool:
        """Whether a carrier of the request must be selected."""
        return bool(self.expect["source_detail"])


def load_vectors() -> tuple[Vector, ...]:
    """Returns all vectors."""
    paths = sorted(_FOLDER.joinpath("vectors").iterdir(), key=lambda path: path.name)
    documents = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths)
    return tuple(_make_vector(document, entry) for document in documents for entry in document["vectors"])


def load_policies() -> Mapping[str, IdentityPolicy]:
    """Returns the identity parts of the vectors, by name."""
    text = _FOLDER.joinpath("policies.yaml").read_text(encoding="utf-8")
    return {name: IdentityPolicy.model_validate(part) for name, part in yaml.safe_load(text).items()}


def _make_vector(document: Mapping[str, Any], entry: Mapping[str, Any]) -> Vector:
    return Vector(
        family=document["family"],
        name=entry["name"],
        about=tuple(entry["about"]),
        symptom=entry.get("symptom", ""),
        why=entry["why"],
        policy=entry.get("policy", document.get("policy", DEFAULT_POLICY)),
        request=_make_request(_expand(entry["request"])),
        expect=_expand(entry["expect"]),
    )


def _make_request(fields: Mapping[str, Any]) -> service_pb2.EnrichRequest:
    identity = types_pb2.Identity(
        conversation_id=fields.get("conversation_id", ""),
        headers=fields.get("headers"),
        metadata=fields.get("metadata"),
        annotations=fields.get("annotations"),
        body=fields.get("body"),
    )
    if "agent_context" in fields:
        identity.agent_context.CopyFrom(types_pb2.AgentContext(**fields["agent_context"]))
    if "session_control" in fields:
        identity.session_control.CopyFrom(types_pb2.SessionControl(**fields["session_control"]))
    return service_pb2.EnrichRequest(
        phase=f"PHASE_{fields.get('phase', 'prefill').upper()}",
        identity=identity,
        engine=_ENGINE,
        tenant=fields.get("tenant", ""),
    )


def _expand(value: Any) -> Any:
    """Replaces `name_repeats: [text, times]` by `name: texttexttext…`, in nested mappings too."""
    if not isinstance(value, dict):
        return value
    expanded = {}
    for name, inner in value.items():
        if name.endswith(_REPEATS):
            text, times = inner
            expanded[name.removesuffix(_REPEATS)] = text * times
        else:
            expanded[name] = _expand(inner)
    return expanded
