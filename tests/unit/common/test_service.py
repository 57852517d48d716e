"""How a service ends, and how it waits for the bus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from mindstream_common import logs, service
from mindstream_common.bus_memory import MemoryBus
from mindstream_common.errors import ConfigError, Fenced, Transient, UserError
from mindstream_common.runner import PipelineConfig
from mindstream_common.topology import STREAMS


@pytest.mark.parametrize("error", [ConfigError("x"), Fenced("x"), Transient("x")])
def test_an_error_on_purpose_ends_with_2(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        service.exit_with(fail)
    assert ended.value.code == 2


def test_other_errors_keep_their_traceback() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        service.exit_with(fail)


def test_a_good_end_is_0() -> None:
    with pytest.raises(SystemExit) as ended:
        service.exit_with(lambda: None)
    assert ended.value.code == 0


def test_users_errors_are_value_errors() -> None:
    assert issubclass(ConfigError, UserError)
    assert issubclass(UserError, ValueError)
    assert not issubclass(Transient, UserError)


async def test_streams_are_made_when_the_bus_comes() -> None:
    class Late(MemoryBus):
        away = 1

        async def ensure(self, *, queue_events: int) -> None:
            if self.away:
                self.away -= 1
                raise Transient("the bus does not answer")
            await super().ensure(queue_events=queue_events)

    bus = Late()
    await service.ensure_streams(bus, PipelineConfig())
    for stream in STREAMS:
        assert await bus.last(stream, f"{stream.subject}.x") == 0


PROGRAM = """
import sys
from mindstream_common import logs, service
from mindstream_common.errors import ConfigError
logs.configure(service="cleaning")
def fail():
    logs.get(shard="abc").info("说明", seconds=1.5)
    try:
        1 / 0
    except ZeroDivisionError:
        logs.get().exception("broken")
    raise ConfigError("trainer.steps is wrong")
service.exit_with(fail)
"""


def test_logs_are_one_json_object_a_line() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    first, second, third = map(json.loads, done.stderr.splitlines())
    assert (first["service"], first["shard"], first["event"], first["level"]) == ("cleaning", "abc", "说明", "info")
    assert "说明" in done.stderr  # people read logs too
    assert "ZeroDivisionError" in second["exception"]
    assert (third["error"], third["level"]) == ("trainer.steps is wrong", "error")


DRAINS = """
import asyncio
from mindstream_common import service
async def main():
    asked = asyncio.Event()
    service.drain_on_signals(asked.set)
    print("ready", flush=True)
    await asked.wait()
    print("drained", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_drain(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DRAINS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, number)
        assert process.stdout.readline() == "drained\n"
        assert process.wait(10) == 0


def test_a_logger_keeps_what_was_bound(capsys: pytest.CaptureFixture[str]) -> None:
    logs.get(run="default").info("step", step=3)
    said = capsys.readouterr()
    assert "default" in said.out + said.err
