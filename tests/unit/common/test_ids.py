"""Names derived from content: golden values, since a change would make every shard anew."""

from __future__ import annotations

from pathlib import Path

import msgspec
from mindstream_common import ids


class Config(msgspec.Struct, frozen=True, kw_only=True):
    b: int = 1
    a: str = "é"


def test_shard_ids_never_change() -> None:
    assert ids.shard_id("cleaning", ("a" * 32,), "c", 0) == "51be5c76ea1f4342db9e2ccf9bdd3c25"
    assert ids.shard_id("cleaning", ("a" * 32,), "c") == ids.shard_id("cleaning", ("a" * 32,), "c", 0)


def test_every_part_of_a_shard_id_counts() -> None:
    made = {
        ids.shard_id(*arguments)
        for arguments in (
            ("s", ("p",), "c", 0),
            ("s", ("p",), "c", 1),
            ("s", ("p",), "d", 0),
            ("s", ("q",), "c", 0),
            ("t", ("p",), "c", 0),
            ("s", ("p", "c"), "c", 0),
            ("s", (), "c", 0),
        )
    }
    assert len(made) == 7


def test_the_configuration_hash_sees_values_and_versions_but_not_the_order() -> None:
    one = ids.configuration_hash(Config(), rules="1", library="2")
    assert one == ids.configuration_hash({"a": "é", "b": 1}, library="2", rules="1")
    assert one != ids.configuration_hash(Config(b=2), rules="1", library="2")
    assert one != ids.configuration_hash(Config(), rules="2", library="2")


def test_sha256_of_files_is_that_of_their_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "x").write_bytes(data)
    assert ids.sha256_file(tmp_path / "x") == ids.sha256_bytes(data)
    assert ids.sha256_bytes(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
