"""Reads and writes a policy as YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError

from routing_hints.errors import ConfigurationError, ConfigurationProblem
from sidecar.policy.schema import Policy


class _Loader(yaml.SafeLoader):
    """Reads `on`, `off`, `yes` and `no` as strings; in YAML 1.1 they are booleans."""


_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOLEAN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("^(?:true|false)$"), list("tf"))


def load_policy(path: Path) -> Policy:
    """Returns the policy of a YAML file.

    Raises:
        ConfigurationError: the file can't be read, is not YAML, or breaks the schema; has every problem.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigurationError([ConfigurationProblem("policy", f"{path}: {reason}")]) from None
    return parse_policy(text)


def parse_policy(text: str) -> Policy:
    """Returns the policy of a YAML text; raises as `load_policy` does."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        duplicates = list(_find_duplicates(node, ())) if node is not None else []
        content = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, ValueError) as error:
        # An invalid scalar that looks like a date or a number raises ValueError.
        raise ConfigurationError(
            [ConfigurationProblem("policy", f"is not YAML: {' '.join(str(error).split())}")]
        ) from None
    except RecursionError:
        raise ConfigurationError([ConfigurationProblem("policy", "is nested too deeply")]) from None
    finally:
        loader.dispose()
    problems = [ConfigurationProblem(key, "occurs twice") for key in duplicates]
    try:
        policy = Policy.model_validate({} if content is None else content)
    except ValidationError as error:
        problems += [_describe(detail["loc"], detail["type"], detail["msg"]) for detail in error.errors()]
    if problems:
        raise ConfigurationError(problems)
    return policy


def dump_policy(policy: Policy) -> str:
    """Returns the whole policy as YAML, defaults included."""
    return yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False)


def _find_duplicates(node: yaml.Node, path: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        inner = (*path, str(key.value))
        if key.value in seen and isinstance(key, yaml.ScalarNode):
            yield ".".join(inner)
        if isinstance(key, yaml.ScalarNode):
            seen.add(key.value)
        yield from _find_duplicates(value, inner)


def _describe(location: tuple[int | str, ...], kind: str, message: str) -> ConfigurationProblem:
    # A part in angle brackets is the tag of a union member, not a key.
    key = ".".join(part for part in map(str, location) if not part.startswith("<")) or "policy"
    reasons = {"extra_forbidden": "unknown key", "model_type": "must be a mapping"}
    return ConfigurationProblem(key, reasons.get(kind, message.removeprefix("Value error, ")))
