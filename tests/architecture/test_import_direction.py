"""Who may import whom, read from the source of the installed packages, by package."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = (
    "model",
    "settings",
    "telemetry",
    "identity",
    "placement",
    "policy",
    "wire",
    "decision",
    "server",
    "conformance",
    "app",
    "cli",
    "__main__",
)
"""Of sidecar/, lowest first: a package imports only what stands before it."""
PURE = ("model", "identity", "placement", "decision")
IMPURE_MODULES = {"asyncio", "datetime", "grpc", "google", "os", "random", "socket", "threading", "time"}
BASE_INSTALL = {"grpc", "routing_hints", "structlog", "worker_client"}
OPTIONAL = "prometheus.py"
CONTRACT_IMPORTERS = {"_codec.py", "_send_queue.py", "_stub.py", "_transport.py", "testing.py"}
"""The modules of the client that know the contract's messages."""


def find_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


def list_modules(package: str) -> list[Path]:
    folder = find_folder(package)
    paths = [path for path in folder.rglob("*.py") if "v1" not in path.relative_to(folder).parts]
    assert paths
    return paths


def list_imports(path: Path) -> Iterator[str]:
    """Gives the dotted names that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def list_roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in list_imports(path)}


def name_layer(folder: Path, path: Path) -> str:
    return path.relative_to(folder).parts[0].removesuffix(".py")


def test_the_two_sides_never_import_each_other() -> None:
    assert all("sidecar" not in list_roots(path) for path in list_modules("worker_client"))
    assert all("worker_client" not in list_roots(path) for path in list_modules("sidecar"))


def test_what_both_sides_share_is_plain_python() -> None:
    roots = set().union(*map(list_roots, list_modules("routing_hints")))
    assert roots - set(sys.stdlib_module_names) == {"routing_hints"}
    assert not roots & IMPURE_MODULES


def test_every_package_of_the_sidecar_has_a_layer() -> None:
    folder = find_folder("sidecar")
    assert {name_layer(folder, path) for path in list_modules("sidecar")} - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_package_imports_only_what_is_below_it(layer: str) -> None:
    folder = find_folder("sidecar")
    above = LAYERS[LAYERS.index(layer) + 1 :]
    wrong = {
        (str(path.relative_to(folder)), name)
        for path in list_modules("sidecar")
        if name_layer(folder, path) == layer
        for name in list_imports(path)
        if name.startswith("sidecar.") and name.split(".")[1] in above
    }
    assert wrong == set()


@pytest.mark.parametrize("layer", PURE)
def test_the_decision_knows_no_grpc_no_protobuf_no_clock_and_no_io(layer: str) -> None:
    folder = find_folder("sidecar")
    wrong = {
        (str(path.relative_to(folder)), name)
        for path in list_modules("sidecar")
        if name_layer(folder, path) == layer
        for name in list_imports(path)
        if name.partition(".")[0] in IMPURE_MODULES or name.startswith("routing_hints.v1")
    }
    assert wrong == set()


def test_the_client_needs_nothing_but_its_base_install() -> None:
    needed = (path for path in list_modules("worker_client") if path.name != OPTIONAL)
    roots = set().union(*(list_roots(path) for path in needed))
    assert roots - set(sys.stdlib_module_names) == BASE_INSTALL


def test_nothing_imports_the_optional_module_of_the_client() -> None:
    optional = f"worker_client.{OPTIONAL.removesuffix('.py')}"
    assert all(optional not in list_imports(path) for path in list_modules("worker_client"))


def test_only_the_edge_of_the_client_imports_generated_code() -> None:
    importers = {
        path.name
        for path in list_modules("worker_client")
        if any(name.startswith("routing_hints.v1") for name in list_imports(path))
    }
    assert importers == CONTRACT_IMPORTERS


def test_all_modules_of_the_client_but_the_public_ones_are_private() -> None:
    folder = find_folder("worker_client")
    public = {path.name for path in folder.glob("*.py") if not path.name.startswith("_")}
    assert public == {"dynamo_trtllm.py", "prometheus.py", "testing.py"}


def test_the_top_of_the_sidecar_has_at_most_fifteen_entries() -> None:
    entries = {path.name for path in find_folder("sidecar").iterdir()} - {"__pycache__"}
    assert len(entries) <= 15
