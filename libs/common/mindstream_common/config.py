"""A run is one YAML file with a section per service; each service decodes its own section, strictly.

The environment holds only addresses and secrets (:mod:`mindstream_common.settings`). A key that is unknown or misspelt
is an error that names the nearest one that exists.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import yaml

from mindstream_common.errors import ConfigError

SECTIONS = ("pipeline", "base", "ingest", "cleaning", "tokenizer", "writer", "trainer", "demo")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section's Struct: frozen, keyword-only, strict."""


S = TypeVar("S")


def load(path: str | Path) -> dict[str, Any]:
    """Read a run's file into its sections.

    Raises:
        ConfigError: the file is missing, is not YAML, is not a mapping, or has a section that does not exist.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the run's file {path}: {error}. Name one with --config FILE.") from error
    try:
        data = parse(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path} holds a {type(data).__name__}; a run's file is a mapping of sections: {', '.join(SECTIONS)}"
        )
    check_sections(data, path)
    return absolute_paths(data, path.parent)


class _Loader(yaml.SafeLoader):
    """YAML as people write it: ``1e-4`` is a number (YAML 1.1 takes it for text), a key that comes twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, each of whose keys comes once."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} comes twice", key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


def parse(text: str) -> Any:
    """What a YAML text says. Raises :class:`yaml.YAMLError` when it says nothing sensible."""
    return yaml.load(text, _Loader)


def check_sections(data: dict[str, Any], source: str | Path) -> None:
    """Raises ConfigError when a section does not exist."""
    for name in data:
        if name not in SECTIONS:
            raise ConfigError(
                f"{source}: unknown section {name!r}{near(str(name), SECTIONS)}. Sections are: {', '.join(SECTIONS)}."
            )


def absolute_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of section ``base``, and of the lists of words in ``cleaning``, are relative to the run's file's folder."""
    base = data.get("base")
    if isinstance(base, dict):
        data["base"] = base | {
            key: str((folder / value).absolute())
            for key, value in base.items()
            if key in ("vocab", "config", "weights") and isinstance(value, str)
        }
    cleaning = data.get("cleaning")
    sensitive = cleaning.get("sensitive") if isinstance(cleaning, dict) else None
    if isinstance(sensitive, dict) and isinstance(sensitive.get("files"), list):
        sensitive["files"] = [str((folder / f).absolute()) if isinstance(f, str) else f for f in sensitive["files"]]
    return data


def vocabulary(data: dict[str, Any], source: str | Path) -> Path:
    """``base.vocab``, the file that tokenizer and trainer share. Raises ConfigError when it is not set or not there."""
    base = data.get("base")
    found = base.get("vocab") if isinstance(base, dict) else None
    if not isinstance(found, str):
        raise ConfigError(
            f"{source}: base.vocab is not set. Name the vocab.txt of the base model: --set base.vocab=FILE"
        )
    if not Path(found).is_file():
        raise ConfigError(f"{source}: base.vocab is {found}, and there is no such file.")
    return Path(found)


def section(data: dict[str, Any], name: str, type: type[S], source: str | Path = "the run's file") -> S:
    """Decode section ``name`` of a run's file into ``type``; an absent section means its defaults.

    Raises:
        ConfigError: a key that does not exist (with the near miss), a value of a wrong type or out of range.
    """
    try:
        return msgspec.convert({} if data.get(name) is None else data[name], type)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{source}, section {name!r}: {explain(error, type)}") from error


def explain(error: Exception, type: type) -> str:
    """msgspec's message, with the nearest key where one was misspelt."""
    message = str(error)
    found = re.search(r"unknown field `([^`]+)`", message)
    if found:
        return message + near(found.group(1), sorted(field_names(type)))
    return message


def field_names(type: Any) -> set[str]:
    """Every key of a Struct and of the Structs inside it."""
    names: set[str] = set()
    if isinstance(type, type_of_struct):
        for field in msgspec.structs.fields(type):
            names |= {field.encode_name} | field_names(field.type)
    for inner in get_args(type):
        names |= field_names(inner)
    return names


type_of_struct = type(msgspec.Struct)


def near(name: str, known: Any) -> str:
    """`` (did you mean 'x'?)`` when something known is close, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
