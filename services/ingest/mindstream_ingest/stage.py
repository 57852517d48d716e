"""Ingest: files that were accepted become raw shards of documents."""

from __future__ import annotations

from collections.abc import Iterator

from mindstream_common import ids
from mindstream_common.events import FileBundle, RawShard
from mindstream_common.stage import Declaration, Product, Work

from mindstream_ingest import reader
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.office import Office
from mindstream_ingest.record import OTHER
from mindstream_ingest.shard import OpenShard, Position
from mindstream_ingest.survey import Readable, Survey

ALGORITHM = "2"  # raised when the same files would give other bytes
DECLARATION = Declaration(name="ingest", takes=FileBundle, makes=RawShard, claims=True)
CLAIMED = 1000  # files in one call


class IngestStage:
    """Reads every file of a bundle twice: once to know that all of it can be read, then record by record.

    A file that cannot be read goes to the dead letters whole, so that none is ever half in; of an archive, the member.
    The content of a file is claimed after that: one that was read before, under whatever name, is skipped and counted
    (``files_duplicate``). After a crash the work goes on at the first record that is in no stored part.
    """

    def __init__(self, config: IngestConfig) -> None:
        self._config = config
        self._office = Office(config)
        self.configuration = config.hash(ALGORITHM)

    def run(self, work: Work[FileBundle]) -> Iterator[Product]:
        """Raw shards in order; files of a bundle share them. At least one product, with no file if nothing was read."""
        yield from (Product(counts=counts) for counts in work.known)
        begin = Position.of(work.known[-1]) if work.known else Position()
        first = part = len(work.known)
        survey = Survey(work, begin, self._config, self._office, self.configuration)
        shard = self._open(work.event, part)
        self._report(work, survey, begin, shard)
        for file, opened in survey.opened(self._unclaimed(work, survey.readable, shard)):
            skip = begin.at if file.place == begin[:2] else 0
            for record in reader.read(opened, file.encoding, file.fields, self._config.record_bytes, skip):
                if record.reason is OTHER:
                    shard.extra["records_other"] += 1
                    continue
                size = len(record.text.encode())
                if shard.full(size):
                    yield shard.close(work.folder, Position(*file.place, record.at, survey.dead_after(file)))
                    part += 1
                    shard = self._open(work.event, part)
                shard.add(record, opened.name, size)
        if part == first or not shard.empty:
            yield shard.close(work.folder)

    def close(self) -> None:
        """End the child process that reads office files."""
        self._office.close()

    def _open(self, event: FileBundle, part: int) -> OpenShard:
        return OpenShard(ids.shard_id("ingest", (event.id,), self.configuration, part), self._config)

    def _report(self, work: Work[FileBundle], survey: Survey, begin: Position, shard: OpenShard) -> None:
        """Dead files go with the first part. Later ones repeat them only when other files are dead now than then."""
        if not work.known:
            shard.extra["files"] = len(work.files)
        if survey.dead and not (work.known and len(survey.dead) == begin.dead):
            shard.dead += [(dead.bundle, dead.error) for dead in survey.dead]
            shard.extra["files_dead"] = len(survey.dead)

    def _unclaimed(self, work: Work[FileBundle], files: list[Readable], shard: OpenShard) -> list[Readable]:
        """The files whose content nobody else has read."""
        mine: list[Readable] = []
        for start in range(0, len(files), CLAIMED):
            batch = files[start : start + CLAIMED]
            owners = [f"{work.event.id}/{file.file}" + f"/{file.member}" * bool(file.member) for file in batch]
            holders = work.claims.claim(f"{work.event.id}/files{start or ''}", [file.key for file in batch], owners)
            mine += [file for file, holder in zip(batch, holders, strict=True) if not holder]
        if len(mine) < len(files) and not work.known:
            shard.extra["files_duplicate"] = len(files) - len(mine)
        return mine
