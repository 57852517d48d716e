"""The events for readers in other languages: JSON Schema (draft-07) and AsyncAPI 3, made from the Structs.

``python -m mindstream_common.schemas`` writes ``proto/``; ``--check`` only says whether it is what the code says.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from mindstream_common.events import (
    CatalogShard,
    CleanShard,
    DeadLetter,
    FileBundle,
    FileBundleV1,
    RawShard,
    RunStarted,
    RunStartedV1,
    TokenShard,
    Window,
)
from mindstream_common.manifests import Manifest
from mindstream_common.topology import CATALOG, CLEAN, DEAD, FILES, JOURNAL, RAW, STREAMS, TOKENS, Stream

MESSAGES: dict[Stream, tuple[type[msgspec.Struct], ...]] = {
    FILES: (FileBundle, FileBundleV1),
    RAW: (RawShard,),
    CLEAN: (CleanShard,),
    TOKENS: (TokenShard,),
    CATALOG: (CatalogShard,),
    JOURNAL: (RunStarted, RunStartedV1, Window),
    DEAD: (DeadLetter,),
}
STORED: tuple[type[msgspec.Struct], ...] = (Manifest,)  # written to the object store, never sent
DRAFT = "http://json-schema.org/draft-07/schema#"
_ADDRESSES = {
    JOURNAL: ("journal.{run}", ("run",)),
    DEAD: ("dead.{stage}.{domain}", ("stage", "domain")),
}
_PARAMETERS = {
    "domain": "What the text is about, such as medical.",
    "run": "The name of a training run.",
    "stage": "The stage that could not work on the event.",
}
_WAYS = {
    True: "A work queue: each message goes to one worker and leaves when it is acked; a full one turns publishers away.",
    False: "Kept for ever, in order, and read by sequence.",
}


def tag(message: type[msgspec.Struct]) -> str:
    """Its name and version on the wire, such as ``raw.v1``."""
    return str(message.__struct_config__.tag)


def schema(message: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of one message; unknown fields are refused, as the decoder does."""
    (root,), definitions = msgspec.json.schema_components([message], ref_template="#/definitions/{name}")
    found: dict[str, Any] = {
        "$schema": DRAFT,
        "$id": f"{tag(message)}.schema.json",
        **definitions.pop(root["$ref"].rsplit("/", 1)[1]),  # beside a $ref, draft-07 ignores everything else
    }
    if definitions:
        found["definitions"] = dict(sorted(definitions.items()))
    portable: dict[str, Any] = _portable(found)
    return portable


def _portable(part: Any) -> Any:
    r"""Regular expressions as JSON Schema wants them: ECMAScript knows no ``\Z``; its ``$`` is the end of the text."""
    if isinstance(part, dict):
        return {
            key: value.replace(r"\Z", "$") if key == "pattern" and isinstance(value, str) else _portable(value)
            for key, value in part.items()
        }
    return [_portable(value) for value in part] if isinstance(part, list) else part


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI document: a channel per stream with its messages; payloads are the schema files beside it."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "MindStream",
            "version": "1.0.0",
            "description": "Events over NATS JetStream. An event names objects in the object store; it never carries text.",
        },
        "defaultContentType": "application/json",
        "channels": {stream.name: _channel(stream) for stream in STREAMS},
        "components": {
            "messages": {tag(message): _message(message) for messages in MESSAGES.values() for message in messages}
        },
    }


def _channel(stream: Stream) -> dict[str, Any]:
    address, parameters = _ADDRESSES.get(stream, (f"{stream.subject}.{{domain}}", ("domain",)))
    return {
        "address": address,
        "description": _WAYS[stream.work_queue],
        "parameters": {name: {"description": _PARAMETERS[name]} for name in parameters},
        "messages": {tag(message): {"$ref": f"#/components/messages/{tag(message)}"} for message in MESSAGES[stream]},
    }


def _message(message: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "name": tag(message),
        "title": message.__name__,
        "summary": " ".join((message.__doc__ or "").split()),
        "headers": {
            "type": "object",
            "required": ["Nats-Msg-Id"],
            "properties": {
                "Nats-Msg-Id": {"type": "string", "description": "Derived from what the message was made of."}
            },
        },
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-07",
            "schema": {"$ref": f"./{tag(message)}.schema.json"},
        },
    }


def files() -> dict[str, str]:
    """``proto/``: every file's name and text."""
    messages = [message for listed in MESSAGES.values() for message in listed] + list(STORED)
    made = {
        f"{tag(message)}.schema.json": json.dumps(schema(message), indent=2, ensure_ascii=False) + "\n"
        for message in messages
    }
    head = "# Generated from libs/common by `make schemas`: do not edit.\n"
    made["asyncapi.yaml"] = head + yaml.safe_dump(asyncapi(), sort_keys=False, allow_unicode=True, width=120)
    return made


def drift(folder: Path) -> list[str]:
    """What in ``folder`` is not what the code says: one line per file that differs, is missing or is left over."""
    wanted = files()
    there = {path.name for path in folder.glob("*") if path.is_file() and path.suffix in (".json", ".yaml")}
    lines = [f"{name} is left over from an event that is gone" for name in sorted(there - set(wanted))]
    for name, text in wanted.items():
        if name not in there:
            lines.append(f"{name} is missing")
        elif (folder / name).read_text(encoding="utf-8") != text:
            lines.append(f"{name} differs from the code")
    return lines


def write(folder: Path) -> None:
    """Make ``folder`` what the code says."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = files()
    for path in folder.glob("*.schema.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m mindstream_common.schemas", description="Write proto/ from the events, or check it."
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("proto"), help="default: proto")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when the folder has drifted")
    chosen = parser.parse_args(arguments)
    if not chosen.check:
        write(chosen.folder)
        return 0
    for line in (lines := drift(chosen.folder)):
        sys.stderr.write(f"{chosen.folder}: {line}. `make schemas` writes it anew.\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
