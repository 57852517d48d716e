"""Rule ``simplified``: traditional characters become simplified ones, by phrases (opencc's tables, which it ships)."""

from __future__ import annotations

from typing import Literal

from mindstream_common.config import Section

from mindstream_cleaning.page import Page, Rule


class SimplifiedConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``variant``: the form that the texts are in: ``t2s`` any traditional, ``tw2s`` Taiwan, ``tw2sp`` Taiwan with its
    words (滑鼠 → 鼠标), ``hk2s`` Hong Kong. Off unless it is enabled."""

    enabled: bool = False
    variant: Literal["t2s", "tw2s", "tw2sp", "hk2s"] = "t2s"


def rule(config: SimplifiedConfig) -> Rule:
    """Converts."""
    from opencc import OpenCC  # reads its tables from disk: only where it is asked for

    converter = OpenCC(config.variant)

    def apply(page: Page) -> None:
        if not page.text.isascii():
            page.text = converter.convert(page.text)

    return apply
