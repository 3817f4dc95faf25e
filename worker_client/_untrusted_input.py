"""Reading values of which nothing is known: requests, contexts and headers are other people's objects.

Nothing here raises, whatever it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

MAX_VALUE_BYTES = 16_384


def as_mapping(value: object) -> Mapping[Any, Any]:
    """Returns `value` if it is a mapping, also one that only behaves like it, else an empty one."""
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    try:
        if hasattr(value, "keys") and hasattr(value, "__getitem__"):
            return dict(cast(Mapping[Any, Any], value))
    except Exception:  # noqa: BLE001  a foreign object may raise anything
        return {}
    return {}


def as_count(value: object, *, most: int = 2**32 - 1) -> int | None:
    """Returns `value` if it is a whole number from 0 to `most`, else None."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    return None


def dig(holder: object, path: str) -> object:
    """Returns the value at a dotted path of nested mappings, None where there is none."""
    for step in path.split("."):
        holder = as_mapping(holder).get(step)
    return holder


class TextReader:
    """Turns foreign values into text that the contract can carry, noting what it had to drop."""

    def __init__(self, notices: list[str]) -> None:
        self._notices = notices

    def read(self, value: object, *, limit: int = MAX_VALUE_BYTES) -> str:
        """Returns `value` as text, empty where it is none or breaks a limit."""
        if value is None:
            return ""
        if type(value) is str and len(value) <= limit and value.isascii():
            return value  # nearly every value, and each request has dozens
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return self._drop("value-not-utf8-dropped")
        if not isinstance(value, str):
            return self._drop("value-not-text-dropped")
        if len(value) * 4 > limit:
            try:
                size = len(value.encode())
            except UnicodeEncodeError:
                return self._drop("value-not-utf8-dropped")
            return value if size <= limit else self._drop("value-too-long-dropped")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return self._drop("value-not-utf8-dropped")
        return value

    def read_first(self, *values: object, limit: int) -> str:
        """Returns the first of `values` that is text, empty where none is."""
        for value in values:
            if found := self.read(value, limit=limit):
                return found
        return ""

    def note(self, notice: str) -> None:
        """Notes that something was dropped, each thing once."""
        if notice not in self._notices:
            self._notices.append(notice)

    def _drop(self, notice: str) -> str:
        self.note(notice)
        return ""


def read_text(value: object, notices: list[str]) -> str:
    """Returns `value` as text that the contract can carry, empty where it can't; notes what it drops."""
    return TextReader(notices).read(value)


def read_body(body: object, path: str, notices: list[str]) -> str:
    """Returns a field of the body as text; empty where it is none or can't be carried, noting the latter.

    A field that is an object, such as OpenAI's `conversation` in its longer form, holds its text deeper.
    """
    value = dig(body, path)
    return "" if isinstance(value, Mapping) else read_text(value, notices)


def read_attribute(holder: object, name: str) -> object:
    """Returns an attribute of a foreign object, None where there is none or reading it raises."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  a foreign object may raise anything
        return None


def call_method(holder: object, name: str) -> object:
    """Returns what a method of a foreign object returns, None where there is none or it raises."""
    method = read_attribute(holder, name)
    try:
        return method() if callable(method) else None
    except Exception:  # noqa: BLE001  a foreign object may raise anything
        return None
