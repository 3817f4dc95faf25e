"""`policy`: what the policy is."""

from __future__ import annotations

import click


@click.group()
def policy() -> None:
    """Look at policies."""
