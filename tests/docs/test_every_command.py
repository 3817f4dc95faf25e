"""No command of the pages is run by nobody."""

from __future__ import annotations

import re

import pytest

from tests.docs.runner import ROOT, RUNNERS, find_runner
from tests.docs.transcript import read_blocks, read_commands

PAGES = sorted(RUNNERS)

# With a blank behind it each of these begins a command. Variables may stand before it.
_PROGRAMS = (
    "apt-get|curl|docker|go|grpcurl|kubectl|kubernetes-validate|make|openssl|pip|podman|podman-compose|promtool|python3?"
    "|routing-hint-sidecar"
)
_COMMAND = re.compile(rf"([A-Z_]+=\S+ )*({_PROGRAMS})\s")
# `make` targets have a test of their own.
_TARGET = re.compile(r"make [a-z0-9-]+")
_CODE_SPAN = re.compile(r"`([^`]+)`")

_SAID_BY_CI = ".ci/run says the same"

# Commands in the text of a page: what is known of each although no test runs it as it stands there.
_IN_THE_TEXT = {
    "BASE_IMAGE=my-python:3.12 make image": "make image-test builds on a base of its own by this variable",
    "ENGINE=podman make image": "make image-test builds by this variable",
    "apt-get install --no-install-recommends podman runc conmon catatonit debootstrap": _SAID_BY_CI,
    "go env GOPATH": "only names a folder",
    "go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3": _SAID_BY_CI,
    "kubectl exec POD -c routing-hint-sidecar -- routing-hint-sidecar stats": "needs a cluster; "
    "`docker exec` and `stats` are run, and tests/deploy holds the name of the container",
    "kubectl apply --dry-run=server": "needs a cluster with Dynamo's operator",
    "pip install --no-deps routing_hint_sidecar-*.whl": "make test-wheel installs the wheel so",
    "python -m worker_client doctor --phase prefill": "tests/integration/sidecar/test_doctor.py runs it",
    "routing-hint-sidecar policy check FILE": "the README has it with a file, and it is run there",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_a_test_that_runs_it(page: str) -> None:
    """A new section with commands needs a runner."""
    commands = read_commands(ROOT / page)
    assert commands
    assert [command for command in commands if find_runner(page, command) is None] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_section_with_a_runner_has_commands(page: str) -> None:
    """No test believes that it runs what is no longer there."""
    assert set(RUNNERS[page]) - {command.section for command in read_commands(ROOT / page)} == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_is_marked_as_one(page: str) -> None:
    """A command without `$ ` before it would be output, or nothing, and be run by nobody."""
    blocks = [block for block in read_blocks(ROOT / page) if block.language in ("", "console", "sh")]
    lines = [line for block in blocks for _, line in block.lines]
    assert [line for line in lines if _COMMAND.match(line)] == []


def test_every_command_in_the_text_is_accounted_for() -> None:
    """Each that no test runs, as it stands or as a part of what it runs, is known, with the reason."""
    spans, run = set(), ""
    for page in PAGES:
        text = (ROOT / page).read_text()
        run += "\n".join(
            " ".join(command.text.replace("\\", " ").split()) for command in read_commands(ROOT / page)
        )
        in_blocks = {number for block in read_blocks(ROOT / page) for number, _ in block.lines}
        prose = "\n".join(
            line
            for number, line in enumerate(text.splitlines(), 1)
            if number not in in_blocks and not line.startswith("```")
        )
        spans |= {" ".join(span.split()) for span in _CODE_SPAN.findall(prose)}
        # What stands in `$(...)` is a command as well.
        spans |= set(re.findall(r"\$\(([^)]+)\)", prose))
    commands = {span for span in spans if _COMMAND.match(f"{span} ") and " " in span and span not in run}
    assert {command for command in commands if not _TARGET.fullmatch(command)} == set(_IN_THE_TEXT)


@pytest.mark.parametrize(
    "command", [command for command, known in _IN_THE_TEXT.items() if known == _SAID_BY_CI]
)
def test_what_ci_installs_is_what_the_pages_say(command: str) -> None:
    """The same packages and versions, variables filled in."""
    path = ROOT / ".ci" / "run"
    if not path.exists():
        pytest.skip("the checkout is not here")
    script = path.read_text()
    for name, value in re.findall(r'^(\w+)="([^"$]+)"$', script, re.M):
        script = script.replace(f"${name}", value)
    words = command.split()
    found = [line for line in script.splitlines() if f"{words[0]} " in line]
    assert [line for line in found if set(words) <= set(line.replace(";", " ").split())]


@pytest.mark.parametrize("page", ["README.md", "docs/deploying.md"])
def test_make_targets_of_the_pages_exist_and_are_run(page: str) -> None:
    """Each is a target; `.ci/run` runs it, or it is `run` and `image`, which tests run."""
    makefile = ROOT / "Makefile"
    if not makefile.exists():
        pytest.skip("the checkout is not here")
    named = set(re.findall(r"\bmake ([a-z0-9-]+)", (ROOT / page).read_text()))
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile.read_text(), re.M))
    assert named - targets == set()
    run_by_ci = set(re.findall(r"\bmake ([a-z0-9-]+)", (ROOT / ".ci" / "run").read_text()))
    assert named - run_by_ci <= {"run", "image", "help"}
