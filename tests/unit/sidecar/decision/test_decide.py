"""The decision as a whole: tenants, sub-agents, and that it is total and pure."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_hints import vocabulary
from routing_hints.vocabulary import CarrierVerdict, Phase
from sidecar.decision.decide import decide, explain
from sidecar.model import AgentContext, Engine, Identity, Request, SessionControl
from sidecar.policy.compiled import CompiledPolicy
from sidecar.wire.response_codec import encode_explanation
from tests.support.policies import compile_yaml

_ENGINE = Engine(
    dialect=vocabulary.EngineDialect.CONVERSATION_PARAMS,
    adp_router=vocabulary.AdpRouter.CONVERSATION,
    subagent_affinity=True,
)
_CHILD = Identity(agent_context=AgentContext("child", parent_session_id="parent"))
# From docs/contract.md.
_ONE_OF_TENANT_A = "rh1-a061aa27cd14682eec8ea9efe44a4101"
_ONE_OF_TENANT_B = "rh1-04fe34bb756544cbdfa33e03698cdc84"


def _compile_identity(identity: str = "") -> CompiledPolicy:
    return compile_yaml(f"identity: {{{identity}}}")


@pytest.mark.parametrize(
    ("tenant", "headers", "expected"),
    [
        ("tenant-a", {}, _ONE_OF_TENANT_A),
        ("", {"X-Tenant-Id": " tenant-b "}, _ONE_OF_TENANT_B),
        ("tenant-a", {"x-tenant-id": "tenant-b"}, _ONE_OF_TENANT_A),
        ("  ", {"x-tenant-id": "tenant-b"}, _ONE_OF_TENANT_B),
        ("", {"x-tenant-id": "  "}, "1"),
        ("", {}, "1"),
    ],
)
def test_tenant_of_the_request_else_of_the_header_scopes_short_ids(
    tenant: str, headers: dict[str, str], expected: str
) -> None:
    request = Request(
        Phase.PREFILL,
        identity=Identity(conversation_id="1", headers=headers),
        engine=_ENGINE,
        tenant=tenant,
    )
    assert decide(request, _compile_identity()).conversation_id == expected


def test_tenant_changes_no_id_under_scope_off() -> None:
    """Not even an id that is derived for another reason."""
    identity = Identity(conversation_id="line\nbreak", headers={"x-tenant-id": "b"})
    request = Request(Phase.PREFILL, identity=identity, engine=_ENGINE, tenant="tenant-a")
    decision = decide(request, _compile_identity("scope: off"))
    assert decision.conversation_id == "rh1-1d7a8a527d1c9e16da3a62cdd02d0045"


@pytest.mark.parametrize(
    ("subagents", "phase", "expected"),
    [
        ("off", Phase.PREFILL, "child"),
        ("context", Phase.PREFILL, "parent"),
        ("context", Phase.AGGREGATED, "parent"),
        ("context", Phase.DECODE, "child"),
        ("both", Phase.PREFILL, "parent"),
        ("both", Phase.AGGREGATED, "parent"),
        ("both", Phase.DECODE, "parent"),
    ],
)
def test_affinity_key_of_a_subagent_is_its_parents_id_in_the_phases_of_the_policy(
    subagents: str, phase: Phase, expected: str
) -> None:
    """The conversation id is always the child's own."""
    decision = decide(
        Request(phase, identity=_CHILD, engine=_ENGINE), _compile_identity(f"subagents: {subagents}")
    )
    assert (decision.conversation_id, decision.affinity_key) == ("child", expected)


def test_affinity_key_of_a_subagent_is_its_own_id_on_an_engine_without_subagent_affinity() -> None:
    engine = replace(_ENGINE, subagent_affinity=False)
    assert (
        decide(Request(Phase.PREFILL, identity=_CHILD, engine=engine), _compile_identity()).affinity_key
        == "child"
    )


@pytest.mark.parametrize(
    "identity",
    [
        Identity(agent_context=AgentContext("parent-1", parent_trajectory_id="x")),
        Identity(agent_context=AgentContext("parent-1", parent_session_id=" parent-1 ")),
        Identity(agent_context=AgentContext("parent-1", parent_session_id="none")),
        Identity(agent_context=AgentContext("run", "x", trajectory_id="parent-1")),
        Identity(headers={"x-session-id": "parent-1", "x-dynamo-parent-session-id": "x"}),
        Identity(session_control=SessionControl("parent-1")),
    ],
)
def test_session_itself_a_placeholder_and_the_parent_of_another_carrier_are_not_a_parent(
    identity: Identity,
) -> None:
    decision = decide(Request(Phase.PREFILL, identity=identity, engine=_ENGINE), _compile_identity())
    assert decision.affinity_key == "parent-1"


