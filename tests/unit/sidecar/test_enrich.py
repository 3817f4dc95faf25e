"""The decision as a whole: tenants, sub-agents, and that it is total and pure."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import model
from sidecar.decision.decide import decide, explain
from sidecar.model import AgentContext, CarrierVerdict, Engine, Identity, Phase, Query, SessionControl
from sidecar.policy.compiled import CompiledPolicy
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy
from sidecar.wire.response_codec import encode_explanation

_ENGINE = Engine(
    dialect=model.EngineDialect.CONVERSATION_PARAMS,
    adp_router=model.AdpRouter.CONVERSATION,
    subagent_affinity=True,
)
_CHILD = Identity(agent_context=AgentContext("child", parent_session_id="parent"))
# From docs/contract.md.
_ONE_OF_TENANT_A = "rh1-a061aa27cd14682eec8ea9efe44a4101"
_ONE_OF_TENANT_B = "rh1-04fe34bb756544cbdfa33e03698cdc84"


def _policy(identity: str = "") -> CompiledPolicy:
    return compile_policy(parse_policy(f"identity: {{{identity}}}"))


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
def test_the_tenant_scopes_short_ids(tenant: str, headers: dict[str, str], expected: str) -> None:
    """The request's tenant, else the header, keeps short ids apart."""
    query = Query(
        Phase.PREFILL,
        identity=Identity(conversation_id="1", headers=headers),
        engine=_ENGINE,
        tenant=tenant,
    )
    assert decide(query, _policy()).conversation_id == expected


def test_with_scope_off_there_is_no_tenant() -> None:
    """Neither the request's tenant nor the header changes an id, a derived one included."""
    identity = Identity(conversation_id="line\nbreak", headers={"x-tenant-id": "b"})
    query = Query(Phase.PREFILL, identity=identity, engine=_ENGINE, tenant="tenant-a")
    answer = decide(query, _policy("scope: off"))
    assert answer.conversation_id == "rh1-1d7a8a527d1c9e16da3a62cdd02d0045"


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
def test_a_subagent_is_placed_by_its_parent(subagents: str, phase: Phase, expected: str) -> None:
    """On the policy's legs the affinity key is the parent's, and the id is always the child's."""
    answer = decide(Query(phase, identity=_CHILD, engine=_ENGINE), _policy(f"subagents: {subagents}"))
    assert (answer.conversation_id, answer.affinity_key) == ("child", expected)


def test_subagents_are_placed_by_themselves_where_the_engine_has_no_parameter() -> None:
    """Without `subagent_affinity` the affinity key is the conversation."""
    engine = replace(_ENGINE, subagent_affinity=False)
    assert decide(Query(Phase.PREFILL, identity=_CHILD, engine=engine), _policy()).affinity_key == "child"


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
def test_some_parents_do_not_count(identity: Identity) -> None:
    """A parent of another carrier, the session itself and a placeholder are no parent."""
    answer = decide(Query(Phase.PREFILL, identity=identity, engine=_ENGINE), _policy())
    assert answer.affinity_key == "parent-1"


@pytest.mark.parametrize(
    "identity",
    [
        Identity(agent_context=AgentContext("run", trajectory_id="child", parent_trajectory_id="parent")),
        Identity(headers={"X-Dynamo-Session-ID": "child", "X-Dynamo-Parent-Session-ID": "parent"}),
        Identity(headers={"x-session-id": "child", "x-parent-session-id": " parent "}),
    ],
)
def test_each_carrier_names_the_parent_in_its_own_way(identity: Identity) -> None:
    """The parent comes from the carrier that won."""
    answer = decide(Query(Phase.PREFILL, identity=identity, engine=_ENGINE), _policy())
    assert (answer.conversation_id, answer.affinity_key) == ("child", "parent")


def test_a_parents_id_is_derived_like_any_other() -> None:
    """The affinity key of a scoped sub-agent equals its parent's own conversation id."""
    query = Query(
        Phase.PREFILL,
        identity=Identity(agent_context=AgentContext("2", parent_session_id="1")),
        engine=_ENGINE,
        tenant="tenant-a",
    )
    assert decide(query, _policy()).affinity_key == _ONE_OF_TENANT_A


def test_without_attachment_the_answer_holds_no_id() -> None:
    """Where no id is attached only the hash names the conversation."""
    answer = decide(Query(Phase.PREFILL, identity=_CHILD, engine=Engine()), _policy())
    assert (answer.conversation_id, answer.affinity_key) == (None, None)
    assert len(answer.conversation_hash) == 16


def test_the_answer_names_its_policy() -> None:
    """Revision and epoch of the deciding policy are in the answer."""
    policy = _policy("scope: all")
    answer = decide(Query(Phase.PREFILL), policy)
    assert (answer.policy_revision, answer.identity_epoch) == (policy.revision, policy.identity_epoch)


