"""The section ``writer`` of a run's file."""

from __future__ import annotations

from typing import Annotated

from mindstream_common.config import Section
from msgspec import Meta


class WriterConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How MindRecord files are laid out: sizes in bytes, as MindSpore takes them (powers of two, 16 KiB at least). Its
    own defaults make every file 50 MB; a row must fit into a page."""

    header_size: Annotated[int, Meta(ge=1 << 14, le=1 << 27)] = 1 << 16
    page_size: Annotated[int, Meta(ge=1 << 15, le=1 << 28)] = 1 << 18
