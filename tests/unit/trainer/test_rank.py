"""The rank as a real process: resumed after kills to the same bits, stopped by bad numbers, refusing what does not fit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trainer_support as support
from mindstream_common.errors import ConfigError
from mindstream_trainer import checkpoint, rank, weights
from mindstream_trainer.checkpoint import latest_valid
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.rundir import RunDir, ShardFile, WindowFile
from mindstream_trainer.vocabulary import Vocabulary

pytestmark = pytest.mark.mindspore
EXACT = TrainerConfig(
    global_batch=8, micro_batch=4, dropout=0.1, learning_rate=1e-3, warmup=3, checkpoint_every=2, seed=11
)


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return support.vocabulary_file(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[ShardFile]:
    """Two shards of two lengths; neither fills its last global batch."""
    folder = tmp_path_factory.mktemp("shards")
    found = []
    for number in (1, 2):
        rows = (
            support.rows_of(22, 16, seed=number) + support.rows_of(3, 16, seed=9) + support.rows_of(13, 32, seed=number)
        )
        groups = [
            support.train_group(22),
            support.RowGroup(split="held_out", length=16, rows=3),
            support.train_group(13, 32),
        ]
        found.append(support.write_shard(folder, number, rows, groups))
    return found


def two_windows(folder: Path, shards: list[ShardFile], vocab: Path, trainer: TrainerConfig = EXACT) -> RunDir:
    """The second window has one new shard and what the first one carried."""
    from mindstream_trainer.plan import plan

    run = support.make_run(folder, trainer, shards[:1], vocab)
    first = support.window_of(1, shards[:1])
    carry = plan(first, seed=trainer.seed, global_batch=trainer.global_batch).carry
    run.write_window(WindowFile(window=support.window_of(2, shards[1:], carry=carry), shards=tuple(shards)))
    return run


def final(run: RunDir) -> tuple[checkpoint.State, dict[str, bytes]]:
    """The last checkpoint: its state without what clocks decide, and the bytes of all numbers."""
    found = latest_valid(run.checkpoints)
    assert found is not None
    numbers = {name: array.tobytes() for part in found.arrays() for name, array in part.items()}
    return msgspec.structs.replace(found.state, seconds=0.0, files={}, sha256=""), numbers


@pytest.fixture(scope="module")
def straight(
    tmp_path_factory: pytest.TempPathFactory, shards: list[ShardFile], vocab: Path
) -> tuple[RunDir, list[dict]]:
    run = two_windows(tmp_path_factory.mktemp("straight") / "run", shards, vocab)
    code, reports, errors = support.run_rank(run)
    assert code == 0, errors
    return run, reports


def test_a_whole_run(straight: tuple[RunDir, list[dict]]) -> None:
    run, reports = straight
    steps = [r for r in reports if r["type"] == "stepped"]
    assert reports[0]["type"] == "started"
    assert reports[0]["resumed_from"] is None
    assert "random numbers" in reports[0]["notes"][0]
    assert reports[-1] == {"type": "finished", "step": 8, "reason": "end"}
    assert [s["step"] for s in steps] == list(range(1, 9))
    assert [s["learning_rate"] for s in steps[:4]] == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3])
    assert {r["length"] for r in reports if r["type"] == "compiled"} == {16, 32}
    assert [Path(r["path"]).name for r in reports if r["type"] == "saved"] == [f"step-0000000{i}" for i in (2, 4, 6, 8)]
    assert len(checkpoint.steps(run.checkpoints)) == 2
    state = final(run)[0]
    assert (state.step, state.rows) == (8, 64)
    assert state.tokens == sum(s["tokens"] for s in steps)
    assert state.documents == sum(s["documents"] for s in steps)


@pytest.mark.chaos
def test_killed_twice_and_resumed_gives_the_same_bits(
    tmp_path: Path, straight: tuple[RunDir, list[dict]], shards: list[ShardFile], vocab: Path
) -> None:
    expected, losses = final(straight[0]), {r["step"]: r["loss"] for r in straight[1] if r["type"] == "stepped"}
    run = two_windows(tmp_path / "run", shards, vocab)
    seen: dict[int, float] = {}
    for _ in range(2):
        process = support.start_rank(run)
        assert process.stdout is not None
        after, count = random.randint(1, 4), 0
        for line in process.stdout:
            message = json.loads(line)
            if message["type"] == "stepped":
                seen[message["step"]] = message["loss"]
                count += 1
                if count == after:
                    process.kill()
                    break
        process.communicate()
    code, reports, errors = support.run_rank(run)
    assert code == 0, errors
    seen |= {r["step"]: r["loss"] for r in reports if r["type"] == "stepped"}
    assert seen == losses
    assert final(run) == expected


@pytest.mark.chaos
@pytest.mark.parametrize("way", ["signal", "file"])
def test_asked_to_stop_it_saves_and_goes_on_to_the_same_bits(
    tmp_path: Path, straight: tuple[RunDir, list[dict]], shards: list[ShardFile], vocab: Path, way: str
) -> None:
    run = two_windows(tmp_path / "run", shards, vocab)
    process = support.start_rank(run)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["type"] == "stepped":
            process.send_signal(signal.SIGTERM) if way == "signal" else run.ask_to_stop()
            break
    rest = [json.loads(line) for line in process.stdout]
    process.communicate()
    assert process.returncode == 0
    assert rest[-1]["reason"] == "stopped"
    assert latest_valid(run.checkpoints).state.step == rest[-1]["step"]  # type: ignore[union-attr]
    run.clear_requests()
    run.write_end()
    assert support.run_rank(run)[0] == 0
    assert final(run) == final(straight[0])


def test_another_micro_batch_gives_the_same_losses(
    tmp_path: Path, straight: tuple[RunDir, list[dict]], shards: list[ShardFile], vocab: Path
) -> None:
    trainer = msgspec.structs.replace(EXACT, micro_batch=None)
    _, reports, _ = support.run_rank(two_windows(tmp_path / "run", shards, vocab, trainer))
    got, expected = ([r["loss"] for r in found if r["type"] == "stepped"] for found in (reports, straight[1]))
    assert got == pytest.approx(expected, rel=1e-5)


def test_windows_that_come_later_join_the_run(
    tmp_path: Path, straight: tuple[RunDir, list[dict]], shards: list[ShardFile], vocab: Path
) -> None:
    run = two_windows(tmp_path / "run", shards, vocab)
    second = (run.windows / "000002.json").rename(tmp_path / "later.json")
    run.clear_requests()
    process = support.start_rank(run)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(json.loads(line))
        if lines[-1]["type"] == "waiting":
            assert lines[-1]["window"] == 2
            time.sleep(0.3)
            second.rename(run.windows / "000002.json")
            run.write_end()
    process.communicate()
    assert process.returncode == 0
    waits = {r["step"]: r["data_wait_seconds"] for r in lines if r["type"] == "stepped"}
    assert waits[max(waits)] < 0.2
    assert sum(waits.values()) > 0.3
    assert final(run) == final(straight[0])


def test_steps_end_a_run(tmp_path: Path, shards: list[ShardFile], vocab: Path) -> None:
    trainer = TrainerConfig(global_batch=8, steps=3, dropout=0.0, schedule="cosine")
    code, reports, _ = support.run_rank(support.make_run(tmp_path / "run", trainer, shards, vocab))
    assert code == 0
    assert reports[-1] == {"type": "finished", "step": 3, "reason": "steps"}


def test_a_bad_number_stops_the_run_before_the_update(tmp_path: Path, vocab: Path) -> None:
    """All weights are finite, and of a size that an update does not change; but position 20 looks at itself with a
    score that is infinite. Only rows of 32 tokens have such a position, and they come in the third batch."""
    trainer = TrainerConfig(global_batch=4, dropout=0.0, checkpoint_every=100, weight_decay=0.0)
    start = weights.initial(support.TINY, 1)
    for name in ("word", "position", "type"):
        start[name][:, 0] = 0.0
    start["position"][20, 0] = 1.0  # after LayerNorm, number 0 of position 20 is 5.5, that of the others 0.2
    start["norm.weight"][0] = 1e3
    start["layers.0.qkv.weight"][[0, support.TINY.hidden_size], 0] = 3e16  # query and key of the first head
    weights.write(tmp_path / "model.safetensors", weights.to_hf(start, support.TINY))
    short = support.write_shard(tmp_path, 1, support.rows_of(8), [support.train_group(8)])
    long = support.write_shard(tmp_path, 2, support.rows_of(4, 32), [support.train_group(4, 32)])
    run = support.make_run(tmp_path / "run", trainer, [short], vocab, weights=tmp_path / "model.safetensors")
    run.write_window(WindowFile(window=support.window_of(2, [long]), shards=(long,)))

    code, reports, errors = support.run_rank(run)
    assert code == 3
    assert "stopped before the update: the loss is nan" in errors
    assert [r["step"] for r in reports if r["type"] == "stepped"] == [1, 2]
    found = latest_valid(run.checkpoints)
    assert found is not None
    assert (found.state.step, found.state.window) == (2, 1)
    assert all(np.isfinite(array).all() for part in found.arrays() for array in part.values())

    said = reports[-1]
    assert said["type"] == "incident"
    assert "Update 3 was not made" in said["message"]
    assert f"shard {long.shard} row" in said["message"]
    file = json.loads(Path(said["path"]).read_bytes())
    assert (file["step"], file["window"], file["batch"], file["loss"]) == (3, 2, 0, "nan")
    assert sorted(row["row"] for row in file["rows"]) == [0, 1, 2, 3]
    assert {row["document"] for row in file["rows"]} == {"d2/0", "d2/1"}
    for row in file["rows"]:
        assert row["shard"] == long.shard
        assert row["labels"] >= 1
        assert row["text"][0] == chr(0x4E00 + int(support.rows_of(4, 32)[row["row"]][1]) - 5)
    assert [past["step"] for past in file["history"]] == [1, 2]

    code, again, _ = support.run_rank(run)  # the same rows stop it again; nothing is skipped in silence
    assert code == 3
    assert again[0]["resumed_from"] == str(found.path)
    assert latest_valid(run.checkpoints).state.step == 2  # type: ignore[union-attr]


def refused(run: RunDir) -> str:
    code, reports, errors = support.run_rank(run)
    assert code == 2
    assert not any(r["type"] == "stepped" for r in reports)
    assert "Traceback" not in errors
    return errors


def test_another_vocabulary_than_the_checkpoint_s_is_refused(
    tmp_path: Path, straight: tuple[RunDir, list[dict]], shards: list[ShardFile], vocab: Path
) -> None:
    run = two_windows(tmp_path / "run", shards, vocab)
    run.checkpoints.rmdir()
    run.checkpoints.symlink_to(straight[0].checkpoints)
    lines = vocab.read_text(encoding="utf-8").split("\n")
    lines[50], lines[51] = lines[51], lines[50]
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join(lines), encoding="utf-8")
    run.write_run(msgspec.structs.replace(run.read_run(), vocab=str(other)))
    said = refused(run)
    assert f"first difference is entry 50: {lines[50]!r} here, {lines[51]!r} there" in said

    other.write_text("\n".join(lines[:-2]), encoding="utf-8")
    assert "vocab_size is 200, but the vocabulary" in refused(run)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"global_batch": 12}, "global_batch is 12 now and was 8"),
        ({"learning_rate": 1e-4}, "learning_rate is 0.0001 now and was 0.001"),
        ({"mask_probability": 0.2}, "mask_probability is 0.2 now and was 0.15"),
    ],
)
def test_another_configuration_than_the_checkpoint_s_is_refused(
    tmp_path: Path, straight: tuple[RunDir, list[dict]], shards: list[ShardFile], vocab: Path, change: dict, said: str
) -> None:
    run = two_windows(tmp_path / "run", shards, vocab, msgspec.structs.replace(EXACT, **change))
    run.checkpoints.rmdir()
    run.checkpoints.symlink_to(straight[0].checkpoints)
    assert said in refused(run)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, shards: list[ShardFile], vocab: Path) -> None:
    trainer = msgspec.structs.replace(EXACT, steps=4)
    run = two_windows(tmp_path / "run", shards, vocab, trainer)
    assert support.run_rank(run)[0] == 0
    before = final(run)
    path = checkpoint.steps(run.checkpoints)[-1] / "optimizer.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, reports, errors = support.run_rank(run)
    assert code == 0
    assert "optimizer.safetensors was changed" in errors
    assert Path(str(reports[0]["resumed_from"])).name == "step-00000002"
    assert final(run) == before


def test_an_id_that_the_vocabulary_lacks_is_refused(tmp_path: Path, vocab: Path) -> None:
    rows = support.rows_of(8)
    rows[5][1] = 60000
    shard = support.write_shard(tmp_path, 1, rows, [support.train_group(8)])
    said = refused(support.make_run(tmp_path / "run", TrainerConfig(global_batch=8), [shard], vocab))
    assert f"shard {shard.shard}: row 5 holds the token id 60000" in said


def test_rows_longer_than_the_model_s_positions_are_refused(tmp_path: Path, vocab: Path) -> None:
    shard = support.write_shard(tmp_path, 1, support.rows_of(8, 40), [support.train_group(8, 40)])
    said = refused(support.make_run(tmp_path / "run", TrainerConfig(global_batch=8), [shard], vocab))
    assert "rows of 40 tokens do not fit" in said


@pytest.mark.chaos
def test_it_dies_with_the_process_that_started_it(tmp_path: Path, shards: list[ShardFile], vocab: Path) -> None:
    import subprocess
    import sys

    run = two_windows(tmp_path / "run", shards, vocab)
    run.clear_requests()  # it would wait for the third window for ever
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'mindstream_trainer.rank', sys.argv[1]], stdout=subprocess.PIPE)\n"
        "print(p.pid, flush=True)\n"
        "for line in p.stdout:\n    print(line.decode(), end='', flush=True)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, env={**os.environ, "GLOG_v": "3"}
    )
    assert parent.stdout is not None
    rank = int(parent.stdout.readline())
    for line in parent.stdout:
        if b'"waiting"' in line:
            break
    assert Path(f"/proc/{rank}").exists()
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{rank}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{rank}").exists()


def based(tmp_path: Path, vocab: Path, head: bool = True):  # type: ignore[no-untyped-def]
    """A run whose base is a Hugging Face folder (weights and vocab.txt side by side), and the base's folder."""
    folder = tmp_path / "base"
    folder.mkdir()
    source = weights.to_hf(weights.initial(support.TINY, 5), support.TINY)
    weights.write(folder / "model.safetensors", {k: v for k, v in source.items() if head or not k.startswith("cls.")})
    (folder / "vocab.txt").write_bytes(vocab.read_bytes())
    run = support.make_run(tmp_path / "run", EXACT, [], vocab, weights=folder / "model.safetensors")
    return run.read_run(), folder


def test_base_weights_are_taken_as_they_are(tmp_path: Path, vocab: Path) -> None:
    run, _ = based(tmp_path, vocab)
    ours, optimizer, state, notes = rank.start(run, Vocabulary.read(vocab), None)
    expected = weights.initial(support.TINY, 5)
    assert all((ours[name] == expected[name]).all() for name in expected)
    assert (optimizer, state.step, state.window, state.batch, notes) == (None, 0, 1, 0, [])


def test_a_base_without_a_head_says_what_first_loss_is_healthy(tmp_path: Path, vocab: Path) -> None:
    run, _ = based(tmp_path, vocab, head=False)
    (note,) = rank.start(run, Vocabulary.read(vocab), None)[3]
    assert "no masked-LM head" in note
    assert f"{np.log(support.SIZE):.2f}" in note


def test_another_vocabulary_than_the_base_s_is_refused(tmp_path: Path, vocab: Path) -> None:
    run, folder = based(tmp_path, vocab)
    lines = vocab.read_text(encoding="utf-8").split("\n")
    lines[7], lines[8] = lines[8], lines[7]
    (folder / "vocab.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match="first difference is entry 7"):
        rank.start(run, Vocabulary.read(vocab), None)