def test_two_spellings_of_a_header_do_not_depend_on_their_order() -> None:
    """The spelling that sorts first counts."""
    headers = {"x-session-id": "lower", "X-Session-Id": "title", "X-SESSION-ID": "upper"}
    for names in (list(headers), list(reversed(headers))):
        identity = Identity(headers={name: headers[name] for name in names})
        answer = decide(Query(Phase.PREFILL, identity=identity, engine=_ENGINE), _policy())
        assert answer.conversation_id == "upper"


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
    st.sampled_from(model.EngineDialect),
    st.sampled_from(model.AdpRouter),
    st.sampled_from(model.RankSource),
    st.booleans(),
    st.integers(0, 65_536),
    st.booleans(),
    st.booleans(),
)
_queries = st.builds(
    Query,
    st.sampled_from(model.Phase),
    _texts,
    _texts,
    st.sampled_from(model.RequestKind),
    _identities,
    st.none() | st.integers(0, 2**32 - 1),
    _engines,
    _texts,
    st.just(()) | st.just(("phase",)),
)
_policies = st.builds(
    "operational: {{mode: {}, rollout_percent: {}, one_shot_guard: {}}}\nidentity: {{{}}}".format,
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
).map(lambda text: compile_policy(parse_policy(text)))
_distrusted = st.sets(st.sampled_from(["header:x-session-id", "conversation_id", "header:thread-id"]))


@given(_queries, _policies, _distrusted)
def test_every_request_gets_the_same_answer_each_time(
    query: Query, policy: CompiledPolicy, distrusted: set[str]
) -> None:
    """The decision raises nothing, changes nothing, and agrees with its explanation."""
    before = copy.deepcopy(query)
    answer = decide(query, policy, distrusted)
    assert decide(query, policy, distrusted) == answer
    assert explain(query, policy, distrusted).answer == answer
    assert query == before


@given(_queries, _policies)
def test_every_answer_can_be_sent(query: Query, policy: CompiledPolicy) -> None:
    """No value of an answer or an explanation is one that protobuf refuses."""
    message = encode_explanation(explain(query, policy))
    assert type(message).FromString(message.SerializeToString()) == message


@given(_queries, _policies)
def test_explain_and_decide_agree_on_the_winner(query: Query, policy: CompiledPolicy) -> None:
    """The carrier that Explain shows as taken is the one that the answer names, and there is one at most."""
    explanation = explain(query, policy)
    taken = [(t.name, t.conversation_hash) for t in explanation.carriers if t.verdict is CarrierVerdict.TAKEN]
    answer = explanation.answer
    assert taken == ([(answer.source_detail, answer.conversation_hash)] if answer.source_detail else [])
    assert len(explanation.carriers) == len(policy.carriers)


@given(_queries, _policies)
def test_a_rank_is_withheld_only_with_an_id(query: Query, policy: CompiledPolicy) -> None:
    """Except for the router that probes caches, WITHHOLD comes with an attached id."""
    answer = decide(query, policy)
    if answer.directive is model.RankDirective.WITHHOLD:
        probes = query.engine.adp_router is model.AdpRouter.KV_CACHE_AWARE
        assert probes or answer.conversation_id is not None
    assert (answer.affinity_key is None) == (answer.conversation_id is None)


@given(_queries, _policies)
def test_only_an_engine_that_the_sidecar_places_on_is_placed_on(query: Query, policy: CompiledPolicy) -> None:
    """PLACE comes where the sidecar chooses the rank, and only among ranks that it knows."""
    if decide(query, policy).directive is model.RankDirective.PLACE:
        assert query.engine.rank_source is model.RankSource.SIDECAR
        assert query.engine.dp_size > 0


@given(_queries, st.randoms(use_true_random=False))
def test_case_and_order_of_headers_do_not_matter(query: Query, random: object) -> None:
    """Headers in another case and order give the same answer."""
    headers = {name.lower(): value for name, value in query.identity.headers.items() if name.isascii()}
    names = list(headers)
    random.shuffle(names)  # type: ignore[attr-defined]
    other = {name.upper(): headers[name] for name in names}
    answers = [
        decide(query._replace(identity=query.identity._replace(headers=variant)), _policy())
        for variant in (headers, other)
    ]
    assert answers[0] == answers[1]


@given(_queries)
def test_only_the_named_headers_can_change_an_answer(query: Query) -> None:
    """Dropping all headers but those that make the client's key changes nothing but the last one's mark."""
    policy = _policy()
    kept = {
        name: value for name, value in query.identity.headers.items() if name.lower() in policy.view.headers
    }
    reduced = query._replace(identity=query.identity._replace(headers=kept))
    answers = [decide(each, policy) for each in (query, reduced)]
    notices = [tuple(each for each in answer.notices if each != "session-final") for answer in answers]
    assert notices[0] == notices[1]
    assert answers[0]._replace(session_final=False, notices=()) == answers[1]._replace(
        session_final=False, notices=()
    )
