"""The entries of a ``vocab.txt``: one a line, the line's number is the id."""

from __future__ import annotations

from pathlib import Path

from mindstream_common.errors import ConfigError


def entries(data: bytes) -> tuple[str, ...]:
    """The entries in a file's bytes.

    Lines end at newlines only: the vocabulary of bert-base-chinese has U+2028 as an entry, at which ``splitlines()``
    would also split, shifting every later id by one. Carriage returns are ends of lines only where every line has one.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    lines = data.decode("utf-8").removesuffix("\n").split("\n")
    if len(lines) > 1 and all(line.endswith("\r") for line in lines[:-1]):
        lines = [line.removesuffix("\r") for line in lines]
    return tuple(lines)


def read(path: str | Path) -> tuple[bytes, tuple[str, ...]]:
    """A file's bytes and the entries in them.

    Raises:
        ConfigError: the file cannot be read as UTF-8 text.
    """
    try:
        data = Path(path).read_bytes()
        return data, entries(data)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the vocabulary {path}: {error}. It is the vocab.txt beside the base model."
        ) from error
