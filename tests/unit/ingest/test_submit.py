"""Files are handed over whole, once, and by the names that people know them by."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mindstream_common import events
from mindstream_common.bus import StreamFull
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import ConfigError, InputError, Transient
from mindstream_common.events import FileBundle
from mindstream_common.ids import sha256_bytes
from mindstream_common.store import MemoryStore
from mindstream_common.topology import FILES
from mindstream_ingest import submit as module
from mindstream_ingest.submit import Found, Submitted, ending, find, submit


@pytest.fixture
async def bus() -> MemoryBus:
    made = MemoryBus()
    await made.ensure(queue_events=1000)
    return made


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def files(folder: Path, **contents: str | bytes) -> list[Path]:
    """``a_txt="..."`` becomes ``a.txt``."""
    made = []
    for name, content in contents.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        made.append(path)
    return made


async def hand_over(found: Sequence[Found], store: Any, bus: Any, **options: Any) -> list[Submitted]:
    values = {"domain": "medical", "text_fields": (), "patience": 0.0} | options
    return [done async for done in submit(found, store=store, bus=bus, **values)]


async def bundles(bus: MemoryBus) -> list[FileBundle]:
    """What waits for ingest."""
    found = [events.decode(record.data) async for record in bus.read(FILES)]
    assert all(isinstance(event, FileBundle) for event in found)
    return found  # type: ignore[return-value]


# finding -------------------------------------------------------------------------------------------------------------


def test_folders_are_searched_in_a_stable_order(tmp_path: Path) -> None:
    root = tmp_path / "reports"
    files(root, b_txt="b", a_jsonl="{}", sub__c_html="c", sub__deep__d_csv_gz=b"d", z_TXT="z")
    found, left = find([root])
    names = [file.name for file in found]
    assert names == [
        "reports/a.jsonl",
        "reports/b.txt",
        "reports/sub/c.html",
        "reports/sub/deep/d.csv.gz",
        "reports/z.TXT",
    ]
    assert left == []
    assert found[0].size == 2


def test_names_do_not_depend_on_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "reports"
    files(root, a_txt="a")
    monkeypatch.chdir(root)
    for given in (Path(), root, Path("../reports")):
        assert [file.name for file in find([given])[0]] == ["reports/a.txt"]


def test_unknown_kinds_are_left_out_and_named(tmp_path: Path) -> None:
    root = tmp_path / "r"
    files(root, a_txt="a", b_png="b", c_xlsx="c", d_gz=b"d", e_exe_gz=b"e", README="f")
    found, left = find([root])
    assert [file.name for file in found] == ["r/a.txt"]
    assert sorted(path.name for path in left) == ["README", "b.png", "c.xlsx", "d.gz", "e.exe.gz"]


def test_hidden_files_are_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "r"
    files(root, a_txt="a")
    (root / ".hidden.txt").write_text("h")
    (root / ".git").mkdir()
    (root / ".git" / "x.txt").write_text("h")
    found, left = find([root])
    assert ([file.name for file in found], left) == (["r/a.txt"], [])


def test_a_folder_below_a_hidden_one_is_searched(tmp_path: Path) -> None:
    root = tmp_path / ".cache" / "r"
    files(root, a_txt="a")
    assert [file.name for file in find([root])[0]] == ["r/a.txt"]


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere does not exist. Give a file or a folder of .txt, .jsonl"):
        find([tmp_path / "nowhere"])


def test_a_file_of_an_unknown_kind_that_was_named(tmp_path: Path) -> None:
    (path,) = files(tmp_path, report_xlsx="x")
    with pytest.raises(InputError, match=r"report\.xlsx: files of this kind are not read. Ingest reads .txt"):
        find([path])


def test_a_file_that_was_given_twice_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "r"
    (path,) = files(root, a_txt="a")
    monkeypatch.chdir(tmp_path)
    assert len(find([root, path, Path("r"), Path("r/../r/a.txt")])[0]) == 1


def test_a_file_that_goes_away_while_its_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "r"
    files(root, a_txt="a", b_txt="b")
    readable = module.readable

    def and_gone(path: Path) -> bool:
        if path.name == "a.txt":
            path.unlink()
        return readable(path)

    monkeypatch.setattr(module, "readable", and_gone)
    assert [file.name for file in find([root])[0]] == ["r/b.txt"]


# handing over --------------------------------------------------------------------------------------------------------


async def test_the_bytes_are_in_the_store_before_the_event(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    found, _ = find(files(tmp_path, qa_CSV_gz=b"1", notes_txt="2"))
    (done,) = await hand_over(found, store, bus, text_fields=("ask", "answer"))
    (bundle,) = await bundles(bus)
    assert (done.files, done.bytes, done.bundle) == (2, 2, bundle.id)
    assert [file.name for file in bundle.files] == ["qa.CSV.gz", "notes.txt"]
    assert {file.text_fields for file in bundle.files} == {("ask", "answer")}
    assert bundle.domain == "medical"
    assert bundle.objects[0].key == f"files/medical/{sha256_bytes(b'1')}.csv.gz"
    for object, data in zip(bundle.objects, (b"1", b"2"), strict=True):
        assert (store.get_bytes(object.key), object.size, object.sha256) == (data, 1, sha256_bytes(data))


async def test_the_same_files_are_the_same_bundle(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    found, _ = find(files(tmp_path, a_txt="a", b_txt="b"))
    first = await hand_over(found, store, bus)
    assert await hand_over(found, store, bus) == first
    assert len(await bundles(bus)) == 1
    assert len(store.objects) == 2


async def test_what_makes_another_bundle(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    found, _ = find(files(tmp_path, a_txt="a", b_txt="b"))
    await hand_over(found, store, bus)
    await hand_over(found, store, bus, domain="finance")
    await hand_over(found, store, bus, text_fields=("text",))
    await hand_over(found[:1], store, bus)
    renamed = [Found(file.path, f"other/{file.name}", file.size) for file in found]
    await hand_over(renamed, store, bus)
    found[0].path.write_bytes(b"c")
    await hand_over(found, store, bus)
    assert len({bundle.id for bundle in await bundles(bus)}) == 6


async def test_a_bundle_has_at_most_200_files(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    for number in range(401):
        (tmp_path / f"{number:04}.txt").write_text(str(number))
    found, _ = find([tmp_path])
    progress: list[Found] = []
    done = await hand_over(found, store, bus, progress=progress.append)
    assert [bundle.files for bundle in done] == [200, 200, 1]
    assert progress == found
    assert [name for bundle in await bundles(bus) for name in bundle.files] == [
        events.SourceFile(name=file.name) for file in found
    ]


async def test_a_bundle_has_at_most_32_mb(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    sizes = (20_000_000, 12_000_000, 1, 40_000_000, 5)
    paths = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number}.txt"
        with path.open("wb") as file:
            file.truncate(size)
        paths.append(path)
    done = await hand_over(find(paths)[0], store, bus)
    assert [(bundle.files, bundle.bytes) for bundle in done] == [(2, 32_000_000), (1, 1), (1, 40_000_000), (1, 5)]


async def test_a_file_that_changed_since_it_was_found(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    """Its size in the event is that of the bytes that were stored, also when those bytes lie there already."""
    a, b = files(tmp_path, a_txt="old", b_txt="new text")
    await hand_over(find([b])[0], store, bus)
    found, _ = find([a])
    a.write_bytes(b.read_bytes())
    await hand_over(found, store, bus)
    for bundle in await bundles(bus):
        for object in bundle.objects:
            assert object.size == len(store.get_bytes(object.key)) == 8


async def test_what_is_stored_is_what_was_hashed(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    """Somebody writes to the file between its hash and its upload."""
    found, _ = find(files(tmp_path, a_txt="a"))

    class Slow(MemoryStore):
        def put_file(self, key: str, path: Path):  # type: ignore[no-untyped-def]
            found[0].path.write_bytes(b"something else")
            return super().put_file(key, path)

    slow = Slow()
    await hand_over(found, slow, bus)
    [bundle] = await bundles(bus)
    [object] = bundle.objects
    assert slow.objects == {object.key: b"a"}
    assert object.sha256 == sha256_bytes(b"a")
    assert object.sha256 in object.key


async def test_a_file_that_changes_while_it_is_read(
    tmp_path: Path, store: MemoryStore, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = find(files(tmp_path, a_txt="a", b_txt="b"))
    real, calls = os.fstat, []

    def growing(descriptor: int) -> os.stat_result:
        calls.append(descriptor)
        if len(calls) == 2:  # the second look at a.txt
            with found[0].path.open("a") as file:
                file.write("and more")
        return real(descriptor)

    monkeypatch.setattr("mindstream_ingest.submit.os.fstat", growing)
    refused: list[str] = []
    await hand_over(found, store, bus, refused=lambda _, error: refused.append(error))
    [error] = refused
    assert "a.txt changed while it was read. Submit it again" in error
    [bundle] = await bundles(bus)
    assert [file.name for file in bundle.files] == [found[1].name]  # the other one went on


async def test_damaged_bytes_under_a_key_are_mended(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    found, _ = find(files(tmp_path, a_txt="a"))
    await hand_over(found, store, bus)
    [key] = store.objects
    store.objects[key] = b"x"
    await hand_over(found, store, bus)
    assert store.objects == {key: b"a"}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("a.jsonl.gz", ".jsonl.gz"),
        ("1.第一章 总则.txt", ".txt"),
        ("A.TXT", ".txt"),
        ("x.tar.gz", ".tar.gz"),
        ("b.tgz", ".tgz"),
    ],
)
def test_a_dot_in_a_title_is_no_ending(name: str, known: str) -> None:
    assert ending(name) == known


async def test_a_file_that_cannot_be_read(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    found, _ = find(files(tmp_path, a_txt="a"))
    found[0].path.unlink()
    with pytest.raises(InputError, match=r"a\.txt cannot be read"):
        await hand_over(found, store, bus)


class Away(MemoryBus):
    """A bus that turns the first publishes away."""

    def __init__(self, times: int, error: Exception) -> None:
        super().__init__()
        self.times = times
        self.error = error

    async def publish(self, subject: str, data: bytes, *, id: str, expect: int | None = None) -> int:
        if self.times:
            self.times -= 1
            raise self.error
        return await super().publish(subject, data, id=id, expect=expect)


@pytest.mark.parametrize("error", [Transient("the bus does not answer"), StreamFull("the stream is full")])
async def test_a_bus_that_is_away_is_waited_for(tmp_path: Path, store: MemoryStore, error: Exception) -> None:
    found, _ = find(files(tmp_path, a_txt="a"))
    bus = Away(1, error)
    await bus.ensure(queue_events=10)
    await hand_over(found, store, bus, patience=5.0)
    assert len(await bundles(bus)) == 1


async def test_a_bus_that_stays_away(tmp_path: Path, store: MemoryStore) -> None:
    found, _ = find(files(tmp_path, a_txt="a"))
    bus = Away(1000, Transient("the bus does not answer"))
    with pytest.raises(Transient, match=r"does not answer \(waited 0 s\). Submitting again later is safe"):
        await hand_over(found, store, bus)


async def test_an_event_stays_far_below_what_the_bus_takes(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    """Every file of a bundle repeats the template: many files with a long one are several bundles."""
    template = "{ask}" + "长" * 2_000
    found, _ = find(files(tmp_path, **{f"f{n:03}_jsonl": f'{{"ask": "{n}"}}' for n in range(120)}))
    assert len(found) == 120
    await hand_over(found, store, bus, template=template)
    made = await bundles(bus)
    assert len(made) > 1
    assert sum(len(bundle.files) for bundle in made) == 120
    assert max(len(events.encode(bundle)) for bundle in made) < 420_000


async def test_a_template_that_is_too_long_is_refused(tmp_path: Path, store: MemoryStore, bus: MemoryBus) -> None:
    found, _ = find(files(tmp_path, a_jsonl="{}"))
    with pytest.raises(ConfigError, match="at most 8,000 are taken"):
        await hand_over(found, store, bus, template="{ask}" + "x" * 8_000)
    assert await bundles(bus) == []
