"""``mindstream submit``: what it says, and a watch that one bad file does not end."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from mindstream_cli import submit as module
from mindstream_common import events
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import ConfigError, Transient
from mindstream_common.store import MemoryStore
from mindstream_common.topology import FILES
from mindstream_ingest import submit as ingest
from mindstream_ingest.submit import Found
from mindstream_ingest.watch import Watcher
from rich.console import Console


class Ends:
    """Both ends in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.bus = MemoryBus()


@pytest.fixture
async def ends() -> Any:
    made = Ends()
    await made.bus.ensure(queue_events=100)
    return made


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=300)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def bundles(ends: Any) -> int:
    return len([record async for record in ends.bus.read(FILES)])


@pytest.mark.parametrize("domain", ["finance", "medical-qa", "a", "0", "x" * 48])
def test_good_domains(domain: str) -> None:
    assert module.check_domain(domain) == domain


@pytest.mark.parametrize("domain", ["", "Finance", "a b", "医学", "a.b", "-a", "x" * 49, "a\n", "../x"])
def test_bad_domains(domain: str) -> None:
    with pytest.raises(ConfigError, match="a domain is a short name of a-z, 0-9"):
        module.check_domain(domain)


@pytest.mark.parametrize(
    ("fields", "template", "words"),
    [(("ask",), "{ask}", "give one of them"), ((), "{ask", "has no partner"), ((), "ask", "names no field")],
)
def test_bad_templates(fields: tuple[str, ...], template: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        module.check_template(fields, template)


async def test_a_template_goes_with_the_files(ends: Any, console: Console, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ask": "q"}')
    found, _ = ingest.find([tmp_path])
    module.check_template((), "{ask}\\n")
    await module.hand_over(ends, found, "finance", (), console, "{ask}\\n")
    [record] = [record async for record in ends.bus.read(FILES)]
    event = events.decode(record.data)
    assert isinstance(event, events.FileBundle)
    assert event.files[0].template == "{ask}\\n"


async def test_it_says_what_was_taken(ends: Any, console: Console, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 100_000)
    found, _ = ingest.find([tmp_path])
    await module.hand_over(ends, found, "finance", (), console)
    assert "With ingest as domain 'finance': 1 file, 0.1 MB, in 1 bundle." in said(console)


def test_it_names_what_was_left_out(console: Console) -> None:
    module.names_left([Path(f"{number}.pdf") for number in range(7)], console)
    assert "Left out, because ingest reads .txt" in said(console)
    assert "0.pdf, 1.pdf, 2.pdf, 3.pdf, 4.pdf and 2 more" in said(console)


async def test_a_file_that_cannot_be_taken_keeps_no_other_waiting(ends: Any, console: Console, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in "abc"]
    for path in paths:
        path.write_text(path.name)
    watcher = Watcher([tmp_path])
    watcher.look(0.0)
    ready = watcher.look(10.0)
    text = paths[1].read_text()
    paths[1].unlink()
    await module.take(ends, watcher, ready, "finance", (), console)
    await module.take(ends, watcher, [found for found in ready if found.path == paths[1]], "finance", (), console)
    assert await bundles(ends) == 2
    assert said(console).count("b.txt cannot be read") == 1  # told once
    paths[1].write_text(text)
    os.utime(paths[1], ns=(0, 1))
    watcher.look(20.0)
    ready = watcher.look(30.0)
    assert [found.path for found in ready] == [paths[1]]
    await module.take(ends, watcher, ready, "finance", (), console)
    assert await bundles(ends) == 3
    assert watcher.look(40.0) == []


async def test_a_bus_that_is_away_does_not_end_the_watch(
    ends: Any, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a")
    watcher = Watcher([tmp_path])
    watcher.look(0.0)
    ready: list[Found] = watcher.look(10.0)

    async def away(*_: Any) -> None:
        raise Transient("the bus does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(module, "hand_over", away)
        await module.take(ends, watcher, ready, "finance", (), console)
    assert "the bus does not answer Watching goes on." in said(console)
    assert watcher.look(20.0) == ready
    await module.take(ends, watcher, ready, "finance", (), console)
    assert await bundles(ends) == 1
