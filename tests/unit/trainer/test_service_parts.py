"""What the trainer's service is made of: uploads, local shards, progress."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pytest
from mindstream_common.errors import MindStreamError, Poison, Transient
from mindstream_common.events import CatalogShard, RowGroup
from mindstream_common.ids import sha256_bytes, sha256_file
from mindstream_common.store import MemoryStore
from mindstream_trainer import checkpoint, progress, uploads
from mindstream_trainer.checkpoint import STATE, FileInfo, State
from mindstream_trainer.progress import Progress, ProgressFile
from mindstream_trainer.report import Stepped
from mindstream_trainer.shards import Shards
from mindstream_trainer.uploader import Uploader
from mindstream_trainer.uploads import Uploads


def saved(folder: Path, step: int) -> Path:
    """A checkpoint's folder as the rank leaves it, only with less in it."""
    path = folder / f"step-{step:08}"
    path.mkdir(parents=True)
    model = path / "model.safetensors"
    model.write_bytes(b"weights of %d" % step)
    info = FileInfo(size=model.stat().st_size, sha256=sha256_file(model))
    (path / STATE).write_bytes(checkpoint.sign(State(run="default", step=step, seed=1, files={model.name: info})))
    return path


def stored(store: MemoryStore) -> set[str]:
    """Names of the checkpoints of which anything is left in the store."""
    return {key.split("/")[3] for key in store.objects if "/checkpoints/" in key}


def test_a_run_without_checkpoints_has_no_pointer() -> None:
    assert Uploads(MemoryStore(), "default", keep=2).latest() is None


def test_files_come_first_then_the_pointer(tmp_path: Path) -> None:
    store = MemoryStore()
    pointer = Uploads(store, "default", keep=2).upload(saved(tmp_path, 5), 5)
    assert [key.rsplit("/", 1)[1] for key in store.objects] == ["model.safetensors", STATE, "latest.json"]
    assert (pointer.step, pointer.name) == (5, "step-00000005")
    assert Uploads(store, "default", keep=2).latest() == pointer
    assert Uploads(store, "other", keep=2).latest() is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    store = MemoryStore()
    run = Uploads(store, "default", keep=2)
    for step in (99, 100, 101, 1000):
        run.upload(saved(tmp_path, step), step)
    assert stored(store) == {"step-00000101", "step-00001000"}
    latest = run.latest()
    assert latest is not None
    assert latest.step == 1000


def test_the_pointer_never_goes_back_and_names_what_is_there(tmp_path: Path) -> None:
    store = MemoryStore()
    run = Uploads(store, "default", keep=1)
    run.upload(saved(tmp_path, 10), 10)
    run.upload(saved(tmp_path, 5), 5)
    latest = run.latest()
    assert latest is not None
    assert latest.step == 10
    assert all(store.exists(object.key) for object in latest.objects)


def test_uploading_again_changes_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    run = Uploads(store, "default", keep=2)
    folder = saved(tmp_path, 5)
    run.upload(folder, 5)
    before = dict(store.objects)
    run.upload(folder, 5)
    assert store.objects == before


def test_other_runs_are_left_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    Uploads(store, "a", keep=1).upload(saved(tmp_path, 1), 1)
    Uploads(store, "a-b", keep=1).upload(saved(tmp_path, 2), 2)
    assert stored(store) == {"step-00000001", "step-00000002"}


def test_state_goes_first_when_one_is_removed(tmp_path: Path) -> None:
    """What is left of a checkpoint after a crash must not look whole."""
    store = MemoryStore()
    gone: list[str] = []
    run = Uploads(store, "default", keep=1)
    run.upload(saved(tmp_path, 1), 1)
    remove = store.delete
    store.delete = lambda key: (gone.append(key.rsplit("/", 1)[1]), remove(key))[1]  # type: ignore[method-assign]
    run.upload(saved(tmp_path, 2), 2)
    assert gone == [STATE, "model.safetensors"]


def restore(run: Uploads, folder: Path, newer_than: int = -1) -> tuple[int | None, list[str]]:
    """The step that was brought to ``folder``, and the warnings."""
    warnings: list[str] = []
    found = run.restore(folder, newer_than=newer_than, warn=warnings.append)
    if found is not None:
        assert checkpoint.verify(folder / f"step-{found.state.step:08}") == found
    assert not list(folder.glob(".tmp-*"))
    return None if found is None else found.state.step, warnings


def test_the_newest_is_brought_here(tmp_path: Path) -> None:
    run = Uploads(MemoryStore(), "default", keep=2)
    for step in (5, 10):
        run.upload(saved(tmp_path / "rank", step), step)
    assert restore(run, tmp_path / "here") == (10, [])
    assert restore(run, tmp_path / "there", newer_than=10) == (None, [])
    assert (run.holds(10), run.holds(5)) == (True, False)


