"""``mindstream submit``: files to ingest, with progress."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
from mindstream_common.errors import ConfigError, InputError, Transient
from mindstream_common.events import Domain
from mindstream_ingest import submit as ingest
from mindstream_ingest.fields import parse
from mindstream_ingest.watch import Watcher
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mindstream_cli.connection import Connection, connect
from mindstream_cli.hints import commands, count


def check_domain(domain: str) -> str:
    """Raises ConfigError when it cannot be a domain's name."""
    try:
        return msgspec.convert(domain, Domain)
    except msgspec.ValidationError:
        raise ConfigError(
            f"--domain {domain!r}: a domain is a short name of a-z, 0-9, - and _, such as finance or medical-qa."
        ) from None


def check_template(fields: tuple[str, ...], template: str) -> None:
    """Raises ConfigError when the template cannot be read, or both are given."""
    if template and fields:
        raise ConfigError("--template and --text-field are two ways to say the same: give one of them.")
    if template:
        parse(template)


def run(
    paths: list[Path],
    domain: str,
    fields: tuple[str, ...],
    watch: bool,
    state: Path,
    console: Console,
    template: str = "",
) -> None:
    """Submit once, or keep watching until Ctrl-C."""
    check_domain(domain)
    check_template(fields, template)
    asyncio.run((_watch if watch else _once)(paths, domain, fields, template, state, console))


async def _once(
    paths: list[Path], domain: str, fields: tuple[str, ...], template: str, state: Path, console: Console
) -> None:
    found, left = ingest.find(paths)
    if not found:
        raise InputError(f"nothing to read in {', '.join(map(str, paths))}. Ingest reads {ingest.kinds()}.")
    refused: list[str] = []
    async with connect(state) as connection:
        await hand_over(connection, found, domain, fields, console, template, refused)
    names_left(left, console)
    if len(refused) < len(found):
        console.print(f"See what becomes of them: {commands(state, 'status', 'audit --wait 60')}", soft_wrap=True)
    if refused:
        raise InputError(f"{count(len(refused), 'file')} could not be submitted: " + "; ".join(refused))


async def hand_over(
    connection: Connection,
    files: list[ingest.Found],
    domain: str,
    fields: tuple[str, ...],
    console: Console,
    template: str = "",
    refused: list[str] | None = None,
) -> None:
    """Submit files with a progress bar, and say what was taken. A file that cannot be read goes into ``refused`` (its
    error is raised when that is None)."""
    columns = (TextColumn("submitting"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    total = sum(file.size for file in files)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("submitting", total=total)
        submitted = [
            bundle
            async for bundle in ingest.submit(
                files,
                domain=domain,
                text_fields=fields,
                template=template,
                store=connection.store,
                bus=connection.bus,
                progress=lambda file: progress.advance(task, file.size),
                refused=None if refused is None else lambda _, error: refused.append(error),
            )
        ]
    taken = sum(bundle.files for bundle in submitted)
    size = sum(bundle.bytes for bundle in submitted)
    console.print(
        f"With ingest as domain {domain!r}: {count(taken, 'file')}, {size / 1e6:.1f} MB, in {count(len(submitted), 'bundle')}. "
        "Content that it has seen before is not taken again.",
        highlight=False,
        soft_wrap=True,
    )


def names_left(left: list[Path], console: Console) -> None:
    """Say which files were left out."""
    if left:
        shown = ", ".join(str(path) for path in left[:5])
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        console.print(f"Left out, because ingest reads {ingest.kinds()}: {shown}{more}", highlight=False)


async def _watch(
    paths: list[Path], domain: str, fields: tuple[str, ...], template: str, state: Path, console: Console
) -> None:
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} does not exist.")
    watcher = Watcher(paths)
    told: set[Path] = set()
    console.print(f"Watching {', '.join(map(str, paths))}; a file is taken when it has stopped growing. Ctrl-C ends.")
    async with connect(state) as connection:
        while True:
            ready = watcher.look(time.monotonic())
            if ready:
                await take(connection, watcher, ready, domain, fields, console, template)
            names_left(sorted(watcher.left - told), console)
            told |= watcher.left
            await asyncio.sleep(1.0)


async def take(
    connection: Connection,
    watcher: Watcher,
    ready: list[ingest.Found],
    domain: str,
    fields: tuple[str, ...],
    console: Console,
    template: str = "",
) -> None:
    """Hand files over; what cannot be (now) is told once, keeps nothing else waiting, and is given again."""
    try:
        await hand_over(connection, ready, domain, fields, console, template)
        watcher.take(ready)
    except InputError as error:
        if len(ready) > 1:
            for file in ready:
                await take(connection, watcher, [file], domain, fields, console, template)
        elif str(error) not in watcher.told:
            watcher.told.add(str(error))
            console.print(f"{error} It is looked at again.", style="yellow", markup=False)
    except Transient as error:
        console.print(f"{error} Watching goes on.", style="yellow", markup=False)
