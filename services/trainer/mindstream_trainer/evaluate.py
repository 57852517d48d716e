"""``python -m mindstream_trainer.evaluate SPEC.json``: how well checkpoints fill in held-out text. Prints one JSON.

All checkpoints see the same rows with the same masks (epoch -1 in the key of a row's mask), in one process with one
compilation per row length, so their losses can be compared digit by digit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import mindspore as ms
import msgspec
import numpy as np
from mindspore import Tensor, ops
from mindstream_common.config import Section
from mindstream_common.errors import InputError, UserError
from mindstream_common.events import RowGroup

from mindstream_trainer import report, weights
from mindstream_trainer.config import ModelConfig, Positive, read_json
from mindstream_trainer.masking import Key, Masked, mask
from mindstream_trainer.model import MaskedLM
from mindstream_trainer.rank import base
from mindstream_trainer.reader import Reader
from mindstream_trainer.rundir import RunDir, ShardFile
from mindstream_trainer.vocabulary import Vocabulary, check_same

EVALUATION = -1  # the epoch in the key of evaluation's masks


class EvaluatedShard(Section, frozen=True, kw_only=True):
    """A shard on this machine, as :class:`ShardFile`, and its domain."""

    shard: str
    path: str
    dtype: Literal["uint16", "int32"]
    groups: tuple[RowGroup, ...]
    domain: str


class Spec(Section, frozen=True, kw_only=True):
    """``checkpoints`` are folders with model.safetensors and config.json (ours, or Hugging Face's), or a run's folder
    (it has run.json): the model that this run starts from. All must be of one architecture."""

    vocab: str
    checkpoints: tuple[str, ...]
    shards: tuple[EvaluatedShard, ...]
    rows_per_domain: Positive = 512
    batch: Positive = 32
    mask_probability: float = 0.15
    seed: int = 1


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """``loss``: mean cross-entropy over the masked tokens; ``accuracy``: the share of them whose likeliest entry is right.
    None where there is no held-out row."""

    checkpoint: str
    domain: str
    loss: float | None
    accuracy: float | None
    rows: int
    masked: int


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """What is printed. ``notes`` are sentences for people."""

    scores: tuple[Score, ...]
    notes: tuple[str, ...]


class Held(msgspec.Struct, frozen=True):
    """A held-out row and its padded length."""

    shard: str
    row: int
    length: int


def held_out(shards: Sequence[EvaluatedShard], domain: str, most: int) -> list[Held]:
    """At most ``most`` held-out rows of a domain: in turn one of each shard, so that no shard fills the whole share."""
    columns = []
    for shard in shards:
        if shard.domain != domain:
            continue
        start, rows = 0, []
        for group in shard.groups:
            if group.split == "held_out":
                rows += [Held(shard.shard, row, group.length) for row in range(start, start + group.rows)]
            start += group.rows
        columns.append(rows)
    longest = max((len(rows) for rows in columns), default=0)
    return [rows[i] for i in range(longest) for rows in columns if i < len(rows)][:most]


def batches(rows: list[Held], reader: Reader, vocabulary: Vocabulary, spec: Spec) -> Iterator[Masked]:
    """Rows by length, ``spec.batch`` at a time. The last batch is filled with empty rows, which weigh nothing."""
    for length in sorted({row.length for row in rows}):
        of_length = [row for row in rows if row.length == length]
        for i in range(0, len(of_length), spec.batch):
            some = of_length[i : i + spec.batch]
            tokens = [reader.shard(row.shard).row(row.row) for row in some]
            keys = [Key(row.shard, row.row, EVALUATION) for row in some]
            missing = spec.batch - len(some)
            tokens += [np.zeros(0, np.int32)] * missing
            keys += [Key("", 0, EVALUATION)] * missing
            yield mask(
                tokens, keys, length=length, seed=spec.seed, probability=spec.mask_probability, vocabulary=vocabulary
            )


class Evaluator:
    """The model, compiled once; weights go in with ``ops.assign``, which a compiled graph does see."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.model = model = MaskedLM(config)

        def score(ids, attention, positions, labels, weight):  # type: ignore[no-untyped-def]
            logits = model.masked(ids, attention, positions, ())
            right = (logits.argmax(axis=1).astype(ms.int32) == labels).astype(ms.float32)
            return model.cross_entropy(logits, labels, weight), (right * weight).sum()

        self._score = ms.jit(score, jit_level="O0")

    def load(self, arrays: weights.Arrays) -> None:
        """Our names, fp32."""
        for parameter in self.model.trainable_params():
            ops.assign(parameter, Tensor(arrays[parameter.name]))

    def score(self, checkpoint: str, domain: str, rows: int, data: Sequence[Masked]) -> Score:
        """Loss and accuracy over all batches."""
        loss = right = 0.0
        masked = 0
        for batch in data:
            sums = self._score(*(Tensor(array) for array in batch))
            loss += float(sums[0].asnumpy())
            right += float(sums[1].asnumpy())
            masked += int(batch.weights.sum())
        mean = (loss / masked, right / masked) if masked else (None, None)
        return Score(checkpoint=checkpoint, domain=domain, loss=mean[0], accuracy=mean[1], rows=rows, masked=masked)


def load(path: str, vocabulary: Vocabulary, seed: int) -> tuple[ModelConfig, weights.Arrays, list[str]]:
    """Architecture, weights under our names, and notes, of one of ``Spec.checkpoints``.

    Raises:
        UserError: it is neither, or does not belong to the vocabulary.
    """
    folder = Path(path)
    if (folder / "run.json").is_file():
        run = RunDir(folder).read_run()
        run.model.check_vocabulary(len(vocabulary), vocabulary.path)
        return run.model, *base(run, vocabulary)
    if not (folder / "model.safetensors").is_file():
        raise InputError(f"{folder} holds neither model.safetensors nor run.json; it cannot be evaluated.")
    config = ModelConfig.from_hf(read_json(str(folder / "config.json")), str(folder / "config.json"))
    config.check_vocabulary(len(vocabulary), vocabulary.path)
    if (folder / "vocab.txt").is_file():
        check_same(vocabulary, Vocabulary.read(folder / "vocab.txt"))
    return config, *weights.from_hf(weights.read(folder / "model.safetensors"), config, seed, path)


def evaluate(spec: Spec) -> Scores:
    """Every checkpoint on every domain.

    Raises:
        UserError: a checkpoint, a shard or the vocabulary cannot be used, or two checkpoints differ in architecture.
    """
    vocabulary = Vocabulary.read(spec.vocab)
    reader = Reader(len(vocabulary))
    reader.know(ShardFile(shard=s.shard, path=s.path, dtype=s.dtype, groups=s.groups) for s in spec.shards)
    rows = {
        domain: held_out(spec.shards, domain, spec.rows_per_domain)
        for domain in sorted({s.domain for s in spec.shards})
    }
    data = {domain: list(batches(rows[domain], reader, vocabulary, spec)) for domain in rows}
    evaluator: Evaluator | None = None
    scores, notes = [], []
    for path in spec.checkpoints:
        config, arrays, said = load(path, vocabulary, spec.seed)
        if evaluator is None:
            evaluator = Evaluator(config)
        elif weights.shapes(config) != weights.shapes(evaluator.config) or _numeric(config) != _numeric(
            evaluator.config
        ):
            raise InputError(
                f"{path} is another architecture than {spec.checkpoints[0]}: {config} and {evaluator.config}."
            )
        evaluator.load(arrays)
        scores += [evaluator.score(path, domain, len(rows[domain]), data[domain]) for domain in rows]
        notes += said
    return Scores(scores=tuple(scores), notes=tuple(notes))


def _numeric(config: ModelConfig) -> tuple[object, ...]:
    """What the numbers depend on besides the shapes."""
    return (
        config.shifts_positions,
        config.pad_token_id,
        config.num_attention_heads,
        config.layer_norm_eps,
        config.hidden_act,
    )


def main(path: str) -> int:
    """Returns the exit code: 0, or 2 for something a person must put right."""
    out = report.private_output()
    try:
        spec = msgspec.json.decode(Path(path).read_bytes(), type=Spec)
        result = evaluate(spec)
    except (OSError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"cannot read {path}: {error}\n")
        return 2
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    report.write_line(out, result)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m mindstream_trainer.evaluate SPEC.json")
    sys.exit(main(sys.argv[1]))
