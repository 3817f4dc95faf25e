"""The vectors of the identity rules: each holds, and together they cover what clients really send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_hints.v1 import service_pb2
from routing_hints.vocabulary import AdpRouter, EngineDialect, Phase
from sidecar.conformance.check import list_differences
from sidecar.conformance.vector import Vector, load_policies, load_vectors
from sidecar.decision.decide import decide
from sidecar.identity.catalogue import CARRIERS
from sidecar.model import Engine, Identity, Request
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.wire.request_codec import decode_request
from sidecar.wire.response_codec import encode_decision

VECTORS = load_vectors()
POLICIES = {name: compile_policy(Policy(identity=identity)) for name, identity in load_policies().items()}


def decide_message(message: service_pb2.EnrichRequest, policy: str) -> service_pb2.EnrichResponse:
    request, identity = decode_request(message)
    return encode_decision(decide(request._replace(identity=identity.read()), POLICIES[policy]))


# What real clients, gateways and engines send; docs/identity.md describes each.
SENT = (
    "x-dynamo-session-id",
    "x-dynamo-parent-session-id",
    "x-dynamo-session-final",
    "session_control",
    "agent_context",
    "conversation_params",
    "disaggregated_params",
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "x-claude-session-id",
    "x-claude-code-compaction",
    "metadata.user_id",
    "codex-session-id",
    "codex-thread-id",
    "x-codex-parent-thread-id",
    "x-codex-turn-metadata",
    "x-codex-window-id",
    "x-openai-subagent",
    "prompt_cache_key",
    "previous_response_id",
    "conversation",
    "user",
    "metadata.session_id",
    "session_params.session_id",
    "x-smg-routing-key",
    "x-sgl-routing-key",
    "rid",
    "x-session-id",
    "x-session-affinity",
    "x-opencode-session",
    "x-correlation-id",
    "x-multi-turn-session-id",
    "x-litellm-session-id",
    "x-session-token",
    "x-aibrix-session-key",
    "x-user-id",
    "x-amp-thread-id",
    "x-deepseek-harness-session-id",
    "x-nemo-relay-session-id",
    "provider-session-id",
    "gateway-session-id",
    "langgraph-thread-id",
    "baggage",
    "cookie",
    "content-fingerprint",
    "openengine-routing-key",
    "metadata-conversation-id",
    "annotation-conversation-id",
    "x-trtllm-subagent-affinity-id",
    "own-header",
)
# What broke in other projects.
SYMPTOMS = {
    "client-sends-no-key",
    "fallback-chain",
    "silent-fall-through",
    "similar-ids-taken-as-one",
    "gateway-stamps-a-key-per-request",
    "sub-agent-shares-the-cache-key",
    "tree-shares-one-session-id",
    "user-id-changed-its-format",
    "fingerprint-collides",
    "headers-vanished-in-a-release",
    "resume-mints-a-new-thread",
    "user-id-random-per-request",
    "format-flips-mid-task",
    "header-spelled-with-an-underscore",
    "placeholder-id",
    "client-sets-an-internal-header",
    "client-fills-the-table",
    "key-that-must-not-be-echoed",
    "sub-agents-inherit-the-session",
}


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_vector_holds(vector: Vector) -> None:
    assert list_differences(vector, decide_message(vector.request, vector.policy)) == []


def test_no_two_vectors_have_one_name() -> None:
    assert len({str(vector) for vector in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize("sent", SENT)
def test_what_clients_send_has_a_vector_that_is_taken_and_one_that_is_not(sent: str) -> None:
    """So reading too little and reading too much are both noticed."""
    assert {vector.is_taken for vector in VECTORS if sent in vector.about} == {True, False}


def test_every_symptom_has_a_vector_and_every_vectors_symptom_is_listed() -> None:
    assert {vector.symptom for vector in VECTORS if vector.symptom} == SYMPTOMS


def test_every_carrier_of_the_catalogue_is_selected_in_some_vector() -> None:
    won = {vector.expect["source_detail"] for vector in VECTORS}
    untested = [
        carrier.key
        for carrier in CARRIERS.values()
        if carrier.name not in won and not any(name.startswith(f"{carrier.name}.") for name in won)
    ]
    assert untested == []


def test_every_policy_has_a_vector_and_an_epoch_of_its_own() -> None:
    """`conformance` recognizes the policy of a sidecar by its epoch."""
    assert {vector.policy for vector in VECTORS} == set(POLICIES)
    assert len({policy.identity_epoch for policy in POLICIES.values()}) == len(POLICIES)


def test_wrong_decision_is_noticed() -> None:
    """Negative control: under the policy of another site a vector fails."""
    vector = next(each for each in VECTORS if each.name == "own-header")
    assert list_differences(vector, decide_message(vector.request, "default")) == [
        "source_detail: '' instead of 'header:x-acme-conversation'",
        "conversation_id: None instead of 'conv-7f3a'",
        "affinity_key: None instead of 'root-1'",
    ]


def test_wrong_notices_are_noticed() -> None:
    """Negative control: a missing and an unexpected notice are both a difference."""
    final = next(each for each in VECTORS if each.name == "final-header")
    alone = next(each for each in VECTORS if each.name == "final-header-that-is-no-boolean")
    decision = decide_message(final.request, "default")
    other = decide_message(alone.request, "default")
    assert list_differences(alone, decision) == ["notices: session-final is not expected"]
    assert list_differences(final, other) == ["notices: session-final is missing"]


# TensorRT-LLM's published rule: the body's id, else the first header of this list that is not blank.
_NATIVE_HEADERS = (
    "x-claude-code-session-id",
    "x-claude-session-id",
    "x-session-id",
    "x-correlation-id",
    "x-session-affinity",
    "x-multi-turn-session-id",
)
_ENGINE = Engine(EngineDialect.CONVERSATION_PARAMS, AdpRouter.CONVERSATION, subagent_affinity=True)
_values = st.text(max_size=20) | st.sampled_from(["null", "rh1-1", " a ", "a\tb", "x" * 300, ""])


@given(
    st.just("") | _values,
    st.dictionaries(
        st.sampled_from([*_NATIVE_HEADERS, "X-Session-ID", "x-dynamo-session-id", "thread-id", "x-user-id"]),
        _values,
        max_size=5,
    ).filter(lambda headers: not {"x-session-id", "X-Session-ID"} <= headers.keys()),
    st.text(max_size=5),
)
def test_profile_trtllm_serve_selects_the_id_that_trtllm_serve_would(
    body_id: str, headers: dict[str, str], tenant: str
) -> None:
    folded = {name.lower(): value.strip() for name, value in headers.items()}
    expected = body_id.strip() or next(filter(None, map(folded.get, _NATIVE_HEADERS)), None)
    identity = Identity(conversation_id=body_id, headers=headers)
    request = Request(Phase.PREFILL, identity=identity, engine=_ENGINE, tenant=tenant)
    decision = decide(request, POLICIES["trtllm-serve"])
    assert (decision.conversation_id, decision.affinity_key) == (expected, expected)


def _pair(max_characters: int) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=max_characters)).map(
        lambda pair: (pair[0].strip(), pair[1].strip())
    )


@given(
    # Three characters are at most 12 bytes, so scope `weak` keeps them apart too.
    st.just("scope-all") | st.just("derive-always") | st.just("default"),
    st.data(),
)
def test_different_tenants_or_sessions_have_different_ids_where_scoping_applies(
    policy: str, data: st.DataObject
) -> None:
    pairs = _pair(3 if policy != "scope-all" else 300)
    first, second = data.draw(pairs), data.draw(pairs)
    ids = [
        decide(
            Request(
                Phase.PREFILL,
                identity=Identity(headers={"x-session-id": session_id}),
                engine=_ENGINE,
                tenant=tenant,
            ),
            POLICIES[policy],
        ).conversation_id
        for tenant, session_id in (first, second)
    ]
    if None not in ids:
        assert (ids[0] == ids[1]) == (first == second)
