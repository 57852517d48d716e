"""``proto/`` is what the code says, and a reader in another language who believes it reads every event."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from mindstream_common import schemas
from mindstream_common.topology import STREAMS

PROTO = Path(__file__).parents[3] / "proto"
GOLDEN = Path(__file__).parent / "golden"
TAGS = [path.stem for path in sorted(GOLDEN.glob("*.json"))]


def schema_of(tag: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PROTO / f"{tag}.schema.json").read_text(encoding="utf-8"))
    return found


def test_proto_has_not_drifted() -> None:
    assert schemas.drift(PROTO) == []


def test_drift_is_seen_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "proto"
    shutil.copytree(PROTO, folder)
    (folder / "raw.v1.schema.json").write_text("{}")
    (folder / "clean.v1.schema.json").unlink()
    (folder / "old.v1.schema.json").write_text("{}")
    assert schemas.main([str(folder), "--check"]) == 1
    said = capsys.readouterr().err
    for words in ("raw.v1.schema.json differs", "clean.v1.schema.json is missing", "old.v1.schema.json is left over"):
        assert words in said
    assert schemas.main([str(folder)]) == 0
    assert schemas.main([str(folder), "--check"]) == 0


def test_there_is_a_schema_per_event() -> None:
    assert {path.name for path in PROTO.glob("*.schema.json")} == {f"{tag}.schema.json" for tag in TAGS}


@pytest.mark.parametrize("tag", TAGS)
def test_golden_files_fulfil_their_schema(tag: str) -> None:
    schema = schema_of(tag)
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(json.loads((GOLDEN / f"{tag}.json").read_bytes()), schema, jsonschema.Draft7Validator)


@pytest.mark.parametrize("tag", TAGS)
def test_a_schema_refuses_what_the_decoder_refuses(tag: str) -> None:
    validator = jsonschema.Draft7Validator(schema_of(tag))
    good = json.loads((GOLDEN / f"{tag}.json").read_bytes())
    bad: list[dict[str, Any]] = [good | {"surprise": 1}, good | {"type": "other.v1"}]
    bad += [good | {name: "not-hex"} for name in ("id", "root", "input") if name in good]
    bad += [{key: value for key, value in good.items() if key != "type"}]
    for record in bad:
        assert not validator.is_valid(record), record


def test_patterns_are_portable() -> None:
    """Python's end of text is unknown to other languages' regular expressions."""
    for path in PROTO.glob("*.schema.json"):
        assert "\\\\Z" not in path.read_text(encoding="utf-8"), path.name


def asyncapi() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((PROTO / "asyncapi.yaml").read_text(encoding="utf-8"))
    return found


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        return [
            reference for key, value in part.items() for reference in ([value] if key == "$ref" else references(value))
        ]
    return [reference for value in part for reference in references(value)] if isinstance(part, list) else []


def test_asyncapi_references_resolve() -> None:
    document = asyncapi()
    found = references(document)
    assert len(found) == 2 * sum(map(len, schemas.MESSAGES.values()))
    for reference in found:
        if reference.startswith("#/"):
            place: Any = document
            for key in reference[2:].split("/"):
                place = place[key]
        else:
            assert (PROTO / reference).is_file(), reference


def test_asyncapi_has_a_channel_per_stream_with_every_event() -> None:
    document = asyncapi()
    assert document["asyncapi"] == "3.0.0"
    assert set(document["channels"]) == {stream.name for stream in STREAMS}
    for stream in STREAMS:
        channel = document["channels"][stream.name]
        assert channel["address"].split(".")[0] == stream.subject
        named = {part[1:-1] for part in channel["address"].split(".") if part.startswith("{")}
        assert set(channel["parameters"]) == named
        assert channel["messages"]
    sent = {tag for channel in document["channels"].values() for tag in channel["messages"]}
    assert sent == set(document["components"]["messages"]) == set(TAGS) - {"manifest.v1"}


def test_every_stream_has_its_messages() -> None:
    assert list(schemas.MESSAGES) == list(STREAMS)
    for messages in schemas.MESSAGES.values():
        for message in messages:
            assert issubclass(message, msgspec.Struct)
