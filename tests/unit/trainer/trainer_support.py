"""Small runs for the trainer's tests: a vocabulary, MindRecord shards with known rows, a run's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mindstream_common.events import RowGroup, Window, WindowShard
from mindstream_trainer.config import ModelConfig, TrainerConfig
from mindstream_trainer.rundir import RunDir, RunFile, ShardFile, WindowFile

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZE = 200  # entries of the vocabulary
LENGTH = 16
TINY = ModelConfig(
    vocab_size=SIZE,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
)


def shard_name(number: int) -> str:
    return f"{number:032x}"


def vocabulary_file(folder: Path, size: int = SIZE) -> Path:
    """[PAD] [UNK] [CLS] [SEP] [MASK] and then one Chinese character per line."""
    path = folder / "vocab.txt"
    path.write_text(
        "".join(f"{entry}\n" for entry in [*SPECIAL, *(chr(0x4E00 + i) for i in range(size - 5))]), encoding="utf-8"
    )
    return path


def rows_of(count: int, length: int = LENGTH, seed: int = 0, size: int = SIZE) -> list[np.ndarray]:
    """Rows of ordinary ids between [CLS] and [SEP], of different numbers of tokens up to ``length``."""
    generator = np.random.default_rng(seed)
    return [np.array([2, *generator.integers(5, size, generator.integers(4, length - 1)), 3]) for _ in range(count)]


def write_shard(
    folder: Path, number: int, rows: Sequence[np.ndarray], groups: Sequence[RowGroup], dtype: str = "uint16"
) -> ShardFile:
    """A MindRecord shard as the writer makes it."""
    from mindspore.mindrecord import FileWriter

    path = folder / f"{shard_name(number)}.mindrecord"
    writer = FileWriter(str(path), 1)
    writer.set_header_size(1 << 16)
    writer.set_page_size(1 << 18)
    writer.add_schema({"tokens": {"type": "bytes"}, "document": {"type": "string"}}, "rows")
    kind = {"uint16": "<u2", "int32": "<i4"}[dtype]
    writer.write_raw_data(
        [{"tokens": row.astype(kind).tobytes(), "document": f"d{number}/{i // 2}"} for i, row in enumerate(rows)]
    )
    writer.commit()
    return ShardFile(shard=shard_name(number), path=str(path), dtype=dtype, groups=tuple(groups))


def window_of(number: int, shards: Sequence[ShardFile], **fields: object) -> Window:
    """A window over whole shards, each in its first epoch."""
    parts = tuple(
        WindowShard(seq=int(s.shard, 16), shard=s.shard, domain="test", epoch=0, groups=s.groups) for s in shards
    )
    return Window(run="test", number=number, shards=parts, at=0.0, **fields)


def train_group(rows: int, length: int = LENGTH) -> RowGroup:
    return RowGroup(split="train", length=length, rows=rows)


def make_run(
    folder: Path,
    trainer: TrainerConfig,
    shards: Sequence[ShardFile],
    vocab: Path,
    model: ModelConfig = TINY,
    weights: Path | None = None,
) -> RunDir:
    """A run's folder with one window of these shards, and no more to come."""
    run = RunDir(folder)
    run.write_run(
        RunFile(
            run="test",
            seed=trainer.seed,
            trainer=trainer,
            model=model,
            vocab=str(vocab),
            weights=None if weights is None else str(weights),
        )
    )
    run.write_window(WindowFile(window=window_of(1, shards), shards=tuple(shards)))
    run.write_end()
    return run


def start_rank(run: RunDir) -> subprocess.Popen[bytes]:
    """A real rank process; its reports come on standard output."""
    environment = {**os.environ, "GLOG_v": "3"}
    environment.pop("MINDSTREAM_REPORT_FD", None)
    command = [sys.executable, "-m", "mindstream_trainer.rank", str(run.path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, cwd=run.path)


def run_rank(run: RunDir) -> tuple[int, list[dict[str, object]], str]:
    """(exit code, reports, standard error) of a rank that is left alone."""
    process = start_rank(run)
    out, err = process.communicate(timeout=200)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()
