"""Reads untrusted input: requests, contexts and headers, which may hold values of any type.

No function here raises, whatever its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from routing_hints import tokens
from routing_hints.limits import MAX_UINT32, MAX_VALUE_BYTES


def as_mapping(value: object) -> Mapping[Any, Any]:
    """Returns `value` if it is a mapping or behaves like one, else an empty mapping."""
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    try:
        if hasattr(value, "keys") and hasattr(value, "__getitem__"):
            return dict(cast(Mapping[Any, Any], value))
    except Exception:  # noqa: BLE001  an untrusted object may raise anything
        return {}
    return {}


def as_count(value: object, *, most: int = MAX_UINT32) -> int | None:
    """Returns `value` if it is an integer from 0 to `most`, else None."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    return None


def dig(holder: object, path: str) -> object:
    """Returns the value at a dotted path of nested mappings, or None."""
    for step in path.split("."):
        holder = as_mapping(holder).get(step)
    return holder


class TextReader:
    """Converts untrusted values to text that the contract can carry; adds to `notices` what it drops."""

    def __init__(self, notices: list[str]) -> None:
        self._notices = notices

    def read(self, value: object, *, limit: int = MAX_VALUE_BYTES) -> str:
        """Returns `value` as text; empty if it is not text or longer than `limit` bytes of UTF-8."""
        if value is None:
            return ""
        if type(value) is str and len(value) <= limit and value.isascii():
            return value  # nearly every value, and each request has dozens
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return self._drop(tokens.VALUE_NOT_UTF8_DROPPED)
        if not isinstance(value, str):
            return self._drop(tokens.VALUE_NOT_TEXT_DROPPED)
        if len(value) * 4 > limit:
            try:
                size = len(value.encode())
            except UnicodeEncodeError:
                return self._drop(tokens.VALUE_NOT_UTF8_DROPPED)
            return value if size <= limit else self._drop(tokens.VALUE_TOO_LONG_DROPPED)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return self._drop(tokens.VALUE_NOT_UTF8_DROPPED)
        return value

    def read_first(self, *values: object, limit: int) -> str:
        """Returns the first of `values` that `read` accepts and that is not empty, else an empty string."""
        for value in values:
            if found := self.read(value, limit=limit):
                return found
        return ""

    def add_notice(self, notice: str) -> None:
        """Adds a notice, unless it was added before."""
        if notice not in self._notices:
            self._notices.append(notice)

    def _drop(self, notice: str) -> str:
        self.add_notice(notice)
        return ""


def read_text(value: object, notices: list[str]) -> str:
    """Returns `value` as `TextReader.read` does."""
    return TextReader(notices).read(value)


def read_body(body: object, path: str, notices: list[str]) -> str:
    """Returns a field of the body as `TextReader.read` does; empty without a notice if it is an object.

    An object, such as OpenAI's `conversation` in its longer form, has its text at a deeper path.
    """
    value = dig(body, path)
    return "" if isinstance(value, Mapping) else read_text(value, notices)


def read_attribute(holder: object, name: str) -> object:
    """Returns an attribute of an untrusted object; None if it has none or reading it raises."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  an untrusted object may raise anything
        return None


def call_method(holder: object, name: str) -> object:
    """Returns the result of a method of an untrusted object; None if it has none or the method raises."""
    method = read_attribute(holder, name)
    try:
        return method() if callable(method) else None
    except Exception:  # noqa: BLE001  an untrusted object may raise anything
        return None
