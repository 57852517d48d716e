"""What the trainer's service is made of: uploads, local shards, progress."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from mindstream_common.errors import MindStreamError, Poison
from mindstream_common.events import CatalogShard, RowGroup
from mindstream_common.ids import sha256_bytes
from mindstream_common.store import MemoryStore, NotFound
from mindstream_trainer import checkpoint, progress, uploads
from mindstream_trainer.checkpoint import STATE
from mindstream_trainer.progress import Progress, ProgressFile
from mindstream_trainer.report import Stepped
from mindstream_trainer.shards import Shards
from mindstream_trainer.uploads import Uploads

STATE_TEXT = json.dumps({"run": "default", "seed": 1})


@pytest.fixture(autouse=True)
def unverified(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Checkpoints of a few bytes instead of real ones; what was verified is noted."""
    seen: list[Path] = []
    monkeypatch.setattr(checkpoint, "verify", seen.append)
    return seen


def saved(folder: Path, step: int) -> Path:
    """A checkpoint's folder as the rank leaves it."""
    path = folder / f"step-{step:08}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights of %d" % step)
    (path / STATE).write_text(STATE_TEXT)
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


def test_a_download_is_whole_or_not_there(tmp_path: Path, unverified: list[Path]) -> None:
    store = MemoryStore()
    run = Uploads(store, "default", keep=2)
    pointer = run.upload(saved(tmp_path / "rank", 5), 5)
    target = tmp_path / "here"
    path = run.download(pointer, target)
    assert path == target / "step-00000005"
    assert (path / "model.safetensors").read_bytes() == b"weights of 5"
    assert len(unverified) == 1
    store.put_bytes(pointer.objects[0].key, b"weights of 6")
    other = tmp_path / "elsewhere"
    with pytest.raises(Poison, match=r"model\.safetensors holds other bytes"):
        run.download(pointer, other)
    assert not (other / "step-00000005").exists()
    store.delete(pointer.objects[0].key)
    with pytest.raises(NotFound):
        run.download(pointer, other)
    assert not (other / "step-00000005").exists()


def test_a_download_replaces_a_damaged_local_one(tmp_path: Path) -> None:
    run = Uploads(MemoryStore(), "default", keep=2)
    pointer = run.upload(saved(tmp_path / "rank", 5), 5)
    damaged = saved(tmp_path / "here", 5)
    (damaged / "model.safetensors").write_bytes(b"half")
    (damaged / "left-over").touch()
    path = run.download(pointer, tmp_path / "here")
    assert sorted(file.name for file in path.iterdir()) == ["model.safetensors", STATE]
    assert (path / "model.safetensors").read_bytes() == b"weights of 5"


def test_a_damaged_pointer_is_an_error_that_says_what_to_do() -> None:
    store = MemoryStore()
    store.put_bytes("runs/default/latest.json", b'{"step": 1')
    with pytest.raises(MindStreamError, match=r"runs/default/latest\.json"):
        Uploads(store, "default", keep=2).latest()


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
