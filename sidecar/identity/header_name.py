"""Header names as an operator may write them into the policy."""

from __future__ import annotations

import re

MAX_BYTES = 256
# `token` of RFC 9110, section 5.6.2.
_TOKEN = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_header_name(name: str) -> str:
    """Returns the name in lower case.

    Raises:
        ValueError: no request can carry such a header.
    """
    if not name:
        raise ValueError("is empty")
    if not _TOKEN.fullmatch(name):
        raise ValueError("is no header name")
    if len(name) > MAX_BYTES:
        raise ValueError(f"is longer than {MAX_BYTES} bytes")
    return name.lower()
