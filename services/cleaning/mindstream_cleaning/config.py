"""The section ``cleaning`` of a run's file: a section for each rule, and their order."""

from __future__ import annotations

from mindstream_common.config import Section, near
from mindstream_common.errors import ConfigError

from mindstream_cleaning.characters import CharactersConfig
from mindstream_cleaning.duplicates import NearDuplicates
from mindstream_cleaning.html import HtmlConfig
from mindstream_cleaning.language import LanguageConfig
from mindstream_cleaning.length import LengthConfig
from mindstream_cleaning.mojibake import EncodingConfig
from mindstream_cleaning.personal import PersonalDataConfig
from mindstream_cleaning.repetition import RepetitionConfig
from mindstream_cleaning.sensitive import SensitiveConfig
from mindstream_cleaning.simplified import SimplifiedConfig

RULES = (
    "encoding", "html", "characters", "simplified", "language", "length", "repetition", "sensitive", "personal_data",
)  # fmt: skip


class CleaningConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What cleaning does.

    ``rules``: which rules a document goes through, in this order; a rule that is not listed, or has ``enabled: false``
    in its own section, does nothing. Duplicates are looked for after all rules. ``exact_duplicates``: whether a text
    that was kept before, in any shard, is dropped; ``near_duplicates``: whether one much like it is (only with
    ``exact_duplicates``).

    Raises:
        ConfigError: a rule that does not exist, or one that is listed twice.
    """

    rules: tuple[str, ...] = RULES
    encoding: EncodingConfig = EncodingConfig()
    html: HtmlConfig = HtmlConfig()
    characters: CharactersConfig = CharactersConfig()
    simplified: SimplifiedConfig = SimplifiedConfig()
    language: LanguageConfig = LanguageConfig()
    length: LengthConfig = LengthConfig()
    repetition: RepetitionConfig = RepetitionConfig()
    sensitive: SensitiveConfig = SensitiveConfig()
    personal_data: PersonalDataConfig = PersonalDataConfig()
    exact_duplicates: bool = True
    near_duplicates: NearDuplicates = NearDuplicates()

    def __post_init__(self) -> None:
        for name in self.rules:
            if name not in RULES:
                raise ConfigError(
                    f"rules: there is no rule {name!r}{near(name, RULES)}. Rules are: {', '.join(RULES)}."
                )
        twice = sorted({name for name in self.rules if self.rules.count(name) > 1})
        if twice:
            raise ConfigError(f"rules: {', '.join(twice)} is listed twice.")
