"""``python -m mindstream_cli.sample FOLDER [SEED]`` writes the sample corpus."""

from __future__ import annotations

import sys
from pathlib import Path

from mindstream_common.errors import UserError

from mindstream_cli.sample import write


def main(arguments: list[str]) -> int:
    """Write the corpus and say what it holds. Returns the exit status."""
    folder, *seeds = arguments or ["-"]
    if folder.startswith("-") or len(seeds) > 1 or not all(seed.isdecimal() for seed in seeds):
        print("usage: python -m mindstream_cli.sample FOLDER [SEED]    (SEED is a number, default 7)", file=sys.stderr)
        return 2
    try:
        corpus = write(Path(folder), *map(int, seeds))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    size = sum(file.path.stat().st_size for file in corpus.files)
    print(f"{len(corpus.files)} files, {size / 1000:.0f} kB in {corpus.folder}")
    print("planted: " + ", ".join(f"{name} {number}" for name, number in corpus.planted.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
