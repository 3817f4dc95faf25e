"""Policies for the sidecar's tests, written as in a policy file."""

from __future__ import annotations

from sidecar.policy.compiled import CompiledPolicy
from sidecar.policy.compiler import compile_policy
from sidecar.policy.file import parse_policy


def compile_yaml(text: str = "") -> CompiledPolicy:
    """Returns the compiled policy of a YAML text; without one, the embedded policy."""
    return compile_policy(parse_policy(text))
