from __future__ import annotations

from pathlib import Path

import pytest
from mindstream_common.errors import Fenced, InputError
from mindstream_common.events import RowGroup, Window, WindowShard
from mindstream_trainer import report
from mindstream_trainer.config import ModelConfig, TrainerConfig
from mindstream_trainer.rundir import RunDir, RunFile, ShardFile, WindowFile, locked, only_one

GROUP = RowGroup(split="train", length=16, rows=3)


def test_run_and_windows_come_back_as_they_were(tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    run = RunFile(
        run="r", seed=5, trainer=TrainerConfig(warmup=0.5, steps=4), model=ModelConfig(vocab_size=30), vocab="v.txt"
    )
    folder.write_run(run)
    assert folder.read_run() == run
    shard = WindowShard(seq=1, shard="0" * 32, domain="d", epoch=0, groups=(GROUP,))
    file = WindowFile(
        window=Window(run="r", number=12, shards=(shard,), at=1.0),
        shards=(ShardFile(shard="0" * 32, path="p", dtype="uint16", groups=(GROUP,)),),
    )
    folder.write_window(file)
    assert folder.read_window(12) == file
    assert folder.read_window(13) is None
    assert (folder.windows / "000012.json").exists()


def test_requests(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    assert not folder.ended()
    assert not folder.stop_asked()
    folder.write_end()
    folder.ask_to_stop()
    assert folder.ended()
    assert folder.stop_asked()
    folder.clear_requests()
    assert not folder.ended()
    assert not folder.stop_asked()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run": "r"')
    with pytest.raises(InputError, match=r"run\.json"):
        RunDir(tmp_path).read_run()


def test_one_trainer_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "r"
    assert not locked(folder)
    with only_one(folder):
        assert locked(folder)
        with pytest.raises(Fenced, match="another trainer on this machine"), only_one(folder):
            pass
    assert not locked(folder)
    with only_one(folder):
        pass


REPORTS = [
    report.Started(step=0, resumed_from=None, notes=("好",)),
    report.Compiled(step=1, length=128, seconds=2.0),
    report.Waiting(step=1, window=3),
    report.Saved(step=2, path="p", seconds=0.1),
    report.Incident(step=2, path="p", message="m"),
    report.Finished(step=2, reason="end"),
]


def test_reports_come_back_as_they_were(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        send = report.sender(file.fileno())
        for message in REPORTS:
            send(message)
    lines = (tmp_path / "out").read_bytes().splitlines()
    assert [report.decode(line) for line in lines] == REPORTS
