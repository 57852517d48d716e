"""``python -m mindstream_cleaning --config FILE``: the cleaning service."""

from __future__ import annotations

from functools import partial
from typing import Any

from mindstream_common import service
from mindstream_common.config import section
from mindstream_common.worker import Factory

from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.stage import DECLARATION, CleaningStage


def build(data: dict[str, Any]) -> Factory:
    """From the run's file to the stage."""
    return partial(CleaningStage, section(data, "cleaning", CleaningConfig))


if __name__ == "__main__":
    service.main(DECLARATION, build)
