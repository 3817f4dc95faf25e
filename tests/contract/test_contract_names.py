"""The contract's names and numbers, held against both sides' own enums."""

import enum
import importlib
import importlib.util

import pytest

from routing_hints.v1 import admin_pb2, service_pb2, types_pb2
from worker_client import model as client_model

ENUMS = {
    "Phase": types_pb2.Phase,
    "RequestKind": types_pb2.RequestKind,
    "EngineDialect": types_pb2.EngineDialect,
    "AdpRouter": types_pb2.AdpRouter,
    "RankSource": types_pb2.RankSource,
    "RankDirective": types_pb2.RankDirective,
    "IdentitySource": types_pb2.IdentitySource,
    "Decision": types_pb2.Decision,
    "FinishOutcome": service_pb2.FinishOutcome,
    "IdScope": service_pb2.IdScope,
    "CarrierVerdict": service_pb2.CarrierVerdict,
}
CLIENT_ENUMS = sorted(set(ENUMS) - {"CarrierVerdict"})
SIDECAR_ENUMS = sorted(set(ENUMS) - {"FinishOutcome"})


def upper_snake(name: str) -> str:
    """The prefix of an enum's values on the wire."""
    return "".join(
        f"_{letter}" if letter.isupper() and i else letter for i, letter in enumerate(name)
    ).upper()


def assert_equals_contract(ours: type[enum.IntEnum], name: str) -> None:
    """Asserts that an enum has the contract's names and numbers, the wire prefix left off."""
    assert {member.name: int(member) for member in ours} == {
        wire_name.removeprefix(upper_snake(name) + "_"): number for wire_name, number in ENUMS[name].items()
    }


@pytest.mark.parametrize("name", CLIENT_ENUMS)
def test_client_enum_equals_the_contract(name: str) -> None:
    """The client's own enum has the contract's names and numbers."""
    assert_equals_contract(getattr(client_model, name), name)


@pytest.mark.parametrize("name", SIDECAR_ENUMS)
def test_sidecar_enum_equals_the_contract(name: str) -> None:
    """The sidecar's own enum has the contract's names and numbers."""
    if importlib.util.find_spec("pydantic") is None:
        pytest.skip("the sidecar is not installed")
    assert_equals_contract(getattr(importlib.import_module("sidecar.model"), name), name)


@pytest.mark.parametrize("name", sorted(ENUMS))
def test_enum_values_carry_their_enum_name(name: str) -> None:
    """Every value begins with its enum's name, and zero is unspecified."""
    values = ENUMS[name]
    assert all(wire_name.startswith(upper_snake(name) + "_") for wire_name in values.keys())  # noqa: SIM118  protobuf's enum wrapper is no dict
    assert values.Name(0) == f"{upper_snake(name)}_UNSPECIFIED"


@pytest.mark.parametrize("module", [types_pb2, service_pb2, admin_pb2])
def test_proto_files_are_namespaced(module: object) -> None:
    """File path and package can collide with nobody else's in one process."""
    descriptor = module.DESCRIPTOR  # type: ignore[attr-defined]
    assert descriptor.name.startswith("routing_hints/v1/")
    assert descriptor.package == "routing_hints.v1"


def test_services_have_the_rpcs_of_the_design() -> None:
    """Both services offer what users and tests rely on."""
    hints = service_pb2.DESCRIPTOR.services_by_name["RoutingHintsService"]
    admin = admin_pb2.DESCRIPTOR.services_by_name["RoutingHintsAdminService"]
    assert [method.name for method in hints.methods] == ["Enrich", "EnrichStream", "Explain"]
    assert {method.name for method in admin.methods} == {
        "GetPolicy",
        "ListConversations",
        "GetConversation",
        "EndConversation",
        "GetDecision",
        "GetStats",
    }
