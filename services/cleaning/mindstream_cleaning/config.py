"""The section ``cleaning`` of a run's file."""

from __future__ import annotations

from typing import Annotated

from mindstream_common.config import Section
from msgspec import Meta

from mindstream_cleaning.duplicates import NearDuplicates


class CleaningConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What cleaning keeps.

    ``min_characters``: a cleaned text with fewer letters, Hanzi and digits is dropped as ``too_short``. Five, because
    the shortest thing that teaches a language model anything is a clause; ``好`` and ``谢谢医生`` are none.
    ``exact_duplicates``: whether a text that was kept before, in any shard, is dropped.
    ``near_duplicates``: whether one much like it is dropped too (only with ``exact_duplicates``).
    """

    min_characters: Annotated[int, Meta(ge=1)] = 5
    exact_duplicates: bool = True
    near_duplicates: NearDuplicates = NearDuplicates()
