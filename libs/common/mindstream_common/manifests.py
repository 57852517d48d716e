"""A manifest says that a shard is whole: it is written last, once, and the first one wins.

It holds the event to publish, so a worker that meets one does not do the work again: it publishes the event again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mindstream_common.events import Event, FileBundle, FileBundleV1, Id, Object, StageEvent
from mindstream_common.ids import shard_id
from mindstream_common.stage import Counts
from mindstream_common.store import NotFound, Store
from mindstream_common.topology import manifest_key


class DeadFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that ingest could not read; it goes to the dead letters by itself."""

    bundle: FileBundle | FileBundleV1
    error: str


class Manifest(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="manifest.v1"
):
    """One output shard of one input event. ``last`` marks the last part that the input gave."""

    stage: str
    input: Id
    part: int
    last: bool
    event: StageEvent
    counts: Counts
    configuration: str
    drops: Object | None = None
    dead: tuple[DeadFile, ...] = ()

    @property
    def publishes(self) -> bool:
        """A shard without documents ends here: there is nothing for the next stage to do."""
        return bool(self.event.objects)


def encode(manifest: Manifest) -> bytes:
    """JSON for people and machines."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


_decoder = msgspec.json.Decoder(Manifest)


def decode(data: bytes) -> Manifest:
    """Read a manifest. Raises :class:`msgspec.MsgspecError` when it is not one."""
    return _decoder.decode(data)


def slot(stage: str, input: str, part: int) -> str:
    """The name of the manifest of part ``part`` of what ``stage`` makes of the event ``input``.

    It says nothing of the configuration: within a pipeline every input is worked on once. A worker that comes later
    with another configuration finds the manifest, and neither makes the same documents a second time nor mixes its own
    parts with those that are there.
    """
    return shard_id(stage, (input,), "", part)


def find(store: Store, makes: type[Event], domain: str, name: str) -> Manifest | None:
    """The manifest with this name, or None when there is none yet."""
    try:
        return decode(store.get_bytes(manifest_key(makes, domain, name)))
    except NotFound:
        return None


def parts(store: Store, stage: str, makes: type[Event], input: Event) -> Iterator[Manifest]:
    """The manifests of ``input``'s parts that exist, in order, up to the last or to the first that is missing."""
    part = 0
    while found := find(store, makes, input.domain, slot(stage, input.id, part)):
        yield found
        if found.last:
            return
        part += 1


def all_of(store: Store, makes: type[Event]) -> Iterator[tuple[str, str]]:
    """``(key, name)`` of every manifest of one kind of shard."""
    prefix = manifest_key(makes, "", "").split("//", maxsplit=1)[0] + "/"
    suffix = ".manifest.json"
    for key, _ in store.list(prefix):
        if key.endswith(suffix):
            yield key, key.removesuffix(suffix).rsplit("/", 1)[1]
