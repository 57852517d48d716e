"""``python -m mindstream_ingest --config FILE``: the ingest service."""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial
from typing import Any

from mindstream_common import bus, service
from mindstream_common.config import section
from mindstream_common.settings import Settings
from mindstream_common.store import S3Store
from mindstream_common.worker import Factory

from mindstream_ingest import listen, sources
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import DECLARATION, IngestStage


def build(data: dict[str, Any]) -> Factory:
    """From the run's file to the stage."""
    return partial(IngestStage, section(data, "ingest", IngestConfig))


async def beside(data: dict[str, Any], settings: Settings) -> None:
    """Take posts and look at sources, when the run's file asks for it, for as long as the service runs."""
    config = section(data, "ingest", IngestConfig)
    token = os.environ.get("MINDSTREAM_INGEST_TOKEN", "")
    with contextlib.closing(S3Store.from_settings(settings)) as store:
        connection = await bus.connect(settings.nats_url, name="ingest-front")
        work = [looker.run() for looker in sources.lookers(config.sources, settings, store, connection)]
        if config.http is not None:
            work.append(listen.serve(config, config.http, token, store, connection))
        tasks = [asyncio.create_task(each) for each in (*work, asyncio.Event().wait())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await connection.close()


if __name__ == "__main__":
    service.main(DECLARATION, build, beside)
