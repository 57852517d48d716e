"""A run that was killed again and again, while a second corpus arrived, ends with the weights of a run that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from local import Local, local, run_config, write_documents, write_vocabulary
from mindstream_cli import train
from mindstream_cli.audit_report import balanced
from mindstream_trainer import checkpoint

pytestmark = [pytest.mark.servers, pytest.mark.mindspore, pytest.mark.chaos]
STEPS = 240


@pytest.mark.timeout(400)
def test_killed_twice_while_a_second_corpus_arrives(tmp_path: Path) -> None:
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    config = run_config(
        vocab,
        steps=STEPS,
        schedule="cosine",
        warmup=0.1,
        global_batch=16,
        micro_batch=8,
        dropout=0.1,
        checkpoint_every=25,
    )
    write_documents(tmp_path / "first.jsonl", 200, seed=1)
    write_documents(tmp_path / "second.jsonl", 200, seed=2)
    with local(tmp_path / "state", config) as stack:
        stack.submit(tmp_path / "first.jsonl", "medical")
        stack.until(lambda: stack.progress().step >= 31)
        stack.submit(tmp_path / "second.jsonl", "finance")
        stack.until(stack.kill_rank)
        stack.until(lambda: stack.progress().step >= 90)
        stack.kill("trainer")  # the service, and with it the rank
        stack.until(lambda: stack.progress().state == "finished", 150)
        report = stack.settled(400)
        assert balanced(report), report
        started = stack.child("trainer").server.log.read_text(encoding="utf-8").count('"training starts"')
        assert started == 3
        domains = trained_domains(stack)
        calm = replay(stack, config, tmp_path)
    assert domains == {"medical", "finance"}
    killed = checkpoint.verify(tmp_path / "state" / "runs" / "test" / "checkpoints" / f"step-{STEPS:08}")
    assert killed.state.step == calm.state.step == STEPS
    assert (killed.state.window, killed.state.batch) == (calm.state.window, calm.state.batch)
    assert killed.state.tokens == calm.state.tokens
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert killed.state.files[name].sha256 == calm.state.files[name].sha256, name


def trained_domains(stack: Local) -> set[str]:
    """Whose rows the run has trained on, from the windows up to its last one."""
    from mindstream_trainer.rundir import RunDir

    folder = RunDir(stack.state / "runs" / "test")
    windows = [folder.read_window(number) for number in range(1, stack.progress().window + 1)]
    return {shard.domain for file in windows if file is not None for shard in file.window.shards}


def replay(stack: Local, config: dict[str, object], tmp_path: Path) -> checkpoint.Checkpoint:
    """The same windows in one go, by a run that nobody disturbs."""
    calm = {**config, "trainer": {**config["trainer"], "run": "calm"}}  # type: ignore[dict-item]
    place = tmp_path / "calm.yaml"
    place.write_text(yaml.safe_dump(calm), encoding="utf-8")
    process = train.start(place, stack.state, "test")
    assert process.wait(120) == 0, (stack.state / "logs" / "train-calm.log").read_text(encoding="utf-8")[-3000:]
    return checkpoint.verify(stack.state / "runs" / "calm" / "checkpoints" / f"step-{STEPS:08}")
