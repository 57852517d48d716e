"""``python -m mindstream_tokenizer --config FILE``: the tokenizer service."""

from __future__ import annotations

from functools import partial
from typing import Any

from mindstream_common import service
from mindstream_common.config import section, vocabulary
from mindstream_common.worker import Factory

from mindstream_tokenizer.config import TokenizerConfig
from mindstream_tokenizer.stage import DECLARATION, TokenizerStage


def build(data: dict[str, Any]) -> Factory:
    """From the run's file to the stage."""
    return partial(TokenizerStage, section(data, "tokenizer", TokenizerConfig), vocabulary(data, "the run's file"))


if __name__ == "__main__":
    service.main(DECLARATION, build, pins_tokenizer=True)
