"""docs/reference.md lists every token, counter, log event and variable that the code knows, and no others."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import worker_client

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
TOKEN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
# Literals of the same shape that are something else.
OTHER_WORDS = re.compile(
    r"x-[a-z0-9-]+|rh1-log|rh1-rank|rh1-rollout|rh1-policy|routing-hint.*|local-rule|grpc-|kind-|not-honoured|bad-rank"
    r"|session-control|parent-session|parent-trajectory|utf-8|drain-timeout-s|(socket|tls|metrics)-[a-z-]+|max-remembered"
    # Names of headers, keys, carriers and profiles: docs/identity.md and the default policy have them.
    r"|thread-id|session-id|conversation-id|request-id|claude-code|nemo-relay|trtllm-serve|print-default"
    r"|print-policy|conversation-id|api-key|proxy-authorization"
)


def code_words() -> list[str]:
    """Every code span of the page."""
    return re.findall(r"`([^`]+)`", PAGE.read_text())


def source_files() -> list[Path]:
    """The modules of both packages, wherever they are installed."""
    folders = [Path(worker_client.__file__).parent]
    spec = importlib.util.find_spec("sidecar")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent)
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def string_literals(path: Path) -> set[str]:
    """The string constants of a module that are values: no docstrings, no parts of f-strings."""
    tree = ast.parse(path.read_text())
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    }


def called_with_text(path: Path, *methods: str, position: int = 0) -> set[str]:
    """An argument of calls of methods with one of these names, where it is a literal."""
    arguments = [
        node.args[position]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
        and len(node.args) > position
    ]
    return {
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def listed_under(*headings: str) -> set[str]:
    """The names in the first column of the tables below these headings."""
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    columns = [
        line.split("|")[1]
        for heading, text in sections
        if heading in headings
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return {name for column in columns for name in re.findall(r"`([^`]+)`", column)}


@pytest.mark.parametrize("path", source_files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_token_of_the_code_is_listed(path: Path) -> None:
    """A notice or reason that an operator may meet can be looked up."""
    if path.name == "testing.py":
        pytest.skip("the tokens of a fake are no operator's business")
    listed = {word.partition(":")[0] for word in code_words()}
    tokens = {word for word in string_literals(path) if TOKEN.fullmatch(word)}
    assert {token for token in tokens if not OTHER_WORDS.fullmatch(token)} - listed == set()


@pytest.mark.parametrize("path", source_files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_counter_and_log_event_is_listed(path: Path) -> None:
    """A counter or a line that an operator may meet can be looked up."""
    names = called_with_text(path, "count", "info", "warning", "error")
    names |= called_with_text(path, "log", position=1)
    if path.parent.name in ("sidecar", "placement"):
        names |= called_with_text(path, "add", "declare", "gauge")
    assert names - set(code_words()) == set()


@pytest.mark.skipif(importlib.util.find_spec("sidecar") is None, reason="the sidecar is not here")
def test_every_counter_and_log_event_of_the_page_is_in_the_code() -> None:
    """Nobody waits for a line or a series that does not come."""
    paths = [path for path in source_files() if "sidecar" in path.parts[-3:]]
    written = set().union(*(called_with_text(path, "add", "declare", "gauge") for path in paths))
    written |= set().union(*(called_with_text(path, "info", "warning", "error") for path in paths))
    written |= set().union(*(called_with_text(path, "log", position=1) for path in paths))
    listed = listed_under(
        "Counters of the sidecar", "Gauges and other metrics of the sidecar", "Lines of the sidecar's log"
    )
    # These three are no counters or gauges; tests/integration/sidecar/test_metrics.py scrapes them.
    assert listed - written == {"decision_seconds", "policy_info", "build_info"}


def test_every_variable_of_the_page_is_read() -> None:
    """No variable is documented that nothing reads."""
    listed = {word for word in code_words() if re.fullmatch(r"ROUTING_HINTS_\w+|DYN_\w+", word)}
    read = set().union(*map(string_literals, source_files()))
    assert listed - read == set()
    assert {word for word in read if re.fullmatch(r"ROUTING_HINTS_[A-Z_]+", word)} - listed == set()
