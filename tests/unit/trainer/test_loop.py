"""The loop when a number is not finite: what is saved, what is said, and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_support as support
from mindstream_common.errors import InputError
from mindstream_trainer import incident, report
from mindstream_trainer.checkpoint import State
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.errors import NonFinite
from mindstream_trainer.feed import Next
from mindstream_trainer.plan import Batch
from mindstream_trainer.rundir import RunDir

pytestmark = pytest.mark.mindspore


class Bad:
    """A net whose first update has a number that is not finite."""

    config = support.TINY

    def __init__(self, error: NonFinite, unsaved: Exception | None = None) -> None:
        self.error, self.unsaved = error, unsaved

    def step(self, *_: object) -> None:
        raise self.error

    def arrays(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        if self.unsaved is not None:
            raise self.unsaved
        from mindstream_trainer import weights

        return weights.initial(support.TINY, 1), {"m.x": np.zeros(2, np.float32)}


class Rows:
    """Feed and inputs: one batch for ever, of which nothing is read."""

    batch = Batch(16, (), np.zeros(0, np.int64), np.zeros(0, np.int64))

    def next(self, *_: object) -> Next:
        return Next(self.batch, 1, 0, (1, 1), 0.0)

    def micro_batches(self, *_: object) -> list[Any]:
        return []


@pytest.fixture(autouse=True)
def rowless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch has no rows that could be described."""
    monkeypatch.setattr(incident, "_suspects", lambda *_: [])


def train(tmp_path: Path, net: Bad, saved: int = -1) -> list[report.Report]:
    """What was said until the error came out."""
    from mindstream_trainer.loop import Training

    said: list[report.Report] = []
    folder = RunDir(tmp_path / "run")
    for path in (folder.checkpoints, folder.incidents):
        path.mkdir(parents=True, exist_ok=True)
    fake: Any = Rows()
    training = Training(
        config=TrainerConfig(), folder=folder, vocab=support.vocabulary_file(tmp_path), net=net, feed=fake, inputs=fake,  # type: ignore[arg-type]
        state=State(run="test", step=7, seed=1), saved=saved, send=said.append, stop=lambda: False,
    )  # fmt: skip
    with pytest.raises(NonFinite) as caught:
        training.run()
    assert caught.value is net.error
    return said


def test_weights_before_a_bad_number_are_saved(tmp_path: Path) -> None:
    saved, said = train(tmp_path, Bad(NonFinite(float("nan"), 1.0)))
    assert isinstance(saved, report.Saved)
    assert isinstance(said, report.Incident)
    assert "Update 8 was not made: the loss is nan" in said.message
    assert "with learning rate 0.0001. The last checkpoint has the weights after update 7" in said.message


def test_spoilt_weights_are_never_saved(tmp_path: Path) -> None:
    (said,) = train(tmp_path, Bad(NonFinite(2.0, 1.0, spoilt=True)), saved=5)
    assert isinstance(said, report.Incident)
    assert "Update 8 spoilt the weights: the loss is 2.0" in said.message
    assert "The last checkpoint has the weights after update 5" in said.message


@pytest.mark.parametrize("error", [InputError("a number is not finite"), OSError("no space left")])
def test_a_save_that_fails_hides_no_bad_number(tmp_path: Path, error: Exception) -> None:
    (said,) = train(tmp_path, Bad(NonFinite(float("inf"), 1.0), unsaved=error))
    assert isinstance(said, report.Incident)
    assert "There is no checkpoint" in said.message


def test_an_incident_that_cannot_be_written_hides_no_bad_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(incident, "write", full)
    (saved,) = train(tmp_path, Bad(NonFinite(float("inf"), 1.0)))
    assert isinstance(saved, report.Saved)
