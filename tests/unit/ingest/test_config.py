"""The section ``ingest``: what it refuses, and what names the output."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from mindstream_common.config import section
from mindstream_common.errors import ConfigError
from mindstream_ingest.config import HttpConfig, IngestConfig, SourceConfig


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"domain": "a"}, "either s3 .* or folder"),
        ({"domain": "a", "s3": "x/", "folder": "/x"}, "either s3 .* or folder"),
        ({"domain": "A b", "s3": "x/"}, "domain"),
        ({"domain": "a", "s3": "x/", "template": "{ask"}, "no partner"),
        ({"domain": "a", "s3": "x/", "template": "{ask}", "text_fields": ["ask"]}, "either text_fields or template"),
        ({"domain": "a", "s3": "x/", "poll_second": 1}, "did you mean 'poll_seconds'"),
        ({"domain": "a", "s3": "x/", "poll_seconds": 0}, "poll_seconds"),
    ],
)
def test_a_source_that_cannot_be(source: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        section({"ingest": {"sources": [source]}}, "ingest", IngestConfig)


def test_a_port_is_needed_to_listen() -> None:
    with pytest.raises(ConfigError, match="port"):
        section({"ingest": {"http": {}}}, "ingest", IngestConfig)
    assert section({"ingest": {"http": {"port": 8400}}}, "ingest", IngestConfig).http == HttpConfig(port=8400)
    assert section({}, "ingest", IngestConfig).http is None


def test_where_files_come_from_does_not_name_the_output() -> None:
    plain = IngestConfig()
    listening = IngestConfig(http=HttpConfig(port=1), sources=(SourceConfig(domain="a", folder="/x"),))
    assert plain.hash("1") == listening.hash("1")
    assert plain.hash("1") != plain.hash("2")
    for field in msgspec.structs.fields(IngestConfig):
        if field.name not in ("http", "sources", "text_fields"):
            changed = msgspec.structs.replace(plain, **{field.name: 7})
            assert changed.hash("1") != plain.hash("1"), field.name
