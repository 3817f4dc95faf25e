"""The decision's enums and the contract's."""

from __future__ import annotations

from enum import IntEnum

import pytest
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from routing_hints.v1 import service_pb2, types_pb2
from sidecar import model

_PAIRS = [
    (model.Phase, types_pb2.Phase, "PHASE"),
    (model.RequestKind, types_pb2.RequestKind, "REQUEST_KIND"),
    (model.EngineDialect, types_pb2.EngineDialect, "ENGINE_DIALECT"),
    (model.AdpRouter, types_pb2.AdpRouter, "ADP_ROUTER"),
    (model.RankSource, types_pb2.RankSource, "RANK_SOURCE"),
    (model.RankDirective, types_pb2.RankDirective, "RANK_DIRECTIVE"),
    (model.IdentitySource, types_pb2.IdentitySource, "IDENTITY_SOURCE"),
    (model.Decision, types_pb2.Decision, "DECISION"),
    (model.CarrierVerdict, service_pb2.CarrierVerdict, "CARRIER_VERDICT"),
    (model.IdScope, service_pb2.IdScope, "ID_SCOPE"),
]


@pytest.mark.parametrize(("ours", "theirs", "prefix"), _PAIRS, ids=[pair[2] for pair in _PAIRS])
def test_enums_share_the_contracts_numbers(ours: type[IntEnum], theirs: EnumTypeWrapper, prefix: str) -> None:
    """Names and numbers are the contract's, none missing and none added."""
    assert dict(theirs.items()) == {f"{prefix}_{member.name}": member.value for member in ours}
