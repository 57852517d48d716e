"""``mindstream clean --dry-run``: what each rule of cleaning would do to a file. Nothing is stored."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from mindstream_cleaning import duplicates
from mindstream_cleaning.chain import Chain
from mindstream_cleaning.config import CleaningConfig
from mindstream_cleaning.page import Page, Verdict
from mindstream_common import config, documents
from mindstream_common.claims import MemoryClaims
from mindstream_common.documents import Document
from mindstream_common.errors import ConfigError, InputError
from mindstream_common.events import FileBundle, Object, SourceFile
from mindstream_common.ids import sha256_file
from mindstream_common.stage import Work
from mindstream_ingest import submit
from mindstream_ingest.config import IngestConfig
from mindstream_ingest.stage import IngestStage
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mindstream_cli import stack
from mindstream_cli.drops import begin

DUPLICATES = "duplicates"
AROUND = 30  # characters shown before and after a change
CHANGE = 60  # characters of the change itself


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One document before and after a rule; ``after`` is the reason where it was dropped."""

    source: str
    before: str
    after: str


class Did(msgspec.Struct, kw_only=True):
    """What one rule did."""

    touched: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    counted: dict[str, int] = msgspec.field(default_factory=dict)
    change: Example | None = None
    drop: Example | None = None


class Trial(msgspec.Struct, kw_only=True):
    """What cleaning would do to a file: documents read and kept, records that ingest cannot read, and rule by rule."""

    read: int = 0
    kept: int = 0
    unread: dict[str, int] = msgspec.field(default_factory=dict)
    rules: dict[str, Did] = msgspec.field(default_factory=dict)


def run(
    file: Path, path: Path | None, settings: list[str], fields: tuple[str, ...], as_json: bool, console: Console
) -> None:
    """Try and show.

    Raises:
        InputError: the file does not exist, cannot be read, or is of a kind that ingest does not read.
        ConfigError: the run's file or a setting is wrong.
    """
    data = stack.assemble(path, settings) if path else _assemble(settings)
    source = path or "--set"
    ingest = config.section(data, "ingest", IngestConfig, source)
    cleaning = config.section(data, "cleaning", CleaningConfig, source)
    trial = attempt(file, fields, ingest, cleaning)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(trial)).decode() + "\n")
    else:
        show(trial, file, console)


def _assemble(settings: list[str]) -> dict[str, Any]:
    with TemporaryDirectory(prefix="mindstream-clean-") as folder:
        path = Path(folder) / "run.yaml"
        path.write_text("{}\n")
        return stack.assemble(path, settings)


def attempt(file: Path, fields: tuple[str, ...], ingest: IngestConfig, cleaning: CleaningConfig) -> Trial:
    """Read the file as ingest does and let its documents through the rules, then look for duplicates within it."""
    chain, claims, trial = Chain(cleaning), MemoryClaims(), Trial()
    trial.rules = {name: Did() for name, _ in chain.rules}
    with contextlib.closing(claims):
        for number, shard in enumerate(_shards(file, fields, ingest, trial)):
            cleaned = [page for document in shard if (page := _try(document, chain, trial)) is not None]
            if cleaning.exact_duplicates:
                _compare(f"{number:032x}", cleaned, claims, cleaning, trial)
            else:
                trial.kept += len(cleaned)
    return trial


def _try(document: Document, chain: Chain, trial: Trial) -> Document | None:
    """The document after the rules, or None when one drops it."""
    trial.read += 1
    page = Page(text=document.text, format=document.format)
    for name, before, verdict in chain.steps(page):
        did = trial.rules[name]
        if page.text != before:
            did.touched += 1
            if did.change is None:
                did.change = _change(document.source, before, page.text)
        for what, number in page.counts.items():
            did.counted[what] = did.counted.get(what, 0) + number
        page.counts.clear()
        if verdict is not None:
            _note_drop(did, document.source, before, verdict)
            return None
    return msgspec.structs.replace(document, text=page.text, format=page.format)


