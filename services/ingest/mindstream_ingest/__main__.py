"""``python -m mindstream_ingest --config FILE``: the ingest service."""

from __future__ import annotations

from functools import partial
from typing import Any

from mindstream_common import service
from mindstream_common.config import section
from mindstream_common.worker import Factory

from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import DECLARATION, IngestStage


def build(data: dict[str, Any]) -> Factory:
    """From the run's file to the stage."""
    return partial(IngestStage, section(data, "ingest", IngestConfig))


if __name__ == "__main__":
    service.main(DECLARATION, build)
