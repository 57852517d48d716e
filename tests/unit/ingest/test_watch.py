"""A file is taken when it has stopped growing, once for every state that it settles in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mindstream_ingest import submit
from mindstream_ingest.watch import Watcher


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "inbox"
    path.mkdir()
    return path


class Looking:
    """Looks once a second, takes what is ready, and says its names."""

    def __init__(self, *paths: Path) -> None:
        self.watcher = Watcher(paths, settle=2.0)
        self.now = 100.0

    def look(self, seconds: int = 1) -> list[str]:
        names = []
        for _ in range(seconds):
            self.now += 1.0
            ready = self.watcher.look(self.now)
            self.watcher.take(ready)
            names += [file.name for file in ready]
        return names


def test_a_settled_file_is_taken_once(inbox: Path) -> None:
    (inbox / "a.txt").write_text("a")
    looking = Looking(inbox)
    assert looking.look(2) == []
    assert looking.look(1) == ["inbox/a.txt"]
    assert looking.look(10) == []


def test_a_growing_file_is_not_taken(inbox: Path) -> None:
    looking = Looking(inbox)
    for number in range(6):
        with (inbox / "a.txt").open("a") as file:
            file.write(f"line {number}\n")
        assert looking.look() == []
    assert looking.look(2) == ["inbox/a.txt"]
    assert looking.watcher.look(looking.now) == []


def test_its_size_is_that_of_the_settled_state(inbox: Path) -> None:
    path = inbox / "a.txt"
    path.write_text("a")
    looking = Looking(inbox)
    looking.look()
    path.write_text("longer")
    looking.look(2)
    (found,) = looking.watcher.look(looking.now + 1)
    assert (found.path, found.size) == (path, 6)


def test_a_file_that_changes_later_is_given_again(inbox: Path) -> None:
    path = inbox / "a.txt"
    path.write_text("a")
    looking = Looking(inbox)
    assert looking.look(3) == ["inbox/a.txt"]
    path.write_text("b")
    stamp = path.stat()
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1_000_000))  # same size, another time
    assert looking.look(2) == []
    assert looking.look(2) == ["inbox/a.txt"]
    assert looking.look(5) == []


def test_what_was_not_taken_is_given_again(inbox: Path) -> None:
    """The upload failed: nothing was taken, so the next look offers it anew."""
    (inbox / "a.txt").write_text("a")
    looking = Looking(inbox)
    looking.look(2)
    for later in (1.0, 2.0):
        assert [file.name for file in looking.watcher.look(looking.now + later)] == ["inbox/a.txt"]


def test_hidden_files_are_ignored(inbox: Path) -> None:
    """Copying tools write beside and rename."""
    hidden = inbox / ".a.txt.part.txt"
    hidden.write_text("a")
    looking = Looking(inbox)
    assert looking.look(5) == []
    hidden.rename(inbox / "a.txt")
    assert looking.look(3) == ["inbox/a.txt"]


def test_unknown_kinds_are_named_and_left(inbox: Path) -> None:
    (inbox / "a.png").write_text("a")
    looking = Looking(inbox)
    assert looking.look(5) == []
    assert looking.watcher.left == {inbox / "a.png"}


def test_new_folders_and_files_are_found(inbox: Path) -> None:
    looking = Looking(inbox)
    assert looking.look(3) == []
    (inbox / "new").mkdir()
    (inbox / "new" / "a.txt").write_text("a")
    assert looking.look(3) == ["inbox/new/a.txt"]


def test_a_single_file_is_watched(inbox: Path) -> None:
    path = inbox / "a.txt"
    path.write_text("a")
    assert Looking(path).look(3) == ["a.txt"]


def test_a_file_under_two_watched_paths_is_taken_once(inbox: Path) -> None:
    path = inbox / "a.txt"
    path.write_text("a")
    assert Looking(inbox, path, inbox).look(5) == ["inbox/a.txt"]


def test_files_and_folders_that_go_away(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = inbox / "a.txt"
    path.write_text("a")
    looking = Looking(inbox)
    looking.look()
    find = submit.find

    def and_gone(paths):  # type: ignore[no-untyped-def]
        found = find(paths)
        path.unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(submit, "find", and_gone)
        assert looking.look() == []
    inbox.rmdir()
    assert looking.look(3) == []
    inbox.mkdir()
    path.write_text("a")
    assert looking.look(3) == ["inbox/a.txt"]
