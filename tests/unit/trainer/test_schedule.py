from __future__ import annotations

import math

import pytest
from mindstream_common.errors import ConfigError
from mindstream_trainer.config import TrainerConfig
from mindstream_trainer.schedule import learning_rate


def rates(**fields: object) -> list[float]:
    config = TrainerConfig(learning_rate=1.0, **fields)
    return [learning_rate(config, step) for step in range(1, (config.steps or 10) + 1)]


def test_constant() -> None:
    assert rates() == [1.0] * 10


def test_the_first_update_moves() -> None:
    assert rates(warmup=4)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_reaches_its_peak_and_ends_above_zero() -> None:
    got = rates(schedule="linear", steps=10, warmup=2)
    assert got == pytest.approx([0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125])


def test_cosine() -> None:
    got = rates(schedule="cosine", steps=8)
    assert got == pytest.approx([0.5 * (1 + math.cos(math.pi * i / 8)) for i in range(8)])
    assert min(got) > 0


def test_warmup_as_a_share_of_the_steps() -> None:
    assert rates(warmup=0.2, steps=10)[:3] == [0.5, 1.0, 1.0]


def test_warmup_over_the_whole_run() -> None:
    assert rates(warmup=4, steps=4, schedule="linear") == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schedule": "linear"}, "trainer.steps"),
        ({"warmup": 0.1}, "trainer.steps"),
        ({"warmup": 20, "steps": 10}, "warmup of 20 updates is longer than the run: trainer.steps is 10"),
    ],
)
def test_what_needs_an_end_says_so(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TrainerConfig(**fields)
