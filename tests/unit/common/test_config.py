"""A run's file: what is wrong in it is named, with the section, the key and the nearest one that exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from mindstream_common import config, settings
from mindstream_common.config import Section
from mindstream_common.errors import ConfigError, UserError
from msgspec import Meta


class Inner(Section, frozen=True, kw_only=True):
    rows: Annotated[int, Meta(ge=1)] = 10


class Trainer(Section, frozen=True, kw_only=True):
    steps: Annotated[int, Meta(ge=1)] = 100
    learning_rate: float = 0.1
    window: Inner = Inner()
    stages: tuple[Inner, ...] = ()
    named: dict[str, Inner] | None = None

    def __post_init__(self) -> None:
        if self.steps == 13:
            raise ConfigError("steps 13 brings bad luck. Take 14.")


def written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_unknown_section_names_the_near_one(tmp_path: Path) -> None:
    path = written(tmp_path, "trainr:\n  steps: 3\n")
    with pytest.raises(ConfigError, match=r"unknown section 'trainr' \(did you mean 'trainer'\?\)") as found:
        config.load(path)
    assert str(path) in str(found.value)


def test_an_unknown_section_that_is_near_nothing_lists_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown section 'xyz'\. Sections are: pipeline, base, ingest"):
        config.load(written(tmp_path, "xyz: {}\n"))


def test_a_section_name_need_not_be_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown section 1"):
        config.load(written(tmp_path, "1: {}\n"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"stepz": 3}, "unknown field `stepz` (did you mean 'steps'?)"),
        ({"window": {"row": 3}}, "unknown field `row` - at `$.window` (did you mean 'rows'?)"),
        ({"stages": [{"rowz": 3}]}, "unknown field `rowz` - at `$.stages[0]` (did you mean 'rows'?)"),
        ({"named": {"a": {"rowz": 3}}}, "(did you mean 'rows'?)"),
        ({"zzz": 3}, "unknown field `zzz`"),
        ({"steps": "many"}, "Expected `int`, got `str` - at `$.steps`"),
        ({"steps": True}, "Expected `int`, got `bool` - at `$.steps`"),
        ({"steps": 0}, "Expected `int` >= 1 - at `$.steps`"),
        ({"steps": None}, "got `null` - at `$.steps`"),
        ({"window": {"rows": 0}}, "Expected `int` >= 1 - at `$.window.rows`"),
        ({"steps": 13}, "steps 13 brings bad luck"),
        ([1], "Expected `object`, got `array`"),
        ([], "Expected `object`, got `array`"),
        (False, "Expected `object`, got `bool`"),
        ("", "Expected `object`, got `str`"),
    ],
)
def test_what_is_wrong_in_a_section_is_named(data: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as found:
        config.section({"trainer": data}, "trainer", Trainer, "own.yaml")
    assert str(found.value).startswith("own.yaml, section 'trainer': ")


def test_absent_and_empty_sections_are_defaults(tmp_path: Path) -> None:
    assert config.section({}, "trainer", Trainer) == Trainer()
    assert config.section(config.load(written(tmp_path, "trainer:\n")), "trainer", Trainer) == Trainer()
    assert config.load(written(tmp_path, "")) == {}


@pytest.mark.parametrize(
    ("text", "number"), [("1e-4", 1e-4), ("5E-5", 5e-5), ("1.5e3", 1500.0), ("-2e2", -200.0), (".5e1", 5.0), ("3", 3)]
)
def test_numbers_as_people_write_them(tmp_path: Path, text: str, number: float) -> None:
    """YAML 1.1 takes 1e-4 for text."""
    data = config.load(written(tmp_path, f"trainer:\n  learning_rate: {text}\n"))
    assert config.section(data, "trainer", Trainer).learning_rate == number


def test_words_that_look_like_numbers_stay_words() -> None:
    assert config.parse("[e5, 1e, 1e5a, '1e5', e-5]") == ["e5", "1e", "1e5a", "1e5", "e-5"]


@pytest.mark.parametrize("text", ["trainer:\n  steps: 3\n  steps: 4\n", "trainer: {}\nbase: {}\ntrainer: {}\n"])
def test_a_key_that_comes_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"key '(steps|trainer)' comes twice(.|\n)*line 3"):
        config.load(written(tmp_path, text))


def test_sections_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Trainer().steps = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "words"),
    [("trainer: [", "is not YAML"), ("- a\n", "holds a list"), ("just words", "holds a str"), ("3", "holds a int")],
)
def test_files_that_are_no_run(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=words) as found:
        config.load(path)
    assert str(path) in str(found.value)


def test_a_missing_or_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the run's file .*absent\.yaml.* Name one with --config"):
        config.load(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot read the run's file"):
        config.load(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read the run's file"):
        config.load(binary)


def test_base_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    path = written(folder, "base: {vocab: models/vocab.txt, config: /etc/config.json, weights: null}\n")
    for given in (path, path.relative_to(tmp_path)):
        base = config.load(given)["base"]
        assert base == {
            "vocab": str(folder / "models/vocab.txt"),
            "config": "/etc/config.json",
            "weights": None,
        }


def test_the_vocabulary_must_be_named_and_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.yaml: base.vocab is not set.*--set base.vocab=FILE"):
        config.vocabulary({}, "run.yaml")
    with pytest.raises(ConfigError, match=r"base.vocab is not set"):
        config.vocabulary({"base": None}, "run.yaml")
    with pytest.raises(ConfigError, match=r"base.vocab is not set"):
        config.vocabulary({"base": ["vocab.txt"]}, "run.yaml")
    with pytest.raises(ConfigError, match=r"base.vocab is /nowhere/vocab.txt, and there is no such file"):
        config.vocabulary({"base": {"vocab": "/nowhere/vocab.txt"}}, "run.yaml")
    path = tmp_path / "vocab.txt"
    path.touch()
    assert config.vocabulary({"base": {"vocab": str(path)}}, "run.yaml") == path


ENVIRONMENT = {
    "MINDSTREAM_NATS_URL": "nats://u:p@127.0.0.1:4222",
    "MINDSTREAM_S3_ENDPOINT": "http://127.0.0.1:9000",
    "MINDSTREAM_S3_ACCESS_KEY": "key",
    "MINDSTREAM_S3_SECRET_KEY": "secret",
    "MINDSTREAM_VALKEY_URL": "valkey://127.0.0.1:6379",
}


def test_settings_come_from_the_environment() -> None:
    found = settings.from_environment(ENVIRONMENT | {"MINDSTREAM_METRICS_PORT": "9100", "HOME": "/"})
    assert (found.nats_url, found.metrics_port, found.s3_bucket) == ("nats://u:p@127.0.0.1:4222", 9100, "mindstream")


def test_all_missing_variables_are_named_at_once() -> None:
    with pytest.raises(UserError) as found:
        settings.from_environment({"MINDSTREAM_NATS_URL": "nats://x", "MINDSTREAM_VALKEY_URL": ""})
    missing = set(re.findall(r"MINDSTREAM_\w+", str(found.value)))
    assert missing == set(ENVIRONMENT) - {"MINDSTREAM_NATS_URL"}
    assert "mindstream up" in str(found.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"MINDSTREAM_METRICS_PORT is 'many' .* Expected `int`"):
        settings.from_environment(ENVIRONMENT | {"MINDSTREAM_METRICS_PORT": "many"})
