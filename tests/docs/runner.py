"""Which test runs which command of the pages: each command has one, by the section in which it stands."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from tests.docs.transcript import Command, read_commands

ROOT = Path(__file__).parents[2]


class Runner(Enum):
    """A test that runs commands as written, addresses and file names replaced."""

    SIDECAR = "tests/docs/test_pages.py"
    CHECKOUT = "tests/docs/test_deploying.py, in the folder of the checkout"
    TLS = "tests/docs/test_deploying.py, with certificates made on the spot"
    CONTAINER = "tests/container/test_pages.py"
    TRACES = "tests/container/test_pages.py, with OpenTelemetry in the image"
    COMPOSE = "tests/container/test_deploy.py"


_DEBUGGING = (
    "1. Does it run, and does it serve?",
    "2. Do requests arrive, and what becomes of them?",
    "3. What was decided about one request?",
    "4. What would be decided, and why?",
    "5. Where does the sidecar place conversations?",
    "6. By which policy?",
    "7. Did it help?",
)

RUNNERS = {
    "README.md": {
        "Run it": Runner.CONTAINER,
        "Configure it": Runner.SIDECAR,
        "Call it by hand": Runner.SIDECAR,
    },
    "docs/debugging.md": dict.fromkeys(_DEBUGGING, Runner.SIDECAR),
    "docs/deploying.md": {
        "The image": Runner.CONTAINER,
        "Which way on Kubernetes": Runner.CHECKOUT,
        "One machine": Runner.COMPOSE,
        "Metrics and alerts": Runner.CHECKOUT,
        "Traces": Runner.TRACES,
        "TLS": Runner.TLS,
    },
}

# The demo needs the environment of the checkout rather than a container.
_DEMO = "make demo"


def find_runner(page: str, command: Command) -> Runner | None:
    """The test that runs a command; None if there is none."""
    return Runner.CHECKOUT if command.text == _DEMO else RUNNERS[page].get(command.section)


def read_commands_of(page: str, runner: Runner, root: Path = ROOT) -> list[Command]:
    """The commands of a page that a test is to run, in order; `root` is the checkout that the page is of."""
    return [command for command in read_commands(root / page) if find_runner(page, command) is runner]
