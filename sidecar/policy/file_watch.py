"""Detects changes of a file by polling its status.

inotify misses changes on network file systems and in some containers, has a limit per user that others can
use up, and needs a new watch for each folder behind a symbolic link that Kubernetes swaps. stat() follows
links, so a swap is a change like any other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

_Stamp: TypeAlias = "tuple[int, int, int, int, int] | str"


class FileWatch:
    """Reports a change once two consecutive polls agree, so that no half-written file is read.

    Attributes:
        path: the watched file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: _Stamp = ""
        self._taken: _Stamp = ""

    def has_changed(self) -> bool:
        """Returns whether the file differs from the loaded one and has not changed since the last call."""
        stamp = self._read_stamp()
        is_stable = stamp == self._seen
        self._seen = stamp
        return is_stable and stamp != self._taken

    def mark_loaded(self) -> None:
        """Marks the present file as loaded; call it before reading, so that a later change is not missed."""
        self._taken = self._seen = self._read_stamp()

    def _read_stamp(self) -> _Stamp:
        try:
            status = os.stat(self.path)
        except OSError as error:
            return type(error).__name__
        return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
