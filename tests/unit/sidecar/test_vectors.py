"""The vectors of the identity rules: each holds, and together they cover what clients really send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.conformance.check import list_differences
from sidecar.conformance.vector import Vector, load_policies, load_vectors
from sidecar.decision.decide import decide
from sidecar.identity.catalogue import CARRIERS
from sidecar.model import AdpRouter, Engine, EngineDialect, Identity, Phase, Query
from sidecar.policy.compiler import compile_policy
from sidecar.policy.schema import Policy
from sidecar.wire.request_codec import decode_query
from sidecar.wire.response_codec import encode_answer

VECTORS = load_vectors()
POLICIES = {name: compile_policy(Policy(identity=identity)) for name, identity in load_policies().items()}

# What real clients, gateways and engines send, one word each; docs/identity.md describes them.
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
# What was seen to break elsewhere.
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
def test_the_vector_holds(vector: Vector) -> None:
    """The decision answers what the vector expects under the policy that it supposes."""
    answer = decide(decode_query(vector.request), POLICIES[vector.policy])
    assert list_differences(vector, encode_answer(answer, "decision")) == []


def test_vectors_have_names_of_their_own() -> None:
    """A failed vector can be found."""
    assert len({str(vector) for vector in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize("sent", SENT)
def test_what_clients_send_has_a_vector_that_is_taken_and_one_that_is_not(sent: str) -> None:
    """Reading too little and reading too much would both be noticed."""
    assert {vector.is_taken for vector in VECTORS if sent in vector.about} == {True, False}


def test_every_symptom_has_a_vector() -> None:
    """What broke elsewhere is played here; nothing is tagged that is not listed."""
    assert {vector.symptom for vector in VECTORS if vector.symptom} == SYMPTOMS


def test_every_carrier_wins_some_vector() -> None:
    """No carrier of the catalogue is untested."""
    won = {vector.expect["source_detail"] for vector in VECTORS}
    untested = [
        carrier.key
        for carrier in CARRIERS.values()
        if carrier.name not in won and not any(name.startswith(f"{carrier.name}.") for name in won)
    ]
    assert untested == []


def test_every_policy_of_the_vectors_is_used() -> None:
    """Each supposed policy has a vector, and each has an epoch of its own by which it is recognised."""
    assert {vector.policy for vector in VECTORS} == set(POLICIES)
    assert len({policy.identity_epoch for policy in POLICIES.values()}) == len(POLICIES)


def test_a_wrong_answer_is_noticed() -> None:
    """Negative control: under the policy of another site a vector fails."""
    vector = next(each for each in VECTORS if each.name == "own-header")
    answer = decide(decode_query(vector.request), POLICIES["default"])
    assert list_differences(vector, encode_answer(answer, "decision")) == [
        "source_detail: '' instead of 'header:x-acme-conversation'",
        "conversation_id: None instead of 'conv-7f3a'",
        "affinity_key: None instead of 'root-1'",
    ]


def test_wrong_notices_are_noticed() -> None:
    """Negative control: a missing and an unexpected notice are both a difference."""
    final = next(each for each in VECTORS if each.name == "final-header")
    alone = next(each for each in VECTORS if each.name == "final-header-that-is-no-boolean")
    answer = decide(decode_query(final.request), POLICIES["default"])
    other = decide(decode_query(alone.request), POLICIES["default"])
    assert list_differences(alone, encode_answer(answer, "")) == ["notices: session-final is not expected"]
    assert list_differences(final, encode_answer(other, "")) == ["notices: session-final is missing"]


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
def test_the_native_profile_answers_as_the_published_rule(
    body_id: str, headers: dict[str, str], tenant: str
) -> None:
    """Whatever headers and body hold, the id is the one that trtllm-serve would take."""
    folded = {name.lower(): value.strip() for name, value in headers.items()}
    expected = body_id.strip() or next(filter(None, map(folded.get, _NATIVE_HEADERS)), None)
    identity = Identity(conversation_id=body_id, headers=headers)
    query = Query(Phase.PREFILL, identity=identity, engine=_ENGINE, tenant=tenant)
    answer = decide(query, POLICIES["trtllm-serve"])
    assert (answer.conversation_id, answer.affinity_key) == (expected, expected)


def _pair(max_characters: int) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=max_characters)).map(
        lambda pair: (pair[0].strip(), pair[1].strip())
    )


@given(
    # Three characters are at most 12 bytes, so scope `weak` keeps them apart too.
    st.just("scope-all") | st.just("derive-always") | st.just("default"),
    st.data(),
)
def test_tenants_never_share_an_id_where_scoping_applies(policy: str, data: st.DataObject) -> None:
    """Different tenants or sessions have different ids, through the whole decision."""
    pairs = _pair(3 if policy != "scope-all" else 300)
    first, second = data.draw(pairs), data.draw(pairs)
    ids = [
        decide(
            Query(
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