@pytest.mark.parametrize(
    "identity",
    [
        Identity(agent_context=AgentContext("run", trajectory_id="child", parent_trajectory_id="parent")),
        Identity(headers={"X-Dynamo-Session-ID": "child", "X-Dynamo-Parent-Session-ID": "parent"}),
        Identity(headers={"x-session-id": "child", "x-parent-session-id": " parent "}),
    ],
)
def test_parent_comes_from_the_selected_carrier(identity: Identity) -> None:
    decision = decide(Request(Phase.PREFILL, identity=identity, engine=_ENGINE), _compile_identity())
    assert (decision.conversation_id, decision.affinity_key) == ("child", "parent")


def test_affinity_key_of_a_scoped_subagent_equals_the_id_of_its_parent() -> None:
    request = Request(
        Phase.PREFILL,
        identity=Identity(agent_context=AgentContext("2", parent_session_id="1")),
        engine=_ENGINE,
        tenant="tenant-a",
    )
    assert decide(request, _compile_identity()).affinity_key == _ONE_OF_TENANT_A


def test_decision_that_attaches_no_id_names_the_conversation_by_its_hash_only() -> None:
    decision = decide(Request(Phase.PREFILL, identity=_CHILD, engine=Engine()), _compile_identity())
    assert (decision.conversation_id, decision.affinity_key) == (None, None)
    assert len(decision.conversation_hash) == 16


def test_decision_has_revision_and_epoch_of_its_policy() -> None:
    policy = _compile_identity("scope: all")
    decision = decide(Request(Phase.PREFILL), policy)
    assert (decision.policy_revision, decision.identity_epoch) == (policy.revision, policy.identity_epoch)


def test_spelling_of_a_header_that_sorts_first_wins_in_any_order() -> None:
    headers = {"x-session-id": "lower", "X-Session-Id": "title", "X-SESSION-ID": "upper"}
    for names in (list(headers), list(reversed(headers))):
        identity = Identity(headers={name: headers[name] for name in names})
        decision = decide(Request(Phase.PREFILL, identity=identity, engine=_ENGINE), _compile_identity())
        assert decision.conversation_id == "upper"


_texts = st.text(max_size=40) | st.sampled_from(["null", "1", "rh1-0", " a ", "a\nb", "x" * 300])
_BODY = (
    "conversation",
    "conversation.id",
    "metadata.user_id",
    "metadata.session_id",
    "session_id",
    "prompt_cache_key",
    "user",
)
# What only some carriers look into: JSON, broken JSON, baggage, percent-encoding, base64.
_odd_values = _texts | st.sampled_from(
    [
        '{"session_id": "s", "thread_id": "t", "parent_thread_id": "p"}',
        '{"session_id": "\\ud800", "thread_id": "t", "parent_thread_id": "\\ud800"}',
        "[" * 5_000,
        '{"session_id": ' + "9" * 5_000 + "}",
        "session.id=a%20b, gen_ai.conversation.id=%ff;x=y, =, ,",
        "MTAuMC4wLjc6ODAwMA==",
        "====",
        "t",
    ]
)
_HEADERS = (
    "X-Session-ID",
    "x-session-id",
    "x-parent-session-id",
    "x-dynamo-session-id",
    "x-dynamo-session-final",
    "x-tenant-id",
    "thread-id",
    "thread_id",
    "session-id",
    "x-codex-turn-metadata",
    "X-Claude-Code-Session-Id",
    "x-claude-code-agent-id",
    "x-claude-code-parent-agent-id",
    "x-nemo-relay-subagent-id",
    "Baggage",
    "x-correlation-id",
    "x-own",
)
_headers = st.dictionaries(_texts | st.sampled_from(_HEADERS), _odd_values, max_size=6)
_identities = st.builds(
    Identity,
    conversation_id=_texts,
    agent_context=st.none()
    | st.builds(AgentContext, _texts, _texts, st.booleans(), st.just("") | _texts, _texts),
    session_control=st.none() | st.builds(SessionControl, _texts, _texts),
    headers=_headers,
    metadata=st.dictionaries(st.just("conversation-id") | _texts, _texts, max_size=2),
    annotations=st.lists(_texts | _texts.map("conversation_id:{}".format), max_size=2).map(tuple),
    body=st.dictionaries(st.sampled_from(_BODY), _odd_values, max_size=3),
)
_engines = st.builds(
    Engine,
    st.sampled_from(vocabulary.EngineDialect),
    st.sampled_from(vocabulary.AdpRouter),
    st.sampled_from(vocabulary.RankSource),
    st.booleans(),
    st.integers(0, 65_536),
    st.booleans(),
    st.booleans(),
)
_requests = st.builds(
    Request,
    st.sampled_from(vocabulary.Phase),
    _texts,
    _texts,
    st.sampled_from(vocabulary.RequestKind),
    _identities,
    st.none() | st.integers(0, 2**32 - 1),
    _engines,
    _texts,
    st.just(()) | st.just(("phase",)),
)
_policies = st.builds(
    "operational: {{mode: {}, rollout_percent: {}, single_use_guard: {}}}\nidentity: {{{}}}".format,
    st.sampled_from(["on", "shadow", "off"]),
    st.sampled_from([0, 50, 100]),
    st.sampled_from(["report", "enforce"]),
    st.sampled_from(
        [
            "profile: default",
            "profile: trtllm-serve",
            "profile: dynamo",
            "scope: off, subagents: off",
            "scope: all, subagents: both, prompt_cache_key: affinity",
            "ids: derive_always, trajectory_scope: run",
            "agent_context: affinity-only, prompt_cache_key: affinity",
            "order: [{header: X-Own, parent_header: x-parent-session-id}, codex, conversation_id]",
        ]
    ),
).map(compile_yaml)
_suspended = st.sets(st.sampled_from(["header:x-session-id", "conversation_id", "header:thread-id"]))


