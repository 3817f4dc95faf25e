"""JSON that clients put into one header or one field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def read_object(text: str) -> Mapping[str, Any]:
    """Returns the object that the text holds; an empty one if it holds none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def take_text(value: object) -> str:
    """Returns the value if it is text that UTF-8 can encode, unlike some of JSON's escapes; else nothing."""
    if not isinstance(value, str):
        return ""
    try:
        value.encode()
    except UnicodeEncodeError:
        return ""
    return value
