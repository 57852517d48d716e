"""Dropout masks from numpy, keyed by (seed, step, place in the global batch, site).

MindSpore's generator cannot be saved and differs from rank to rank; these masks are the same however the global batch
is cut, and after every restart.
"""

from __future__ import annotations

import numpy as np

from mindstream_trainer.config import ModelConfig

BLOCK = 32  # bytes that Philox-4x64 gives per count


def quantised(probability: float) -> float:
    """The probability that one random byte can express: dropped when byte < 256 * this."""
    return min(255, round(probability * 256)) / 256


def masks(
    config: ModelConfig, hidden: float, attention: float, *, seed: int, step: int, first: int, rows: int, length: int
) -> list[np.ndarray]:
    """One uint8 mask (1 = keep) per site, for rows ``first`` to ``first + rows`` of the global batch of update ``step``.

    Sites: the embeddings, then three per layer: attention weights [rows, heads, length, length], attention output and
    feed-forward output [rows, length, hidden]. A site whose probability is 0 gets an array of one element; without any
    dropout the list is empty.
    """
    if not hidden and not attention:
        return []
    wide, square = (length, config.hidden_size), (config.num_attention_heads, length, length)
    sites: list[tuple[tuple[int, ...], float]] = [(wide, hidden)]
    for _ in range(config.num_hidden_layers):
        sites += [(square, attention), (wide, hidden), (wide, hidden)]
    return [_keep(seed, step, site, first, rows, shape, p) for site, (shape, p) in enumerate(sites)]


def _keep(
    seed: int, step: int, site: int, first: int, rows: int, shape: tuple[int, ...], probability: float
) -> np.ndarray:
    if not probability:
        return np.ones(1, np.uint8)
    size = int(np.prod(shape))
    blocks = -(-size // BLOCK)  # per row: every row begins at a count of its own
    philox = np.random.Philox(
        key=np.array([seed, step], np.uint64), counter=np.array([first * blocks, site, 0, 0], np.uint64)
    )
    draw = philox.random_raw(rows * blocks * BLOCK // 8).view(np.uint8).reshape(rows, blocks * BLOCK)[:, :size]
    return (draw >= int(quantised(probability) * 256)).view(np.uint8).reshape(rows, *shape)
