"""``mindstream dead``: look at dead letters and put them back into their stage's queue."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
from mindstream_common.bus import NatsBus
from mindstream_common.errors import InputError
from mindstream_common.events import DeadLetter, decode_dead
from mindstream_common.topology import DEAD
from rich.console import Console

from mindstream_cli.connection import connect
from mindstream_cli.hints import commands, count

KINDS = {
    "poison": "can never succeed",
    "failed": "failed each time",
    "died": "its worker died each time",
}


async def letters(bus: NatsBus) -> dict[int, DeadLetter]:
    """All dead letters by number (their sequence in DEAD)."""
    return {record.seq: decode_dead(record.data) async for record in bus.read(DEAD)}


async def list_letters(state: Path, as_json: bool, console: Console) -> None:
    """A line each."""
    async with connect(state) as connection:
        found = await letters(connection.bus)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
        return
    if not found:
        console.print("No dead letters.")
        return
    for number, letter in found.items():
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.at))
        console.print(
            f"[bold]{number}[/]  {letter.stage}, domain {letter.domain}, {KINDS[letter.kind]} "
            f"({count(letter.attempts, 'attempt')}), {when}",
            highlight=False,
        )
        console.print(f"    {letter.error.strip().splitlines()[-1]}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"\n{commands(state, 'dead show NUMBER', 'dead retry NUMBER')} (when the cause is gone; a file that was mended is "
        "submitted again)",
        soft_wrap=True,
    )


async def show_letter(state: Path, number: int, console: Console) -> None:
    """All of one."""
    async with connect(state) as connection:
        found = await letters(connection.bus)
    letter = _get(found, number)
    console.print_json(bytes(letter.event).decode())
    console.print(f"{letter.stage}, {letter.kind}, after {count(letter.attempts, 'attempt')}:", highlight=False)
    console.print(letter.error, markup=False, highlight=False)


async def retry(state: Path, numbers: list[int] | None, stage: str | None, console: Console) -> None:
    """Publish again, then delete the letter. A crash in between publishes twice, which changes nothing."""
    async with connect(state) as connection:
        found = await letters(connection.bus)
        chosen = {number: _get(found, number) for number in numbers} if numbers else found
        chosen = {number: letter for number, letter in chosen.items() if stage in (None, letter.stage)}
        for number, letter in chosen.items():
            await connection.bus.publish(letter.subject, bytes(letter.event), id=f"retry:{number}")
            await connection.bus.remove(DEAD, number)
    console.print(f"{len(chosen)} events are back in their queues.")


def _get(found: dict[int, DeadLetter], number: int) -> DeadLetter:
    if number not in found:
        raise InputError(f"there is no dead letter {number}. `mindstream dead list` shows the numbers.")
    return found[number]