def _compare(shard: str, cleaned: list[Document], claims: MemoryClaims, cleaning: CleaningConfig, trial: Trial) -> None:
    did = trial.rules.setdefault(DUPLICATES, Did())
    found = duplicates.holders(shard, cleaned, claims, cleaning.near_duplicates)
    for document, repeated in zip(cleaned, found, strict=True):
        if repeated is None:
            trial.kept += 1
        else:
            detail = f"repeats {repeated.of}" + (f", {repeated.detail}" if repeated.detail else "")
            _note_drop(did, document.source, document.text, Verdict(repeated.reason, detail))


def _note_drop(did: Did, source: str, text: str, verdict: Verdict) -> None:
    did.dropped[verdict.reason] = did.dropped.get(verdict.reason, 0) + 1
    if did.drop is None:
        why = f"dropped: {verdict.reason}" + (f" ({verdict.detail})" if verdict.detail else "")
        did.drop = Example(source=source, before=begin(text), after=why)


def _change(source: str, before: str, after: str) -> Example:
    """The place of the first difference, with something around it."""
    at = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
    start = max(0, at - AROUND)
    lead = "…" if start else ""
    return Example(
        source=source,
        before=lead + begin(before[start : at + CHANGE]),
        after=lead + begin(after[start : at + CHANGE]),
    )


def _shards(file: Path, fields: tuple[str, ...], ingest: IngestConfig, trial: Trial) -> Iterator[list[Document]]:
    """Documents of the file, as ingest would hand them on, some thousand at a time."""
    [found], _ = submit.find([file]) if not file.is_dir() else _refuse(file)
    object = Object(key=found.name, size=found.size, sha256=sha256_file(found.path))
    bundle = FileBundle(
        id="0" * 32, domain="trial", objects=(object,), created=0.0,
        files=(SourceFile(name=found.name, text_fields=fields),),
    )  # fmt: skip
    stage = IngestStage(ingest)
    with TemporaryDirectory(prefix="mindstream-clean-") as folder, contextlib.closing(MemoryClaims()) as claims:
        work = Work(event=bundle, files=(found.path,), folder=Path(folder), claims=claims)
        for product in stage.run(work):
            for _, error in product.dead:
                raise InputError(error)
            for reason, number in product.counts.dropped.items():
                trial.unread[reason] = trial.unread.get(reason, 0) + number
            for path in product.files.values():
                yield list(documents.read(path))
                path.unlink()


def _refuse(folder: Path) -> Any:
    raise InputError(f"{folder} is a folder. Name one file of it.")


def show(trial: Trial, file: Path, console: Console) -> None:
    """A line per rule, and an example of what it changes and of what it drops, before and after side by side."""
    dropped = sum(sum(did.dropped.values()) for did in trial.rules.values())
    console.print(
        f"{file.name}: {trial.read} documents, {trial.kept} would be kept, {dropped} dropped. Nothing was stored.",
        markup=False,
        highlight=False,
    )
    if trial.unread:
        console.print(f"Records that ingest cannot read: {_numbers(trial.unread)}", markup=False, highlight=False)
    table = Table("rule", "changed", "dropped", "counted")
    for name, did in trial.rules.items():
        table.add_row(name, str(did.touched), _numbers(did.dropped), _numbers(did.counted))
    console.print(table)
    examples = Table("rule", "source", show_lines=True)
    for side in ("before", "after"):
        examples.add_column(side, overflow="fold", ratio=1)
    for name, did in trial.rules.items():
        for example in (did.change, did.drop):
            if example is not None:
                examples.add_row(name, *map(Text, (example.source, example.before, example.after)))
    if examples.row_count:
        console.print(examples)


def _numbers(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(found.items())) or "-"


def need_dry_run(dry_run: bool) -> None:
    """Raises ConfigError without the flag: cleaning for good is the service's work."""
    if not dry_run:
        raise ConfigError(
            "mindstream clean only shows what cleaning would do: add --dry-run. To clean a file for good, submit it: "
            "mindstream submit FILE --domain NAME"
        )
