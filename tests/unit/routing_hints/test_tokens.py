from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from routing_hints import tokens
from routing_hints.tokens import Token, TokenGroup

GROUPS = {name: value for name, value in vars(tokens).items() if isinstance(value, TokenGroup)}
EVERY_TOKEN = [(name, token) for name, group in GROUPS.items() for token in group]
DEFAULT_ADVICE = "see the token in docs/reference.md"


def list_declared_texts(source: str) -> list[tuple[str, str]]:
    """Returns group and text of every `GROUP.declare(TEXT, …)` of a source, in order."""
    return [
        (call.func.value.id, call.args[0].value)
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "declare"
        and isinstance(call.func.value, ast.Name)
        and isinstance(call.args[0], ast.Constant)
    ]


def find_repetitions(declared: list[tuple[str, str]]) -> set[str]:
    return {text for text, count in Counter(text for _, text in declared).items() if count > 1}


def test_no_token_is_declared_twice() -> None:
    """A group keeps the last of two, so only the source can show it."""
    declared = list_declared_texts(Path(tokens.__file__).read_text(encoding="utf-8"))
    assert {text for _, text in declared} == {token for _, token in EVERY_TOKEN}
    assert find_repetitions(declared) == set()


def test_repeated_declaration_is_noticed() -> None:
    """Negative control."""
    source = 'A.declare("x", "one")\nA.declare("y", "two")\nA.declare("x", "three")\n'
    assert find_repetitions(list_declared_texts(source)) == {"x"}


@pytest.mark.parametrize(("group", "token"), EVERY_TOKEN)
def test_token_is_a_plain_word_with_a_meaning(group: str, token: Token) -> None:
    assert re.fullmatch("[a-z][a-z0-9-]*", token), group
    assert token.meaning.strip() == token.meaning != ""
    assert token.advice.strip() == token.advice
    assert not token.meaning.endswith(".")


def test_token_equals_its_text_and_hashes_as_it_does() -> None:
    """So call sites compare and look up plain strings from the wire."""
    assert tokens.BLANK == "blank"
    assert {"blank": 1}[tokens.BLANK] == 1
    assert "blank" in tokens.UNUSABLE_REASONS
    assert "bland" not in tokens.UNUSABLE_REASONS
    assert f"{tokens.UNKNOWN_ENUM}:phase" == "unknown-enum:phase"


def test_group_lists_its_tokens_as_declared_and_an_included_one_once() -> None:
    group, other = TokenGroup(), TokenGroup()
    second = other.declare("second", "two", "do this", parameter="field", is_intended=True, is_reason=False)
    group.declare("first", "one")
    group.include(second)
    group.include(second)
    assert list(group) == ["first", "second"]
    assert [(token.parameter, token.is_intended, token.is_reason) for token in group] == [
        ("", False, True),
        ("field", True, False),
    ]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("connection-refused", "start the sidecar, or correct ROUTING_HINTS_TARGET"),
        ("mode-off", "set mode: on in the sidecar's policy"),
        ("gate-off", "set ROUTING_HINTS_AFFINITY to auto or on"),
        ("no-disaggregated-params", "pass the request's DisaggregatedParams to plan.engine_kwargs"),
        ("connection-lost", DEFAULT_ADVICE),
        ("of-a-newer-sidecar", DEFAULT_ADVICE),
        ("", DEFAULT_ADVICE),
    ],
)
def test_advice_is_the_tokens_own_or_names_the_page(reason: str, advice: str) -> None:
    assert tokens.advise(reason) == advice


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        *((str(reason), str(reason)) for reason in tokens.FAIL_OPEN_REASONS if reason != "grpc-"),
        ("grpc-", "grpc"),
        *((str(token), str(token)) for token in tokens.DEVIATION_REASONS),
        ("grpc-unimplemented", "grpc"),
        ("grpc-anything", "grpc"),
        ("mode-off", "other"),
        ("gate-off", "other"),
        ("made-up-by-a-client", "other"),
        ("", "other"),
    ],
)
def test_reported_reason_is_a_label_of_a_closed_set(reason: str, label: str) -> None:
    """A client can't make series by making reasons up."""
    assert tokens.label_reported_reason(reason) == label


def test_client_can_report_what_the_dialect_cannot_carry() -> None:
    """The sidecar says it as a notice, the client as a deviation: one token in two groups."""
    assert tokens.DIALECT_CANNOT_CARRY_ID in tokens.NOTICES
    assert tokens.DIALECT_CANNOT_CARRY_ID in tokens.DEVIATION_REASONS


@pytest.mark.parametrize(
    ("notice", "explains"),
    [
        ("no-conversation-id", True),
        ("mode-shadow", True),
        ("session-final", False),
        ("of-a-newer-sidecar", True),
        ("unknown-enum:phase", True),
    ],
)
def test_only_notices_that_can_keep_an_id_from_being_attached_explain_it(notice: str, explains: bool) -> None:
    assert tokens.explains_missing_id(notice) is explains


def test_intended_reasons_are_exactly_those_that_the_operator_chose() -> None:
    """Nobody is warned about them, so a token is added here on purpose only."""
    assert {token for _, token in EVERY_TOKEN if tokens.is_intended(token)} == {
        "kind-not-normal",
        "outside-rollout",
        "placement-phase-off",
        "kind-health-check",
        "kind-warmup",
    }
    assert not tokens.is_intended("of-a-newer-sidecar")
    assert not tokens.is_intended("")
