"""Carriers in fields of the request body, in Dynamo's metadata and in Dynamo's annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping

from routing_hints import tokens
from routing_hints.vocabulary import IdentitySource
from sidecar.identity.carrier import Carrier, Fields, Reading, read_object, take_text
from sidecar.model import Identity

_METADATA_KEY = "conversation-id"
_ANNOTATION_PREFIX = "conversation_id:"
_USER_ID_PATH = "metadata.user_id"
# Claude Code's format before it sent JSON; the account can be empty. Source: coder/aibridge#241.
_USER_ID_PATTERN = re.compile(
    "user_[0-9a-f]{64}_account_(?:[0-9a-f-]{36})?"
    "_session_([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
)


def make_body_carrier(*paths: str) -> Carrier:
    """Returns the carrier of a field of the body.

    Args:
        paths: dotted paths; the first one that the body has is read.
    """

    def read(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
        for path in paths:
            value = identity.body.get(path)
            if value is not None:
                return Reading(f"body:{path}", value)
        return None

    name = f"body:{paths[0]}"
    return Carrier(name, name, IdentitySource.BODY, read, Fields(body=frozenset(paths)))


def _read_user_id(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    user_id = identity.body.get(_USER_ID_PATH)
    if user_id is None:
        return None
    name = f"body:{_USER_ID_PATH}"
    match = _USER_ID_PATTERN.fullmatch(user_id.strip())
    session_id = match[1] if match else take_text(read_object(user_id).get("session_id"))
    return Reading(name, session_id, refusal="" if session_id else tokens.NAMES_NO_SESSION)


def _read_metadata(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    value = identity.metadata.get(_METADATA_KEY)
    return None if value is None else Reading(METADATA.name, value)


def _read_annotation(identity: Identity, _headers: Mapping[str, str]) -> Reading | None:
    for annotation in identity.annotations:
        if annotation.startswith(_ANNOTATION_PREFIX):
            return Reading(ANNOTATION.name, annotation[len(_ANNOTATION_PREFIX) :])
    return None


USER_ID = Carrier(
    f"body:{_USER_ID_PATH}",
    f"body:{_USER_ID_PATH}",
    IdentitySource.BODY,
    _read_user_id,
    Fields(body=frozenset({_USER_ID_PATH})),
)
"""Anthropic's `metadata.user_id`; only its session part, in either of two formats, names a conversation."""

METADATA = Carrier(
    f"metadata:{_METADATA_KEY}",
    f"metadata:{_METADATA_KEY}",
    IdentitySource.METADATA,
    _read_metadata,
    Fields(metadata=frozenset({_METADATA_KEY})),
)
"""Filled by Dynamo's frontend from the header `x-dynamo-meta-conversation-id`."""

ANNOTATION = Carrier(
    "annotation:conversation_id",
    "annotation:conversation_id",
    IdentitySource.ANNOTATION,
    _read_annotation,
    Fields(annotations=frozenset({_ANNOTATION_PREFIX})),
)
