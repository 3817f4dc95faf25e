"""docs/reference.md agrees with the code: its generated tables, its hand-written log lines and variables."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from routing_hints import tokens
from tests.docs.reference_page import PAGE, render_page

FOLDERS = [
    Path(spec.origin).parent
    for name in ("sidecar", "worker_client", "routing_hints")
    if (spec := importlib.util.find_spec(name)) is not None and spec.origin is not None
]
SOURCES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py")) if path.parent.name != "v1"]
TOKENS = {name: token for name, token in vars(tokens).items() if isinstance(token, tokens.Token)}
LOG_METHODS = ("info", "warning", "error")
OTHER_MEANINGS = {"affinity-only"}
"""Tokens whose text is also a value of a setting."""


def walk_values(path: Path) -> Iterator[ast.Constant]:
    """Gives the string constants of a module that are values: no docstrings."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node


def list_log_events(path: Path) -> set[str]:
    return {
        call.args[0].value
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in LOG_METHODS
        and call.args
        and isinstance(call.args[0], ast.Constant)
    } | {
        call.args[1].value
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "log"
        and len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
    }


def list_page_events() -> set[str]:
    sections = re.findall(r"^## Lines of .*?\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    columns = [
        line.split("|")[1] for text in sections for line in text.splitlines() if line.startswith("| `")
    ]
    return {name for column in columns for name in re.findall(r"`([^`]+)`", column)}


def test_the_generated_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert render_page(text) == text, "run `make reference`"


def test_the_log_events_of_the_page_are_those_of_the_code() -> None:
    written = set().union(*map(list_log_events, SOURCES))
    # Written at the level that its problem has, by a method that is chosen.
    written.add("routing_hints_setting_ignored")
    assert list_page_events() == written


@pytest.mark.parametrize("name", sorted(TOKENS))
def test_every_token_is_used_by_the_code(name: str) -> None:
    uses = re.compile(rf"\btokens\.{name}\b|\b{name}\b(?! =)")
    assert any(uses.search(path.read_text()) for path in SOURCES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_module_spells_a_token_by_itself(path: Path) -> None:
    if path.name == "tokens.py":
        pytest.skip("they are declared here")
    spelled = {node.value for node in walk_values(path)} & set(TOKENS.values()) - OTHER_MEANINGS
    assert {text for text in spelled if "-" in text} == set()


def test_the_variables_of_the_page_are_those_that_the_code_reads() -> None:
    pattern = re.compile(r"(?:ROUTING_HINTS|DYN)_[A-Z_]+[A-Z]")
    listed = {word for word in re.findall(r"`([^`]+)`", PAGE.read_text()) if pattern.fullmatch(word)}
    settings = importlib.import_module("sidecar.settings")
    read = {settings.name_variable(field) for field in settings.Settings.model_fields}
    read |= {node.value for path in SOURCES for node in walk_values(path) if pattern.fullmatch(node.value)}
    assert listed == read
