"""Hypothesis strategies for what a host may pass to the worker client."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


class Awkward:
    """An object that raises on every use."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name) if name.startswith("_") else RuntimeError("awkward")

    def __bool__(self) -> bool:
        raise RuntimeError("awkward")

    def __len__(self) -> int:
        raise RuntimeError("awkward")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("awkward")

    def __hash__(self) -> int:
        raise RuntimeError("awkward")

    def __getitem__(self, key: object) -> Any:
        raise RuntimeError("awkward")

    def __repr__(self) -> str:
        return "Awkward()"


class AwkwardMapping(Awkward):
    """One with the methods of a mapping, which raise, too."""

    def keys(self) -> Any:
        raise RuntimeError("awkward")

    def get(self, key: object, default: object = None) -> Any:
        raise RuntimeError("awkward")

    def __iter__(self) -> Any:
        raise RuntimeError("awkward")


FIELD_NAMES = (
    "_HEALTH_CHECK",
    "agent_context",
    "agent_headers",
    "annotations",
    "cache_salt",
    "conversation_id",
    "conversation_params",
    "ctx_dp_rank",
    "disaggregated_params",
    "dp_rank",
    "extra_args",
    "model",
    "nvext",
    "parent_session_id",
    "prefill_dp_rank",
    "prefill_result",
    "prefill_worker_id",
    "prompt_tokens_details",
    "routing",
    "session_control",
    "session_final",
    "session_id",
    "timeout",
    "token_ids",
    "trajectory_id",
    "worker_id",
)

awkward = st.one_of(st.builds(Awkward), st.builds(AwkwardMapping), st.builds(object))
"""Objects that no reader expects."""

any_text = st.text(st.characters(), max_size=12)
"""Text, lone surrogates included."""

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), any_text, st.binary(max_size=12), awkward
)

json_like = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(FIELD_NAMES), any_text, st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)
"""JSON-like values and others between them; the known field names are frequent."""

requests = st.one_of(
    json_like,
    st.dictionaries(st.sampled_from(FIELD_NAMES), json_like, max_size=5),
)
"""What may be passed as the request."""


class ContextOf:
    """A context with any metadata, id and trace headers."""

    def __init__(self, metadata: object, request_id: object, trace_headers: object) -> None:
        self.metadata = metadata
        self._id = request_id
        self._trace_headers = trace_headers

    def id(self) -> object:
        return self._id

    def trace_headers(self) -> object:
        return self._trace_headers


contexts = st.one_of(json_like, st.builds(ContextOf, json_like, json_like, json_like))
"""What may be passed as the context."""
