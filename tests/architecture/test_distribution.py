"""What is installed: generated modules, typing markers, versions and floors."""

import re
from importlib.metadata import requires, version
from pathlib import Path

import pytest

import routing_hints
import worker_client
from routing_hints.v1 import admin_pb2, service_pb2, types_pb2

FLOOR_GENCODE = "4.25.1"


@pytest.mark.parametrize("module", [types_pb2, service_pb2, admin_pb2])
def test_gencode_is_that_of_the_oldest_supported_runtime(module: object) -> None:
    """Newer gencode would not load on the oldest protobuf that the distribution allows."""
    source = Path(module.__file__).read_text()  # type: ignore[attr-defined]
    assert re.search(r"# Protobuf Python Version: (\S+)", source).group(1) == FLOOR_GENCODE  # type: ignore[union-attr]


def test_base_install_is_three_packages() -> None:
    """The worker's image gets nothing else from us, with the floors that the tests run on."""
    base = {line for line in requires("routing-hint-sidecar") or () if "extra ==" not in line}
    assert {re.split(r"[<>=]", line)[0] for line in base} == {"grpcio", "protobuf", "structlog"}
    assert any("grpcio" in line and ">=1.62.3" in line for line in base)
    assert any("protobuf" in line and f">={FLOOR_GENCODE}" in line for line in base)


def test_packages_are_marked_as_typed() -> None:
    """Type checkers of users read our annotations."""
    for package in (worker_client, routing_hints):
        assert (Path(package.__file__).parent / "py.typed").is_file()


def test_version_is_readable() -> None:
    """The distribution has the name that users install it by."""
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version("routing-hint-sidecar"))
