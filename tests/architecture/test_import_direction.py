"""Who may import whom, read from the source of the installed packages."""

import ast
from pathlib import Path

import pytest

import worker_client

WORKER_CLIENT = Path(worker_client.__file__).parent
CONTRACT_IMPORTERS = {"_stub.py", "codec.py", "mailbox.py", "testing.py", "transport.py", "unary.py"}
OPTIONAL = "prometheus.py"
BASE_INSTALL = {"google", "grpc", "routing_hints", "structlog", "worker_client"}


def imported_roots(path: Path) -> set[str]:
    """The top-level names that a module imports, anywhere in it."""
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            roots.add(node.module.partition(".")[0])
    return roots


def sidecar_folder() -> Path:
    """Where the sidecar's modules are; it may be importable or not."""
    import importlib.util

    spec = importlib.util.find_spec("sidecar")
    if spec is None or spec.origin is None:
        pytest.skip("the sidecar is not installed")
    return Path(spec.origin).parent


def test_worker_client_never_imports_the_sidecar() -> None:
    """What runs in the engine's process does not know the server."""
    assert all("sidecar" not in imported_roots(path) for path in WORKER_CLIENT.rglob("*.py"))


def test_sidecar_never_imports_the_worker_client() -> None:
    """The server does not know the library."""
    assert all("worker_client" not in imported_roots(path) for path in sidecar_folder().rglob("*.py"))


def test_worker_client_needs_nothing_but_its_base_install() -> None:
    """A worker image gets grpcio, protobuf and structlog, and only the optional module asks for more."""
    import sys

    paths = {path for path in WORKER_CLIENT.rglob("*.py") if path.name != OPTIONAL}
    roots = set().union(*map(imported_roots, paths))
    assert roots - set(sys.stdlib_module_names) == BASE_INSTALL - {"google"}
    optional = imported_roots(WORKER_CLIENT / OPTIONAL) - set(sys.stdlib_module_names)
    assert optional == {"prometheus_client", "worker_client"}


def test_nothing_imports_the_optional_module() -> None:
    """A worker without prometheus-client never meets it."""
    name = f"worker_client.{OPTIONAL.removesuffix('.py')}"
    assert all(name not in path.read_text() for path in WORKER_CLIENT.rglob("*.py"))


def test_only_the_edge_of_the_client_imports_generated_code() -> None:
    """The contract's messages stay in the codec, the stub, the stream and the test server."""
    importers = {path.name for path in WORKER_CLIENT.rglob("*.py") if "routing_hints" in imported_roots(path)}
    assert importers <= CONTRACT_IMPORTERS


DECISION = (
    "baggage_carrier",
    "body_carrier",
    "carrier",
    "catalogue",
    "codex_carrier",
    "compiled",
    "conversation",
    "counters",
    "directive",
    "enrich",
    "group",
    "guard",
    "header_carrier",
    "identity",
    "json_text",
    "model",
    "session_id",
    "structured_carrier",
)


@pytest.mark.parametrize("pattern", [*(f"{module}.py" for module in DECISION), "placement/*.py"])
def test_decision_is_plain_python(pattern: str) -> None:
    """The decision knows no grpc, no protobuf, no clock and no I/O."""
    paths = list(sidecar_folder().glob(pattern))
    assert paths
    roots = set().union(*map(imported_roots, paths))
    assert roots <= {
        "__future__",
        "base64",
        "collections",
        "dataclasses",
        "enum",
        "hashlib",
        "itertools",
        "json",
        "re",
        "sidecar",
        "types",
        "typing",
        "urllib",
    }
