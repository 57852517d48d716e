from __future__ import annotations

import hashlib

import numpy as np
import pytest
from mindstream_trainer.config import ModelConfig
from mindstream_trainer.dropout import masks, quantised

MODEL = ModelConfig(vocab_size=50, hidden_size=20, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40)


def drawn(
    first: int = 0, rows: int = 8, seed: int = 1, step: int = 1, hidden: float = 0.1, attention: float = 0.1
) -> list[np.ndarray]:
    return masks(MODEL, quantised(hidden), quantised(attention), seed=seed, step=step, first=first, rows=rows, length=7)


def test_sites_and_shapes() -> None:
    assert [m.shape for m in drawn()] == [(8, 7, 20)] + [(8, 2, 7, 7), (8, 7, 20), (8, 7, 20)] * 2
    assert {m.dtype for m in drawn()} == {np.dtype(np.uint8)}


def test_no_dropout_costs_nothing() -> None:
    assert drawn(hidden=0.0, attention=0.0) == []
    assert [m.size for m in drawn(attention=0.0)][1] == 1


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_the_cut_does_not_matter(micro: int) -> None:
    whole = drawn()
    parts = [drawn(first=first, rows=micro) for first in range(0, 8, micro)]
    for site, mask in enumerate(whole):
        assert (np.concatenate([part[site] for part in parts]) == mask).all()


def test_keyed_by_seed_step_row_and_site() -> None:
    whole = drawn()
    assert (whole[0] != drawn(seed=2)[0]).any()
    assert (whole[0] != drawn(step=2)[0]).any()
    assert (whole[0][0] != whole[0][1]).any()
    assert (whole[2] != whole[3]).any()
    assert all((a == b).all() for a, b in zip(whole, drawn(), strict=True))


def test_the_share_is_what_was_asked_for() -> None:
    keep = masks(MODEL, quantised(0.1), quantised(0.3), seed=1, step=1, first=0, rows=256, length=64)
    assert keep[0].mean() == pytest.approx(1 - quantised(0.1), abs=0.002)
    assert keep[1].mean() == pytest.approx(1 - quantised(0.3), abs=0.002)
    assert abs(quantised(0.1) - 0.1) < 0.002
    assert quantised(0.9999) < 1


def test_masks_are_frozen() -> None:
    """A change of these bytes would break every run that resumes."""
    assert hashlib.sha256(b"".join(m.tobytes() for m in drawn(first=3))).hexdigest().startswith("300fb8ca0a81a714")
