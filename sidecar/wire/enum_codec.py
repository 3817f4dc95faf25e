"""Enums on the wire, of which a newer peer may send values that this sidecar does not know."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Generic, TypeVar

EnumT = TypeVar("EnumT", bound=IntEnum)


class EnumDecoder(Generic[EnumT]):
    """Turns numbers into members; an unknown one into the member 0, UNSPECIFIED."""

    def __init__(self, enum_class: type[EnumT]) -> None:
        self._members = {member.value: member for member in enum_class}

    def decode(self, number: int, path: str, unknown: list[str]) -> EnumT:
        """Returns the member; adds the field's path to `unknown` where there is none of that number."""
        member = self._members.get(number)
        if member is None:
            unknown.append(path)
            return self._members[0]
        return member


def encode_enum(member: int) -> Any:
    """Returns the number as the contract's enum, which the generated stubs want by type."""
    return member
