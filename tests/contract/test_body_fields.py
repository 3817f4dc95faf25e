"""The body fields that the client knows by itself are those that the sidecar's carriers read."""

import pytest

from worker_client._codec import BODY_FIELDS


def test_fields_equal_those_of_the_catalogue() -> None:
    """A carrier of the body that is added to one of them is added to both."""
    catalogue = pytest.importorskip("sidecar.identity.catalogue", reason="the sidecar is not installed")
    read = {field for carrier in catalogue.CARRIERS.values() for field in carrier.fields.body}
    assert set(BODY_FIELDS) == read | {"prompt_cache_key"}
