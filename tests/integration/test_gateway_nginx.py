"""The nginx snippets of examples/gateways, run by the real nginx before a server that shows what arrives."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
GATEWAYS = Path(__file__).parents[2] / "examples" / "gateways"
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (apt-get install nginx)")

_CONFIG = """
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
        listen unix:{folder}/nginx.sock;
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
    """Answers with the headers that it was sent."""

    def do_GET(self) -> None:
        """Shows names in lower case."""
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
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


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running nginx with the snippets; gives its socket."""
    folder = tmp_path_factory.mktemp("nginx")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Frontend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, gateways=GATEWAYS, port=server.server_port))
    assert NGINX is not None
    subprocess.run([NGINX, "-t", "-q", "-c", config, "-p", folder], check=True, timeout=30)
    process = subprocess.Popen([NGINX, "-c", config, "-p", folder], stderr=subprocess.DEVNULL)
    socket_path = folder / "nginx.sock"
    while not _is_listening(socket_path):
        assert process.poll() is None
    yield socket_path
    process.terminate()
    process.wait(timeout=30)
    server.shutdown()
    server.server_close()


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _send(gateway: Path, path: str, headers: dict[str, str]) -> dict[str, str]:
    connection = _UnixConnection(gateway)
    connection.request("GET", path, headers=headers)
    arrived: dict[str, str] = json.loads(connection.getresponse().read())
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
        ({"x-session-affinity": "a-1", "x-parent-session-id": "a-0"}, "a-1", "a-0"),
        ({"x-litellm-session-id": "l-1"}, "l-1", None),
        ({"x-litellm-session-id": "l-1", "x-opencode-session": "o-1"}, "o-1", None),
        ({"x-dynamo-session-id": "own", "thread-id": "t-2"}, "own", None),
        ({"x-dynamo-session-id": "own", "x-dynamo-parent-session-id": "up"}, "own", "up"),
        ({"x-claude-code-session-id": "c-1", "thread-id": "t-2"}, None, None),
        ({"x-session-id": "s-1", "x-parent-session-id": "s-0"}, None, None),
        ({"x-correlation-id": "r-1", "x-request-id": "r-1"}, None, None),
        ({}, None, None),
    ],
    ids=str,
)
def test_a_header_that_the_frontend_drops_is_mapped(
    gateway: Path, sent: dict[str, str], session: str | None, parent: str | None
) -> None:
    """The frontend gets the conversation in a header that it reads, and none where it reads the client's."""
    arrived = _send(gateway, "/session", sent)
    assert arrived.get("x-dynamo-session-id") == session
    assert arrived.get("x-dynamo-parent-session-id") == parent
    assert _send(gateway, "/metadata", sent).get("x-dynamo-meta-conversation-id") == session


def test_without_the_snippet_nothing_is_mapped(gateway: Path) -> None:
    """Negative control: the same nginx passes the client's header on, which the frontend would drop."""
    arrived = _send(gateway, "/plain", {"x-litellm-session-id": "l-1"})
    assert arrived["x-litellm-session-id"] == "l-1"
    assert not any(name.startswith("x-dynamo-") for name in arrived)


@pytest.mark.parametrize("path", ["/session", "/metadata"])
def test_internal_headers_of_clients_are_removed(gateway: Path, path: str) -> None:
    """A client must not place itself near another conversation."""
    arrived = _send(
        gateway, path, {"x-trtllm-subagent-affinity-id": "r", "X-TRTLLM-Subagent-Affinity-Auth": "sha256=0"}
    )
    assert not any("subagent" in name for name in arrived)
