import enum

import pytest

from routing_hints import vocabulary
from routing_hints.v1 import admin_pb2, service_pb2, types_pb2

WIRE_ENUMS = {
    name: enum_type
    for module in (types_pb2, service_pb2, admin_pb2)
    for name, enum_type in module.DESCRIPTOR.enum_types_by_name.items()
}
NOT_IN_THE_VOCABULARY = {"ErrorCode"}
"""gRPC's own status codes."""


def upper_snake(name: str) -> str:
    return "".join(
        f"_{letter}" if letter.isupper() and i else letter for i, letter in enumerate(name)
    ).upper()


def test_every_enum_of_the_contract_is_in_the_vocabulary() -> None:
    ours = {
        name
        for name, value in vars(vocabulary).items()
        if isinstance(value, type) and value is not enum.IntEnum
    }
    assert ours == WIRE_ENUMS.keys() - NOT_IN_THE_VOCABULARY


@pytest.mark.parametrize("name", sorted(WIRE_ENUMS.keys() - NOT_IN_THE_VOCABULARY))
def test_enum_has_the_names_and_numbers_of_the_contract(name: str) -> None:
    ours: type[enum.IntEnum] = getattr(vocabulary, name)
    assert {f"{upper_snake(name)}_{member.name}": int(member) for member in ours} == {
        value.name: value.number for value in WIRE_ENUMS[name].values
    }


@pytest.mark.parametrize("name", sorted(WIRE_ENUMS))
def test_enum_values_carry_the_name_of_their_enum_and_zero_is_unspecified(name: str) -> None:
    values = {value.number: value.name for value in WIRE_ENUMS[name].values}
    assert all(value.startswith(f"{upper_snake(name)}_") for value in values.values())
    assert values[0] == f"{upper_snake(name)}_UNSPECIFIED"


@pytest.mark.parametrize("module", [types_pb2, service_pb2, admin_pb2])
def test_proto_files_are_namespaced(module: object) -> None:
    descriptor = module.DESCRIPTOR  # type: ignore[attr-defined]
    assert descriptor.name.startswith("routing_hints/v1/")
    assert descriptor.package == "routing_hints.v1"


def test_services_have_the_rpcs_of_the_contract() -> None:
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
