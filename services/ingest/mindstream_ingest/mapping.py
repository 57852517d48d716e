"""How a record becomes text, as an event carries it: every file of a bundle repeats it, so it is short."""

from __future__ import annotations

from mindstream_common.errors import ConfigError

EVENT_BYTES = 400_000  # of a bundle's event: far below what the bus takes, also inside a dead letter
BYTES = 8_000  # of a template, or of all field names


def size(text_fields: tuple[str, ...], template: str) -> int:
    """What it takes in an event, at the most (JSON may write a character as six)."""
    return 6 * (len(template) + sum(len(name) + 3 for name in text_fields))


def in_event(name: str, mapping: int) -> int:
    """What a file takes in a bundle's event, at the most. ``mapping`` is its :func:`size`."""
    return 400 + 6 * len(name) + mapping


def check(text_fields: tuple[str, ...], template: str) -> None:
    """Raises ConfigError when template or field names are longer than an event should repeat for every file."""
    taken = len(template.encode()) + sum(len(name.encode()) for name in text_fields)
    if taken > BYTES:
        raise ConfigError(
            f"the template or the field names take {taken:,} bytes; at most {BYTES:,} are taken. Put long texts into the "
            "records, not into the template."
        )
