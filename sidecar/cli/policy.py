"""`policy`: what the policy is."""

from __future__ import annotations

import click

from sidecar.cli.show_policy import show_policy


@click.group()
def policy() -> None:
    """Look at policies."""


policy.add_command(show_policy)
