"""The sample corpus of the demonstration: Chinese text that was written for this project, put together by a seed.

General notes, medical questions and answers, and announcements of companies that do not exist, in the formats in which
text really comes, with the dirt that cleaning has to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mindstream_common.errors import InputError

from mindstream_cli.sample.corpus import compose

PARTS = ("general", "domain-1", "domain-2")


@dataclass(frozen=True, slots=True)
class SampleFile:
    """One file: its part (``general``, ``domain-1``, ``domain-2``) and its domain (``general``, ``medical``,
    ``finance``)."""

    path: Path
    part: str
    domain: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """What was written. ``planted`` counts each kind of dirt: exact duplicates (copies beyond the first), records that
    are too short, symbols only or empty, malformed lines, records with personal data, lost encodings."""

    folder: Path
    files: tuple[SampleFile, ...]
    planted: dict[str, int]

    def paths(self, part: str, domain: str | None = None) -> list[Path]:
        """The files of a part, of one domain or of all."""
        return [f.path for f in self.files if f.part == part and domain in (None, f.domain)]


def write(folder: Path, seed: int = 7) -> Corpus:
    """Write the corpus below ``folder`` (created if absent): ``general/``, ``domain-<n>/medical/``,
    ``domain-<n>/finance/``. The same seed writes the same bytes; files of the same names are overwritten.

    Raises:
        InputError: one of those folders holds a file that is not of this corpus, or cannot be written.
    """
    folder = Path(folder)
    contents, planted = compose(seed)
    known = {folder / name for name in contents}
    for part in PARTS:
        for path in sorted((folder / part).rglob("*")):
            if path.is_file() and path not in known:
                raise InputError(
                    f"{path} is not of the sample corpus with seed {seed}; it would be read with it. "
                    "Name an empty folder, or remove that file."
                )
    files = []
    try:
        for name, data in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            part, *domain, _ = name.split("/")
            files.append(SampleFile(path, part, domain[0] if domain else "general"))
    except OSError as error:
        raise InputError(
            f"cannot write the sample corpus to {folder}: {error}. Name a folder that can be written."
        ) from error
    return Corpus(folder, tuple(files), planted)
