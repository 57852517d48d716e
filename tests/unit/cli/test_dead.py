"""``mindstream dead``: a letter goes back where its event waited, and is then gone."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from mindstream_cli import dead as module
from mindstream_common import events
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import InputError, Transient
from mindstream_common.events import DeadLetter
from mindstream_common.topology import CLEAN, DEAD, RAW
from rich.console import Console


@pytest.fixture
async def bus(monkeypatch: pytest.MonkeyPatch) -> MemoryBus:
    """Three dead letters: two of cleaning, one of the tokenizer."""
    made = MemoryBus()
    await made.ensure(queue_events=100)

    @contextlib.asynccontextmanager
    async def connect(_: Path) -> AsyncIterator[Any]:
        yield SimpleNamespace(bus=made)

    monkeypatch.setattr(module, "connect", connect)
    for number, (stage, subject) in enumerate(
        [("cleaning", "raw.medical"), ("tokenizer", "clean.medical"), ("cleaning", "raw.finance")], start=1
    ):
        letter = DeadLetter(
            stage=stage,
            domain=subject.split(".")[1],
            subject=subject,
            event=msgspec.Raw(b'{"number":%d}' % number),
            kind="failed",
            error=f"Traceback [red]no markup[/red]\nValueError: 第 {number} 行",
            attempts=5,
            at=1767225600.0,
        )
        await made.publish(f"dead.{stage}.{letter.domain}", events.encode(letter), id=str(number))
    return made


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def waiting(bus: MemoryBus) -> list[tuple[str, bytes]]:
    """Subject and bytes of what lies in the queues."""
    return [(record.subject, record.data) for stream in (RAW, CLEAN) for record in [r async for r in bus.read(stream)]]


async def left(bus: MemoryBus) -> list[int]:
    return [record.seq async for record in bus.read(DEAD)]


async def test_list(bus: MemoryBus, console: Console, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await module.list_letters(tmp_path, False, console)
    text = said(console)
    for words in ("cleaning", "tokenizer", "finance", "第 3 行", "mindstream dead retry"):
        assert words in text
    await module.list_letters(tmp_path, True, console)
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["1", "2", "3"]
    assert printed["2"]["event"] == {"number": 2}


async def test_list_of_none(bus: MemoryBus, console: Console, tmp_path: Path) -> None:
    for seq in await left(bus):
        await bus.remove(DEAD, seq)
    await module.list_letters(tmp_path, False, console)
    assert said(console) == "No dead letters.\n"


async def test_show(bus: MemoryBus, console: Console, tmp_path: Path) -> None:
    await module.show_letter(tmp_path, 2, console)
    text = said(console)
    assert '"number": 2' in text
    assert "tokenizer, failed, after 5 attempts:" in text
    assert "Traceback [red]no markup[/red]\nValueError: 第 2 行" in text
    with pytest.raises(InputError, match=r"there is no dead letter 9\. `mindstream dead list` shows the numbers"):
        await module.show_letter(tmp_path, 9, console)


async def test_retry_of_all(bus: MemoryBus, console: Console, tmp_path: Path) -> None:
    await module.retry(tmp_path, None, None, console)
    assert await waiting(bus) == [
        ("raw.medical", b'{"number":1}'),
        ("raw.finance", b'{"number":3}'),
        ("clean.medical", b'{"number":2}'),
    ]
    assert await left(bus) == []
    assert said(console) == "3 events are back in their queues.\n"


async def test_retry_of_some(bus: MemoryBus, console: Console, tmp_path: Path) -> None:
    await module.retry(tmp_path, [3], None, console)
    assert (await waiting(bus), await left(bus)) == ([("raw.finance", b'{"number":3}')], [1, 2])
    await module.retry(tmp_path, None, "tokenizer", console)
    assert await left(bus) == [1]
    await module.retry(tmp_path, [1], "writer", console)
    assert await left(bus) == [1]


async def test_a_wrong_number_retries_nothing(bus: MemoryBus, console: Console, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no dead letter 9"):
        await module.retry(tmp_path, [1, 9], None, console)
    assert (await waiting(bus), await left(bus)) == ([], [1, 2, 3])


async def test_a_letter_stays_until_its_event_is_back(
    bus: MemoryBus, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> int:
        raise Transient("the stream is full")

    with monkeypatch.context() as patch:
        patch.setattr(bus, "publish", away)
        with pytest.raises(Transient):
            await module.retry(tmp_path, None, None, console)
    assert await left(bus) == [1, 2, 3]
    remove = bus.remove

    async def crash(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(bus, "remove", crash)
    with pytest.raises(RuntimeError):
        await module.retry(tmp_path, [1], None, console)
    monkeypatch.setattr(bus, "remove", remove)
    await module.retry(tmp_path, [1], None, console)
    assert (await waiting(bus), await left(bus)) == ([("raw.medical", b'{"number":1}')], [2, 3])  # once
