"""``python -m mindstream_writer --config FILE``: the writer service."""

from __future__ import annotations

from functools import partial
from typing import Any

from mindstream_common import service
from mindstream_common.config import section, vocabulary
from mindstream_common.ids import sha256_bytes
from mindstream_common.worker import Factory

from mindstream_writer.config import WriterConfig
from mindstream_writer.stage import DECLARATION, WriterStage
from mindstream_writer.vocabulary import entries


def build(data: dict[str, Any]) -> Factory:
    """From the run's file to the stage."""
    path = vocabulary(data, "the run's file")
    return partial(WriterStage, section(data, "writer", WriterConfig), entries(path), sha256_bytes(path.read_bytes()))


if __name__ == "__main__":
    service.main(DECLARATION, build, pins_tokenizer=True)
