from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trainer_support as support
from mindstream_common.events import RowGroup
from mindstream_trainer import checkpoint, weights
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.rundir import RunDir

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A short run over one sentence repeated, so that a few updates teach it something."""
    folder = tmp_path_factory.mktemp("evaluate")
    vocab = support.vocabulary_file(folder)
    row = np.array([2, *range(10, 24), 3])
    groups = [support.train_group(160), RowGroup(split="held_out", length=16, rows=10)]
    shard = support.write_shard(folder, 1, [row] * 170, groups)
    other = support.write_shard(folder, 2, support.rows_of(12), [RowGroup(split="held_out", length=16, rows=12)])
    trainer = TrainerConfig(global_batch=8, learning_rate=3e-3, dropout=0.0, checkpoint_every=10)
    found = support.make_run(folder / "run", trainer, [shard], vocab)
    (folder / "other.json").write_bytes(msgspec.json.encode(other))
    code, _, errors = support.run_rank(found)
    assert code == 0, errors
    return found


def spec(run: RunDir, **fields: Any) -> dict[str, Any]:
    shard = msgspec.to_builtins(run.read_window(1).shards[0])  # type: ignore[union-attr]
    other = json.loads((run.path.parent / "other.json").read_bytes())
    return {
        "vocab": run.read_run().vocab,
        "checkpoints": [str(run.path), *(str(p) for p in checkpoint.steps(run.checkpoints))],
        "shards": [{**shard, "domain": "learnt"}, {**other, "domain": "unseen"}],
        "batch": 4,
        **fields,
    }


def evaluate(tmp_path: Path, what: dict[str, Any]) -> tuple[int, Any, str]:
    (tmp_path / "spec.json").write_text(json.dumps(what))
    command = [sys.executable, "-m", "mindstream_trainer.evaluate", str(tmp_path / "spec.json")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "GLOG_v": "3"}, cwd=tmp_path
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_checkpoints_get_better_at_what_they_learn(tmp_path: Path, run: RunDir) -> None:
    code, got, errors = evaluate(tmp_path, spec(run))
    assert code == 0, errors
    scores = {(Path(s["checkpoint"]).name, s["domain"]): s for s in got["scores"]}
    assert len(scores) == 6
    base, middle, last = (scores[name, "learnt"] for name in ("run", "step-00000010", "step-00000020"))
    assert base["loss"] == pytest.approx(math.log(support.SIZE), abs=0.3)
    assert base["loss"] > middle["loss"] > last["loss"]
    assert last["accuracy"] > base["accuracy"]
    assert (base["rows"], base["masked"]) == (10, 20)
    assert scores["step-00000020", "unseen"]["loss"] > last["loss"]
    assert scores["step-00000020", "unseen"]["rows"] == 12
    assert any("random numbers" in note for note in got["notes"])


def test_the_loss_is_that_of_a_plain_computation(tmp_path: Path, run: RunDir) -> None:
    """One row, against log-softmax in numpy on the model's full logits."""
    from mindspore import Tensor
    from mindstream_trainer.masking import Key, mask
    from mindstream_trainer.net import Net
    from mindstream_trainer.vocabulary import Vocabulary

    path = checkpoint.steps(run.checkpoints)[-1]
    code, got, errors = evaluate(tmp_path, spec(run, checkpoints=[str(path)], rows_per_domain=1))
    assert code == 0, errors
    shard = run.read_window(1).shards[0].shard  # type: ignore[union-attr]
    tokens = [np.array([2, *range(10, 24), 3])]
    row = mask(
        tokens,
        [Key(shard, 160, -1)],
        length=16,
        seed=1,
        probability=0.15,
        vocabulary=Vocabulary.read(run.read_run().vocab),
    )
    ours, _ = weights.from_hf(weights.read(path / "model.safetensors"), support.TINY, 1, "test")
    model = Net(TrainerConfig(dropout=0.0), support.TINY, ours).model
    logits = model(Tensor(row.input_ids), Tensor(row.attention)).asnumpy()[row.positions].astype(np.float64)
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(row.labels)), row.labels]
    learnt = next(s for s in got["scores"] if s["domain"] == "learnt")
    assert learnt["rows"] == 1
    assert learnt["loss"] == pytest.approx(loss[row.weights == 1].mean(), rel=1e-5)
    assert learnt["accuracy"] == pytest.approx((logits.argmax(1) == row.labels)[row.weights == 1].mean())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"checkpoints": ["/nowhere"]}, "neither model.safetensors nor run.json"),
        ({"vocab": "/nowhere/vocab.txt"}, "cannot read the vocabulary"),
        ({"rows": 1}, "unknown field `rows`"),
    ],
)
def test_what_cannot_be_evaluated_is_said(tmp_path: Path, run: RunDir, change: dict[str, Any], said: str) -> None:
    code, got, errors = evaluate(tmp_path, spec(run, **change))
    assert (code, got) == (2, None)
    assert said in errors
    assert "Traceback" not in errors


def test_another_architecture_is_refused(tmp_path: Path, run: RunDir) -> None:
    config = msgspec.structs.replace(support.TINY, num_attention_heads=4)
    vocab = Path(run.read_run().vocab)
    state = checkpoint.State(run="r", seed=1)
    other = checkpoint.save(
        tmp_path, weights.to_hf(weights.initial(config, 1), config), {"m": np.zeros(1)}, config, vocab, state
    )
    code, _, errors = evaluate(tmp_path, spec(run, checkpoints=[str(run.path), str(other)]))
    assert code == 2
    assert "another architecture" in errors
