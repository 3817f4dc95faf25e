"""Conversation ids: the rule of docs/contract.md, with its test vectors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_hints.conversation_id import IdForm, Naming, hash_conversation, make_conversation_id
from routing_hints.vocabulary import IdScope

_CONTRACT = Path(__file__).parents[3] / "docs" / "contract.md"
_SCOPES = {"off": IdScope.OFF, "weak": IdScope.WEAK, "all": IdScope.ALL}


def _read_vectors() -> list[dict[str, Any]]:
    block = re.search(r"```json\n(.*?)```", _CONTRACT.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return [json.loads(line) for line in block[1].splitlines()]


def _text(vector: dict[str, Any], name: str) -> str:
    if name in vector:
        return str(vector[name])
    part, times = vector[f"{name}_repeats"]
    return str(part) * int(times)


@pytest.mark.parametrize("vector", _read_vectors())
def test_ids_and_hashes_equal_the_vectors_of_the_contract(vector: dict[str, Any]) -> None:
    made = make_conversation_id(
        _text(vector, "session_id"),
        vector["tenant"],
        Naming(_SCOPES[vector["scope"]], IdForm(vector["ids"])),
        vector.get("run_id", ""),
    )
    assert made == _text(vector, "conversation_id")
    assert hash_conversation(made) == vector["conversation_hash"]


def test_contract_has_a_vector_for_both_outcomes_of_every_scope() -> None:
    seen = {
        (vector["scope"], str(vector.get("conversation_id", "")).startswith("rh1-"))
        for vector in _read_vectors()
    }
    assert seen == {(scope, derived) for scope in _SCOPES for derived in (True, False)}


@pytest.mark.parametrize(
    "character", ["\x00", "\t", "\x1f", "\x7f", "\x80", "\x85", "\x9f", "\u2028", "\u2029"]
)
def test_id_with_a_control_character_is_derived(character: str) -> None:
    made = make_conversation_id(f"a{character}b", "", Naming())
    assert re.fullmatch("rh1-[0-9a-f]{32}", made)


@pytest.mark.parametrize("character", [" ", "~", "\xa0", "\xad", "\u2027", "\u202a", "\u200b", "\U0010ffff"])
def test_id_with_any_other_character_is_verbatim(character: str) -> None:
    assert make_conversation_id(f"a{character}b", "", Naming()) == f"a{character}b"


@pytest.mark.parametrize(("size", "derived"), [(15, True), (16, False)])
def test_weak_scope_derives_the_ids_of_a_tenant_below_16_bytes(size: int, derived: bool) -> None:
    made = make_conversation_id("x" * size, "tenant", Naming())
    assert made.startswith("rh1-") == derived


_pairs = st.tuples(st.text(min_size=1), st.text(min_size=1))


@given(first=_pairs, second=_pairs)
def test_ids_under_scope_all_are_equal_only_for_equal_tenants_and_sessions(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    ids = [
        make_conversation_id(session_id, tenant, Naming(IdScope.ALL))
        for tenant, session_id in (first, second)
    ]
    assert (ids[0] == ids[1]) == (first == second)


_triples = st.tuples(st.text(), st.text(min_size=1), st.text(min_size=1))


@given(first=_triples, second=_triples)
def test_ids_within_a_run_are_equal_only_for_equal_tenants_runs_and_trajectories(
    first: tuple[str, str, str], second: tuple[str, str, str]
) -> None:
    """And none of them equals the id of a session without a run."""
    ids = [
        make_conversation_id(session_id, tenant, Naming(IdScope.ALL), run_id)
        for tenant, run_id, session_id in (first, second)
    ]
    assert (ids[0] == ids[1]) == (first == second)
    tenant, run_id, session_id = first
    assert ids[0] != make_conversation_id(session_id, tenant, Naming(IdScope.ALL))
    assert ids[0] != make_conversation_id(session_id, run_id, Naming(IdScope.ALL))


@given(st.text(min_size=1), st.text())
def test_form_unchanged_changes_nothing(session_id: str, tenant: str) -> None:
    """As TensorRT-LLM's own HTTP server."""
    assert make_conversation_id(session_id, tenant, Naming(IdScope.OFF, IdForm.UNCHANGED)) == session_id


@given(
    st.text(min_size=1),
    st.text(),
    st.sampled_from(list(IdScope)),
    st.sampled_from([IdForm.VERBATIM, IdForm.DERIVE_ALWAYS]),
)
def test_no_id_is_longer_than_256_bytes_or_has_a_control_character(
    session_id: str, tenant: str, scope: IdScope, form: IdForm
) -> None:
    made = make_conversation_id(session_id, tenant, Naming(scope, form))
    assert 0 < len(made.encode()) <= 256
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", made)
