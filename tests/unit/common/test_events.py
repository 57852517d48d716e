"""The wire format: every version has a golden file that must be read and written to the byte, for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mindstream_common import events, manifests
from mindstream_common.errors import Poison
from mindstream_common.topology import STREAM_OF, drops_key, manifest_key, shard_key, subject_of

GOLDEN = Path(__file__).parent / "golden"
STAGE_TAGS = ("files.v2", "raw.v1", "clean.v1", "tokens.v1", "catalog.v1")
DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(STAGE_TAGS, events.decode),
    "files.v1": lambda data: msgspec.json.decode(data, type=events.FileBundleV1),
    "run_started.v1": lambda data: msgspec.json.decode(data, type=events.RunStartedV1),
    "run_started.v2": events.decode_journal,
    "window.v1": events.decode_journal,
    "dead.v1": events.decode_dead,
    "manifest.v1": manifests.decode,
}


def golden(tag: str) -> bytes:
    return (GOLDEN / f"{tag}.json").read_bytes().removesuffix(b"\n")


def tags_of(module: Any) -> set[str]:
    """The tag of every Struct that a module defines."""
    found = set()
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__:
            tag = value.__struct_config__.tag
            if isinstance(tag, str) and "." in tag:
                found.add(tag)
    return found


def test_every_tag_has_a_golden_file_and_a_decoder() -> None:
    tags = tags_of(events) | tags_of(manifests)
    assert {"raw.v1", "window.v1", "dead.v1", "manifest.v1"} <= tags
    assert {path.stem for path in GOLDEN.glob("*.json")} == tags == set(DECODERS)


@pytest.mark.parametrize("tag", DECODERS)
def test_golden_files_are_read_and_written_to_the_byte(tag: str) -> None:
    data = golden(tag)
    record = DECODERS[tag](data)
    assert record.__struct_config__.tag == tag
    encode = manifests.encode if tag == "manifest.v1" else events.encode
    assert encode(record) == data


@pytest.mark.parametrize("tag", DECODERS)
def test_no_field_is_left_at_its_default_by_chance(tag: str) -> None:
    """A golden file shows every field, so that renaming any of them is seen."""
    data = msgspec.json.decode(golden(tag))
    struct = msgspec.inspect.type_info(type(DECODERS[tag](golden(tag))))
    assert isinstance(struct, msgspec.inspect.StructType)
    assert set(data) == {"type"} | {field.encode_name for field in struct.fields}


@pytest.mark.parametrize("tag", DECODERS)
def test_an_unknown_field_is_refused(tag: str) -> None:
    data = msgspec.json.decode(golden(tag)) | {"surprise": 1}
    with pytest.raises((Poison, msgspec.MsgspecError), match="surprise"):
        DECODERS[tag](msgspec.json.encode(data))


@pytest.mark.parametrize("tag", DECODERS)
def test_a_missing_field_is_refused(tag: str) -> None:
    data = msgspec.json.decode(golden(tag))
    struct = msgspec.inspect.type_info(type(DECODERS[tag](golden(tag))))
    assert isinstance(struct, msgspec.inspect.StructType)
    for field in struct.fields:
        if field.required:
            less = {key: value for key, value in data.items() if key != field.encode_name}
            with pytest.raises((Poison, msgspec.MsgspecError), match=field.encode_name):
                DECODERS[tag](msgspec.json.encode(less))


@pytest.mark.parametrize("tag", STAGE_TAGS)
def test_an_unknown_version_is_poison(tag: str) -> None:
    data = msgspec.json.decode(golden(tag)) | {"type": tag[:-1] + "9"}
    with pytest.raises(Poison, match=r"\.v9"):
        events.decode(msgspec.json.encode(data))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b'{"type":"raw.v1"}', b"\xff\xfe", b"text", b'{"type":"a\xff"}']
)
def test_bytes_that_are_no_event_are_poison(data: bytes) -> None:
    with pytest.raises(Poison, match="not an event that this version reads"):
        events.decode(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "a" * 31),
        ("id", "A" * 32),
        ("id", "a" * 32 + "\n"),
        ("domain", ""),
        ("domain", "../etc"),
        ("domain", "a.b"),
        ("domain", "ok\n"),
        ("domain", "医学"),
        ("domain", "a" * 49),
        ("documents", -1),
        ("objects", [{"key": "k", "size": 1, "sha256": "0" * 63}]),
        ("objects", [{"key": "k", "size": 1, "sha256": "0" * 64, "url": "x"}]),
    ],
)
def test_values_out_of_range_are_poison(field: str, value: Any) -> None:
    data = msgspec.json.decode(golden("raw.v1")) | {field: value}
    with pytest.raises(Poison, match=rf"\$\.{field}|sha256"):
        events.decode(msgspec.json.encode(data))


def test_events_travel_and_lie_where_the_table_says() -> None:
    raw = events.decode(golden("raw.v1"))
    assert subject_of(raw) == "raw.medical"
    assert shard_key(type(raw), raw.domain, raw.id, ".parquet") == raw.objects[0].key
    assert manifest_key(type(raw), "medical", "x") == "shards/raw/medical/x.manifest.json"
    assert drops_key(type(raw), "medical", "x") == "drops/raw/medical/x.parquet"
    assert {type(events.decode(golden(tag))) for tag in STAGE_TAGS} == set(STREAM_OF)


def test_a_bundle_of_the_first_version_is_read_as_the_newest() -> None:
    """Events that lie in queues and dead letters outlive the code that wrote them."""
    old, new = msgspec.json.decode(golden("files.v1")), events.decode(golden("files.v1"))
    assert isinstance(new, events.FileBundle)
    assert (new.id, new.domain, new.created) == (old["id"], old["domain"], old["created"])
    assert [(file.name, list(file.text_fields)) for file in new.files] == [
        (file["name"], file["text_fields"]) for file in old["files"]
    ]
    assert {(file.template, file.members) for file in new.files} == {("", ())}
    assert msgspec.json.decode(events.encode(new))["type"] == "files.v2"


def test_a_start_of_the_first_version_is_read_as_the_newest() -> None:
    """Journals are kept for ever; the first version did not say the global batch."""
    old, new = msgspec.json.decode(golden("run_started.v1")), events.decode_journal(golden("run_started.v1"))
    assert isinstance(new, events.RunStarted)
    assert new.global_batch is None
    same = ("run", "seed", "config_sha256", "owner", "at", "replay_of")
    assert [getattr(new, name) for name in same] == [old[name] for name in same]


def test_a_dead_letter_keeps_the_events_own_bytes() -> None:
    letter = events.decode_dead(golden("dead.v1"))
    assert events.decode(bytes(letter.event)) == events.decode(golden("raw.v1"))
    assert bytes(letter.event) == golden("raw.v1")