@given(_requests, _policies, _suspended)
def test_decision_is_the_same_each_time_changes_nothing_and_equals_its_explanation(
    request: Request, policy: CompiledPolicy, suspended: set[str]
) -> None:
    before = copy.deepcopy(request)
    decision = decide(request, policy, suspended)
    assert decide(request, policy, suspended) == decision
    assert explain(request, policy, suspended).decision == decision
    assert request == before


@given(_requests, _policies)
def test_explanation_has_no_value_that_protobuf_refuses(request: Request, policy: CompiledPolicy) -> None:
    message = encode_explanation(explain(request, policy))
    assert type(message).FromString(message.SerializeToString()) == message


@given(_requests, _policies)
def test_carrier_that_explain_shows_as_taken_is_the_one_of_the_decision(
    request: Request, policy: CompiledPolicy
) -> None:
    explanation = explain(request, policy)
    taken = [(t.name, t.conversation_hash) for t in explanation.carriers if t.verdict is CarrierVerdict.TAKEN]
    decision = explanation.decision
    assert taken == ([(decision.source_detail, decision.conversation_hash)] if decision.source_detail else [])
    assert len(explanation.carriers) == len(policy.identity.carriers)


@given(_requests, _policies)
def test_rank_is_withheld_only_with_an_id_except_for_the_kv_cache_aware_router(
    request: Request, policy: CompiledPolicy
) -> None:
    decision = decide(request, policy)
    if decision.directive is vocabulary.RankDirective.WITHHOLD:
        probes = request.engine.adp_router is vocabulary.AdpRouter.KV_CACHE_AWARE
        assert probes or decision.conversation_id is not None
    assert (decision.affinity_key is None) == (decision.conversation_id is None)


@given(_requests, _policies)
def test_place_needs_rank_source_sidecar_and_a_known_dp_size(
    request: Request, policy: CompiledPolicy
) -> None:
    if decide(request, policy).directive is vocabulary.RankDirective.PLACE:
        assert request.engine.rank_source is vocabulary.RankSource.SIDECAR
        assert request.engine.dp_size > 0


@given(_requests, st.randoms(use_true_random=False))
def test_case_and_order_of_headers_do_not_change_the_decision(request: Request, random: object) -> None:
    headers = {name.lower(): value for name, value in request.identity.headers.items() if name.isascii()}
    names = list(headers)
    random.shuffle(names)  # type: ignore[attr-defined]
    other = {name.upper(): headers[name] for name in names}
    decisions = [
        decide(request._replace(identity=request.identity._replace(headers=variant)), _compile_identity())
        for variant in (headers, other)
    ]
    assert decisions[0] == decisions[1]


@given(_requests)
def test_only_the_headers_that_clients_are_sent_can_change_a_decision(request: Request) -> None:
    """They make the client's key, so dropping the others may change only what is of one request."""
    policy = _compile_identity()
    kept = {
        name: value for name, value in request.identity.headers.items() if name.lower() in policy.view.headers
    }
    reduced = request._replace(identity=request.identity._replace(headers=kept))
    decisions = [decide(each, policy) for each in (request, reduced)]
    notices = [tuple(each for each in decision.notices if each != "session-final") for decision in decisions]
    assert notices[0] == notices[1]
    assert decisions[0]._replace(session_final=False, notices=()) == decisions[1]._replace(
        session_final=False, notices=()
    )
