"""How the commands end."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NoReturn

import click

from sidecar.fault import Fault

BAD_CONFIGURATION = 2


def exit_with_faults(faults: Iterable[Fault]) -> NoReturn:
    """Says everything that is wrong and ends the process."""
    for fault in faults:
        click.echo(str(fault), err=True)
    sys.exit(BAD_CONFIGURATION)
