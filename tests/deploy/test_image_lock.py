"""What is pinned for the image: all that the sidecar needs, in the versions that the tests run with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = {"image.txt": ("sidecar",), "image-otel.txt": ("sidecar", "otel")}


def _read_pins(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / name).read_text()
    return {canonicalize_name(package): pin for package, pin in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}


def _read_needed(*extras: str) -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    blocks = [re.search(rf"^{name} = \[\n(.*?)^\]", text, re.M | re.S) for name in ("dependencies", *extras)]
    lines = [line for block in blocks if block is not None for line in re.findall(r'"(.+)"', block.group(1))]
    return {canonicalize_name(Requirement(line).name) for line in lines}


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_the_lock_has_all_that_the_sidecar_needs(name: str) -> None:
    """A dependency that is added and not pinned would be missing in the image; `make lock-image` adds it."""
    needed = _read_needed(*LOCKS[name])
    assert {"grpcio", "aiohttp"} <= needed
    assert needed - set(_read_pins(name)) == set()


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_the_lock_has_the_versions_that_the_tests_run_with(name: str) -> None:
    tested = _read_pins("lock.txt")
    assert {package: tested.get(package) for package in _read_pins(name)} == _read_pins(name)


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_every_pin_has_hashes_and_the_file_names_no_index(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
