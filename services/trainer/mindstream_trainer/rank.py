"""``python -m mindstream_trainer.rank RUN_DIR``: one rank of a run.

Exit codes: 0 the work is done or stop was asked for; 2 something a person must put right; 3 a number was not finite
(see incidents/); anything else is a crash, and starting again resumes.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from pathlib import Path

import msgspec
from mindstream_common.errors import UserError
from mindstream_common.process import die_with_parent

from mindstream_trainer import checkpoint, report, resume, weights
from mindstream_trainer.checkpoint import Checkpoint, State
from mindstream_trainer.errors import NonFinite
from mindstream_trainer.rundir import RunDir, RunFile
from mindstream_trainer.vocabulary import Vocabulary, check_same

USER, NONFINITE = 2, 3
log = logging.getLogger("mindstream.rank")


def start(
    run: RunFile, vocabulary: Vocabulary, found: Checkpoint | None
) -> tuple[weights.Arrays, weights.Arrays | None, State, list[str]]:
    """Weights, optimizer state, the run's state and notes: from a checkpoint, else from the base model, else random.

    Raises:
        UserError: what was found does not belong to this run (vocabulary, configuration, keys, shapes).
    """
    run.model.check_vocabulary(len(vocabulary), run.vocab)
    if found is not None:
        resume.check(run, vocabulary, found)
        model, optimizer = found.arrays()
        ours, _ = weights.from_hf(model, run.model, run.seed, str(found.path))
        return ours, optimizer, msgspec.structs.replace(found.state, files={}, sha256=""), []
    ours, notes = base(run, vocabulary)
    return ours, None, resume.first_state(run, vocabulary), notes


def base(run: RunFile, vocabulary: Vocabulary) -> tuple[weights.Arrays, list[str]]:
    """The weights that the run starts from, under our names, and notes for people."""
    if run.weights is None:
        expected = math.log(run.model.vocab_size)
        note = f"No base weights: the model starts from random numbers (seed {run.seed}). A first loss near {expected:.2f} is healthy."
        return weights.initial(run.model, run.seed), [note]
    beside = Path(run.weights).parent / "vocab.txt"
    if beside.is_file():
        check_same(vocabulary, Vocabulary.read(beside))
    return weights.from_hf(weights.read(run.weights), run.model, run.seed, run.weights)


def work(folder: RunDir, send: report.Send, stop: Stop) -> None:
    """Resume or begin, and train. Heavy imports wait until the run's files have proved right."""
    run = folder.read_run()
    vocabulary = Vocabulary.read(run.vocab)
    found = checkpoint.latest_valid(folder.checkpoints)
    ours, optimizer, state, notes = start(run, vocabulary, found)
    checkpoint.set_aside(folder.checkpoints, -1 if found is None else state.step)

    from mindstream_trainer.feed import Feed, Inputs
    from mindstream_trainer.loop import Training
    from mindstream_trainer.net import Net, dropouts
    from mindstream_trainer.reader import Reader

    hidden, attention = dropouts(run.trainer, run.model)
    reader = Reader(len(vocabulary))
    inputs = Inputs(
        reader,
        vocabulary,
        run.model,
        seed=run.seed,
        probability=run.trainer.mask_probability,
        whole_word=run.trainer.whole_word,
        hidden=hidden,
        attention=attention,
    )
    feed = Feed(folder, reader, run.model, seed=run.seed, global_batch=run.trainer.global_batch)
    net = Net(run.trainer, run.model, ours, optimizer)
    stop.listen()
    send(report.Started(step=state.step, resumed_from=None if found is None else str(found.path), notes=tuple(notes)))
    saved = -1 if found is None else state.step
    Training(
        config=run.trainer,
        folder=folder,
        vocab=Path(run.vocab),
        net=net,
        feed=feed,
        inputs=inputs,
        state=state,
        saved=saved,
        send=send,
        stop=stop,
    ).run()


class Stop:
    """Whether stop was asked for: by SIGTERM, or by the run folder's file."""

    def __init__(self, folder: RunDir) -> None:
        self.folder, self.asked = folder, False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True

    def __call__(self) -> bool:
        return self.asked or self.folder.stop_asked()


def main(path: str) -> int:
    """Returns the exit code."""
    die_with_parent()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    descriptor = os.environ.get("MINDSTREAM_REPORT_FD")
    send = report.sender(None if descriptor is None else int(descriptor))
    folder = RunDir(path)
    stop = Stop(folder)
    stop.listen()
    try:
        work(folder, send, stop)
    except UserError as error:
        log.error("%s", error)
        return USER
    except NonFinite as error:
        log.error("stopped %s: %s", "after the update" if error.spoilt else "before the update", error)
        return NONFINITE
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m mindstream_trainer.rank RUN_DIR")
    sys.exit(main(sys.argv[1]))
