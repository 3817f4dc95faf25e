"""Whether a file has become another one.

By asking for its status once in a while, not by inotify: that sees nothing on network file systems and in
some containers, has a limit per user that others use up, and must be told anew of each folder behind a
symbolic link that Kubernetes swaps. The status follows links, so a swap shows like any other change.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

_Stamp: TypeAlias = "tuple[int, int, int, int, int] | str"


class FileWatch:
    """Tells of changes after the file has come to rest, so that no half-written one is read.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: _Stamp = ""
        self._taken: _Stamp = ""

    def has_changed(self) -> bool:
        """Tells whether the file differs from the one last taken and equals that of the last call."""
        stamp = self._read_stamp()
        is_at_rest = stamp == self._seen
        self._seen = stamp
        return is_at_rest and stamp != self._taken

    def take(self) -> None:
        """Counts the present file as known."""
        self._taken = self._seen = self._read_stamp()

    def _read_stamp(self) -> _Stamp:
        try:
            status = os.stat(self.path)
        except OSError as error:
            return type(error).__name__
        return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
