"""Ingest: files that were accepted become raw shards of documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from mindstream_common import ids
from mindstream_common.errors import InputError
from mindstream_common.events import FileBundle, RawShard
from mindstream_common.stage import Declaration, Product, Work

from mindstream_ingest import encoding, reader
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.shard import OpenShard
from mindstream_ingest.source import Source, source

ALGORITHM = "1"  # raised when the same files would give other bytes
DECLARATION = Declaration(name="ingest", takes=FileBundle, makes=RawShard, claims=True)


@dataclass(frozen=True, slots=True)
class _Readable:
    index: int
    source: Source
    encoding: str
    fields: tuple[str, ...]


class IngestStage:
    """Reads every file of a bundle twice: once to know that all of it can be read, then record by record.

    A file that cannot be read goes to the dead letters whole, so that none is ever half in. The content of a file is
    claimed after that: a file that was read before, under whatever name, is skipped and counted (``files_duplicate``).
    """

    def __init__(self, config: IngestConfig) -> None:
        self._config = config
        self.configuration = ids.configuration_hash(config, ingest=ALGORITHM)

    def run(self, work: Work[FileBundle]) -> Iterator[Product]:
        """Raw shards in order; files of a bundle share them. At least one product, with no file if nothing was read."""
        part = 0
        shard = self._open(work.event, part)
        shard.extra["files"] = len(work.files)
        for file in self._unclaimed(work, self._survey(work, shard), shard):
            for record in reader.read(file.source, file.encoding, file.fields, self._config.record_bytes):
                size = len(record.text.encode())
                if shard.full(size):
                    yield shard.close(work.folder)
                    part += 1
                    shard = self._open(work.event, part)
                shard.add(record, file.source.name, size)
        if part == 0 or not shard.empty:
            yield shard.close(work.folder)

    def _open(self, event: FileBundle, part: int) -> OpenShard:
        return OpenShard(ids.shard_id("ingest", (event.id,), self.configuration, part), self._config)

    def _survey(self, work: Work[FileBundle], shard: OpenShard) -> list[_Readable]:
        """The files that can be read to their ends; the others become dead letters of one file each."""
        readable = []
        for index, (file, path) in enumerate(zip(work.event.files, work.files, strict=True)):
            fields = file.text_fields or self._config.text_fields
            try:
                opened = source(file, path, self._config)
                codec = encoding.detect(opened)
                if opened.kind == "csv":
                    reader.check_columns(opened, codec, file.text_fields, fields, self._config.record_bytes)
            except InputError as error:
                shard.dead.append((self._alone(work.event, index), str(error)))
                shard.extra["files_dead"] += 1
            else:
                readable.append(_Readable(index, opened, codec, fields))
        return readable

    def _alone(self, event: FileBundle, index: int) -> FileBundle:
        """A bundle of just one file of ``event``, to be retried by itself."""
        id = ids.shard_id("ingest-file", (event.id,), self.configuration, index)
        return msgspec.structs.replace(event, id=id, objects=(event.objects[index],), files=(event.files[index],))

    def _unclaimed(self, work: Work[FileBundle], files: list[_Readable], shard: OpenShard) -> list[_Readable]:
        """The files whose content nobody else has read."""
        keys = [bytes.fromhex(work.event.objects[file.index].sha256)[:16] for file in files]
        owners = [f"{work.event.id}/{file.index}" for file in files]
        holders = work.claims.claim(f"{work.event.id}/files", keys, owners) if files else []
        mine = [file for file, holder in zip(files, holders, strict=True) if not holder]
        if len(mine) < len(files):
            shard.extra["files_duplicate"] = len(files) - len(mine)
        return mine