def flip(store: MemoryStore, key: str) -> None:
    data = bytearray(store.get_bytes(key))
    data[len(data) // 2] ^= 1
    store.put_bytes(key, bytes(data))


@pytest.mark.parametrize("name", ["model.safetensors", STATE])
@pytest.mark.parametrize("way", ["flipped", "gone"])
def test_a_damaged_one_is_passed_over_for_an_older_one(tmp_path: Path, name: str, way: str) -> None:
    store = MemoryStore()
    run = Uploads(store, "default", keep=2)
    for step in (5, 10):
        run.upload(saved(tmp_path / "rank", step), step)
    key = f"runs/default/checkpoints/step-00000010/{name}"
    if way == "flipped":
        flip(store, key)
    else:
        store.delete(key)
    found, warnings = restore(run, tmp_path / "here")
    assert found == 5
    (warning,) = warnings
    assert "step-00000010" in warning
    assert name in warning
    assert restore(run, tmp_path / "local", newer_than=7)[0] is None  # an older one that is here is as good
    assert not (tmp_path / "local" / "step-00000010").exists()
    assert not run.holds(10)

    run.upload(saved(tmp_path / "again", 7), 7)  # the run goes on from there; the damaged one does not stand in its way
    assert run.latest().step == 7  # type: ignore[union-attr]
    assert stored(store) == {"step-00000005", "step-00000007"}
    assert restore(run, tmp_path / "later") == (7, [])


def test_a_state_that_was_edited_is_seen(tmp_path: Path) -> None:
    """Also with a hash that fits the edit: the pointer knows the file that was stored."""
    store = MemoryStore()
    run = Uploads(store, "default", keep=2)
    for step in (5, 10):
        run.upload(saved(tmp_path / "rank", step), step)
    key = "runs/default/checkpoints/step-00000010/state.json"
    state = msgspec.json.decode(store.get_bytes(key), type=State)
    edited = msgspec.structs.replace(state, window=2)
    store.put_bytes(key, msgspec.json.encode(edited))
    assert "state.json was changed" in restore(run, tmp_path / "here")[1][0]
    store.put_bytes(key, checkpoint.sign(edited))
    found, (warning,) = restore(run, tmp_path / "here")
    assert found == 5
    assert "latest.json names step 10 with a state.json whose sha256 is" in warning


def test_a_pointer_to_nothing_or_a_damaged_one_hides_no_checkpoint(tmp_path: Path) -> None:
    store = MemoryStore()
    run = Uploads(store, "default", keep=2)
    for step in (5, 10):
        run.upload(saved(tmp_path / "rank", step), step)
    for key in [key for key in store.objects if "step-00000010" in key]:
        store.delete(key)
    found, warnings = restore(run, tmp_path / "here")
    assert (found, len(warnings)) == (5, 1)
    store.put_bytes("runs/default/latest.json", b'{"step": 1')
    again = Uploads(store, "default", keep=2)
    found, (warning,) = restore(again, tmp_path / "there")
    assert found == 5
    assert "latest.json in the object store is damaged" in warning
    again.upload(saved(tmp_path / "more", 6), 6)
    assert again.latest().step == 6  # type: ignore[union-attr]


def test_a_store_that_is_away_is_not_a_damaged_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    run = Uploads(store, "default", keep=2)
    run.upload(saved(tmp_path / "rank", 5), 5)

    def away(*_: object) -> None:
        raise Transient("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "get_file", away)
        with pytest.raises(Transient):
            restore(run, tmp_path / "here")
    assert restore(run, tmp_path / "here") == (5, [])


def test_a_download_replaces_a_damaged_local_one(tmp_path: Path) -> None:
    run = Uploads(MemoryStore(), "default", keep=2)
    run.upload(saved(tmp_path / "rank", 5), 5)
    damaged = saved(tmp_path / "here", 5)
    (damaged / "model.safetensors").write_bytes(b"half")
    (damaged / "left-over").touch()
    assert restore(run, tmp_path / "here") == (5, [])
    assert sorted(file.name for file in damaged.iterdir()) == ["model.safetensors", STATE]


def test_a_damaged_pointer_is_an_error_that_says_what_happens() -> None:
    store = MemoryStore()
    store.put_bytes("runs/default/latest.json", b'{"step": 1')
    with pytest.raises(MindStreamError, match=r"runs/default/latest\.json .* The next upload writes it anew"):
        Uploads(store, "default", keep=2).latest()


class Slow(MemoryStore):
    """Uploads wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.seen: list[str] = []

    def put_file(self, key, path):  # type: ignore[no-untyped-def]
        assert self.go.wait(10)
        self.seen.append(key.split("/")[3])
        return super().put_file(key, path)


async def test_a_rank_that_is_faster_than_the_store_loses_no_newest_checkpoint(tmp_path: Path) -> None:
    """Every checkpoint but the newest is pruned at once, some before they could be taken; the disk does not fill."""
    store, done = Slow(), []
    uploader = Uploader(Uploads(store, "default", 2), tmp_path / "up", lambda _, step: done.append(step))
    uploading = asyncio.create_task(uploader.run())
    for step in range(1, 21):
        folder = saved(tmp_path / "rank", step)
        if step % 3:
            uploader.offer(folder, step)
            await asyncio.sleep(0)
            shutil.rmtree(folder)
        else:
            shutil.rmtree(folder)
            uploader.offer(folder, step)
        assert len(list((tmp_path / "up").glob("*/step-*"))) <= 2
    store.go.set()
    await asyncio.wait_for(uploader.finished(), 10)
    assert done[-1] == 20
    assert len(done) <= 3
    assert restore(Uploads(store, "default", 2), tmp_path / "here") == (20, [])
    assert list((tmp_path / "up").iterdir()) == []
    uploading.cancel()


def test_a_checkpoint_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path / "rank", 5)
    (folder / STATE).unlink()
    with pytest.raises(FileNotFoundError):
        uploads.pin(folder, tmp_path / "uploading")
    assert list((tmp_path / "uploading").iterdir()) == []


def test_a_pinned_checkpoint_outlives_the_ranks_own(tmp_path: Path) -> None:
    folder = saved(tmp_path / "rank", 5)
    pinned = uploads.pin(folder, tmp_path / "uploading")
    for file in folder.iterdir():
        file.unlink()
    assert (pinned / "model.safetensors").read_bytes() == b"weights of 5"
    again = saved(tmp_path / "again", 5)
    assert uploads.pin(again, tmp_path / "uploading") == pinned  # one that was left from before is replaced


def catalogued(store: MemoryStore, number: int) -> CatalogShard:
    name = f"{number:032x}"
    key = f"shards/mindrecord/medical/{name}.mindrecord"
    return CatalogShard(
        id=name,
        domain="medical",
        objects=(store.put_bytes(key, b"rows %d" % number), store.put_bytes(f"{key}.db", b"index %d" % number)),
        created=0.0,
        root=name,
        parents=(),
        documents=1,
        rows=1,
        tokens=1,
        vocab_size=10,
        tokenizer_sha256="0" * 64,
        dtype="int32",
        groups=(RowGroup(split="train", length=16, rows=1),),
    )


class Counting(MemoryStore):
    """Counts the downloads."""

    downloads = 0

    def get_file(self, object, path):  # type: ignore[no-untyped-def]
        self.downloads += 1
        super().get_file(object, path)


def test_shards_are_fetched_once_with_their_index_beside_them(tmp_path: Path) -> None:
    store = Counting()
    shards = Shards(store, tmp_path / "shards")
    one, two = catalogued(store, 1), catalogued(store, 2)
    files = shards.fetch_all([one, two])
    assert [file.shard for file in files] == [one.id, two.id]
    assert (files[0].dtype, files[0].groups) == ("int32", one.groups)
    path = Path(files[0].path)
    assert path.is_absolute()
    assert path.name == f"{one.id}.mindrecord"  # MindRecord needs its own base name
    assert (path.read_bytes(), path.with_name(path.name + ".db").read_bytes()) == (b"rows 1", b"index 1")
    shards.fetch(one)
    assert store.downloads == 4


def test_a_shard_of_another_size_is_fetched_again(tmp_path: Path) -> None:
    store = Counting()
    path = Path(Shards(store, tmp_path).fetch(catalogued(store, 1)).path)
    path.write_bytes(b"half")
    Shards(store, tmp_path).fetch(catalogued(store, 1))
    assert path.read_bytes() == b"rows 1"


def test_a_flipped_byte_is_seen_when_a_trainer_begins(tmp_path: Path) -> None:
    """MindRecord reads flipped bytes silently; a copy from an earlier start is believed only after its hash."""
    store = Counting()
    path = Path(Shards(store, tmp_path).fetch(catalogued(store, 1)).path)
    path.write_bytes(b"rows 9")
    again = Shards(store, tmp_path)
    again.fetch(catalogued(store, 1))
    assert path.read_bytes() == b"rows 1"
    assert store.downloads == 3


def test_a_shard_whose_bytes_are_others_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    shard = catalogued(store, 1)
    store.put_bytes(shard.objects[0].key, b"rows 9")
    with pytest.raises(Poison, match=sha256_bytes(b"rows 1")):
        Shards(store, tmp_path).fetch(shard)
    assert list(tmp_path.iterdir()) == []


def test_shards_that_nobody_needs_make_room(tmp_path: Path) -> None:
    store = Counting()
    shards = Shards(store, tmp_path)
    made = [catalogued(store, number) for number in (1, 2, 3)]
    for number, shard in enumerate(made):
        for object in shard.objects:
            shards.fetch(shard)
            os.utime(tmp_path / object.key.rsplit("/", 1)[1], (number, number))
    each = sum(object.size for object in made[0].objects)
    shards.trim(3 * each, [])
    assert shards.bytes() == 3 * each
    shards.trim(2 * each, made[:1])  # the oldest of those that are not needed
    assert shards.bytes() == 2 * each
    assert {path.name[:32] for path in tmp_path.iterdir()} == {made[0].id, made[2].id}
    shards.trim(0, made[:1])
    assert shards.bytes() == each  # what is needed stays
    downloads = store.downloads
    shards.fetch_all(made)  # and comes back when it is needed again
    assert store.downloads == downloads + 4
    assert Shards(store, tmp_path / "absent").bytes() == 0


def step(number: int, **fields: float) -> Stepped:
    values = {"loss": 2.0, "grad_norm": 1.0, "seconds": 1.0, "data_wait_seconds": 1.0} | fields
    return Stepped(
        step=number, window=1, batch=number, length=16, learning_rate=0.1, loss_scale=1.0, rows=4, documents=2,
        tokens=50, masked=7, **values,
    )  # fmt: skip


def test_progress_is_written_and_read(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, Progress(run="default", steps=10))
    file.stepped(step(1))
    file.stepped(step(2))
    file.close()
    found = progress.read(tmp_path)
    assert found is not None
    assert (found.state, found.step, found.steps, found.tokens, found.rows) == ("training", 2, 10, 100, 8)
    assert (found.train_seconds, found.data_wait_seconds) == (2.0, 2.0)
    assert found.tokens_per_second == pytest.approx(25.0)
    lines = (tmp_path / "steps.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_speed_leaves_out_updates_that_compiled(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, Progress(run="default"))
    file.stepped(step(1, seconds=60.0))
    assert (file.progress.step_seconds, file.progress.tokens_per_second) == (0.0, 0.0)
    file.stepped(step(2))
    assert (file.progress.step_seconds, file.progress.tokens_per_second) == (2.0, 25.0)
    file.stepped(step(3, seconds=3.0))
    assert file.progress.step_seconds == pytest.approx(2.2)
    assert file.progress.tokens_per_second == pytest.approx(0.9 * 25 + 0.1 * 50 / 4)
    file.close()


def test_progress_goes_on_after_a_restart(tmp_path: Path) -> None:
    for begin in (1, 3):
        file = ProgressFile(tmp_path, progress.read(tmp_path) or Progress(run="default"))
        file.stepped(step(begin))
        file.stepped(step(begin + 1))
        file.close()
    assert len((tmp_path / "steps.jsonl").read_bytes().splitlines()) == 4
    found = progress.read(tmp_path)
    assert found is not None
    assert (found.step, found.tokens) == (4, 200)


def test_a_number_that_is_not_finite_can_be_shown(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, Progress(run="default"))
    file.stepped(step(1, loss=math.nan, grad_norm=math.inf))
    file.close()
    found = progress.read(tmp_path)
    assert found is not None
    assert found.loss is None


def test_a_run_without_progress(tmp_path: Path) -> None:
    assert progress.read(tmp_path) is None
    (tmp_path / "progress.json").write_text("{")
    assert progress.read(tmp_path) is None


def test_updates_that_were_lost_with_a_rank_are_not_counted(tmp_path: Path) -> None:
    from mindstream_trainer.progress import Progress, ProgressFile
    from mindstream_trainer.report import Stepped

    def step(number: int) -> Stepped:
        return Stepped(
            step=number, window=1, batch=number, length=8, loss=1.0, learning_rate=0.1, grad_norm=1.0, loss_scale=1.0,
            rows=2, documents=1, tokens=10, masked=1, seconds=0.5, data_wait_seconds=0.0,
        )  # fmt: skip

    file = ProgressFile(tmp_path, Progress(run="r"))
    try:
        for number in (1, 2):
            file.stepped(step(number))
        file.saved(2)
        file.stepped(step(3))
        file.started(2)  # the rank died in update 4 and resumed from the checkpoint of update 2
        for number in (3, 4):
            file.stepped(step(number))
        assert (file.progress.step, file.progress.tokens, file.progress.rows) == (4, 40, 8)
        assert file.progress.train_seconds == 2.0
        file.started(0)
        assert (file.progress.step, file.progress.tokens) == (0, 0)
    finally:
        file.close()
