"""Until the first policy arrives, the client decides alone as the sidecar's embedded policy would let it."""

from __future__ import annotations

import pytest

from worker_client import _codec
from worker_client._model import ClientPolicy


@pytest.mark.parametrize("field", ["local_sources", "scope", "log_plain_ids"])
def test_a_clients_default_is_that_of_the_embedded_policy(field: str) -> None:
    compiler = pytest.importorskip("sidecar.policy.compiler", reason="the sidecar is not installed")
    schema = pytest.importorskip("sidecar.policy.schema", reason="the sidecar is not installed")
    encoder = pytest.importorskip("sidecar.wire.response_codec", reason="the sidecar is not installed")
    embedded = _codec.decode_policy(
        encoder.encode_client_policy(compiler.compile_policy(schema.Policy()).view)
    )
    assert getattr(ClientPolicy(), field) == getattr(embedded, field)
