"""When a file counts as changed."""

from __future__ import annotations

import os
from pathlib import Path

from sidecar.policy.file_watch import FileWatch


def test_loaded_file_has_not_changed_until_it_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a")
    watch = FileWatch(path)
    assert [watch.has_changed(), watch.has_changed()] == [False, True]
    watch.mark_loaded()
    assert not watch.has_changed()
    other = tmp_path / "other"
    other.write_text("a")
    os.replace(other, path)
    assert [watch.has_changed(), watch.has_changed()] == [False, True]
