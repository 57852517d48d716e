"""What a run begins with, and whether it may go on from a checkpoint."""

from __future__ import annotations

from mindstream_trainer import checkpoint
from mindstream_trainer.checkpoint import Checkpoint, State
from mindstream_trainer.rundir import RunFile
from mindstream_trainer.vocabulary import Vocabulary, check_same


def first_state(run: RunFile, vocabulary: Vocabulary) -> State:
    """Where a run stands before its first update."""
    return State(
        run=run.run, seed=run.seed, config_sha256=run.config_sha256, tokenizer_sha256=run.tokenizer_sha256,
        vocabulary_sha256=vocabulary.sha256, settings=checkpoint.settings(run.trainer, run.model),
    )  # fmt: skip


def check(run: RunFile, vocabulary: Vocabulary, found: Checkpoint) -> None:
    """Raises UserError when going on from ``found`` would not be the same run: another vocabulary, or another setting
    that decides numbers."""
    run.model.check_vocabulary(len(vocabulary), run.vocab)
    check_same(vocabulary, Vocabulary.read(found.path / "vocab.txt"))
    checkpoint.check_resumable(found, first_state(run, vocabulary))
