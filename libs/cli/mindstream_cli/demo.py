"""``mindstream demo``: the whole chain on a small corpus, from text to a checkpoint, in some minutes.

A vocabulary and a small BERT base are made from general text. Then domain text streams in, its second half while the
model is already training on the first, and the held-out loss is measured before and after. Every step leaves its result
in the state folder, so a demonstration that was stopped goes on where it was.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import yaml
from mindstream_common import config
from mindstream_common.config import Section
from mindstream_common.errors import ConfigError, InputError, MindStreamError
from mindstream_ingest import submit
from mindstream_ingest.submit import Found
from mindstream_trainer import progress
from mindstream_trainer.report import Stepped
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from mindstream_cli import evaluate, sample, status, train, up, vocabulary
from mindstream_cli.audit import Report, audit
from mindstream_cli.audit_report import balanced
from mindstream_cli.connection import Connection, connect
from mindstream_cli.evaluate import Comparison
from mindstream_cli.hints import command, count
from mindstream_cli.ledger import Ledger
from mindstream_cli.stack import Stack
from mindstream_cli.submit import check_domain

CONFIG = Path(__file__).parent / "demo.yaml"
GENERAL = "general"


class DemoConfig(Section, frozen=True, kw_only=True):
    """Section ``demo``: what the demonstration does besides the run itself."""

    vocabulary_size: int = 4000
    base_steps: int = 200
    second_half_after: int = 10  # steps of the domain run
    held_out_rows: int = 256


class Summary(msgspec.Struct, kw_only=True):
    """``summary.json``: what the demonstration found."""

    audit: Report
    scores: Comparison
    steps: int
    tokens_per_second: float
    padding: float
    seconds: float
    checkpoint: str
    local_checkpoint: str
    corpus: str = ""  # the person's own folder


def run(*, state: Path, corpus: Path | None, domain: str, anew: bool, console: Console) -> None:
    """Run it, or go on with it, or show what it found."""
    check_domain(domain)
    if corpus is not None and state.name == "demo":
        state = state.with_name(f"demo-{domain}")
    up.refuse_second(state)
    if anew and state.exists():
        up.erase_state(state)
    summary = state / "summary.json"
    if summary.exists():
        found = msgspec.json.decode(summary.read_bytes(), type=Summary)
        again = command(f"demo --anew{_options(corpus, domain)}")
        if corpus is not None and found.corpus != str(corpus.absolute()):
            raise ConfigError(
                f"the demonstration under {state} was of {found.corpus}. Choose another --domain, or begin again: {again}"
            )
        console.print(
            f"This demonstration was finished before{' on ' + found.corpus if found.corpus else ''}. Begin again: {again}\n",
            soft_wrap=True,
            highlight=False,
        )
        show(found, state, console)
        return
    if corpus is None and domain != "own":
        raise ConfigError(
            "--domain belongs to a --corpus of your own: make run CORPUS=/path/to/folder DOMAIN=" + domain
        )
    try:
        Demo(state, corpus, domain, console).run()
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on from here.")
        raise


class Demo:
    """One demonstration."""

    def __init__(self, state: Path, corpus: Path | None, domain: str, console: Console) -> None:
        self.state, self.console = state, console
        self.began = time.monotonic()
        self.data = config.load(CONFIG)
        self.config = config.section(self.data, "demo", DemoConfig, CONFIG)
        self.corpus = "" if corpus is None else str(corpus.absolute())
        self.general, self.halves = _files(state, corpus, domain)
        self.domains = sorted({domain for half in self.halves for domain, _ in half})

    def run(self) -> None:
        """From text to summary."""
        base = self._base()
        first = self._configure("base", base, None, self.config.base_steps, [GENERAL])
        with up.stopping() as asked, ExitStack() as stack:
            running = Stack(
                self.state, first, without=("trainer",), say=lambda text: self.console.print(text, markup=False)
            )
            stack.callback(running.stop)
            stack.callback(lambda: self._say("Draining, then the servers stop ..."))
            self._say("Starting nats-server, the object store, Valkey and the services ...")
            running.start()
            asyncio.run(self._play(running, base, first, asked.is_set))

    async def _play(self, running: Stack, base: Path, first: dict[str, Any], asked: Callable[[], bool]) -> None:
        async with connect(self.state) as connection:
            screen = Screen(self, running, connection, asked)
            self._say(
                f"General text goes in, and a base model of {first['base']['config']['num_hidden_layers']} layers is trained on it."
            )
            await self._submit(connection, [(GENERAL, self.general)])
            await screen.train("base", first)
            weights = progress.read(self.state / "runs" / "base")
            assert weights is not None
            second = self._configure(
                "demo",
                base,
                Path(weights.local_checkpoint) / "model.safetensors",
                self.data["trainer"]["steps"],
                [*self.domains, GENERAL],  # replayed, so that it is not forgotten
            )
            self._say(
                f"Domain text goes in: {', '.join(self.domains)}. The second half follows while the model trains on the first."
            )
            await self._submit(connection, self.halves[0])
            await screen.train(
                "demo",
                second,
                after=self.config.second_half_after,
                then=lambda: self._submit(connection, self.halves[1]),
            )
            summary = await self._measure(connection)
        (self.state / "summary.json").write_bytes(msgspec.json.encode(summary))
        show(summary, self.state, self.console)

    def _base(self) -> Path:
        """The vocabulary, made once."""
        base = self.state / "base"
        base.mkdir(exist_ok=True)
        path = base / "vocab.txt"
        if not path.exists():
            self._say("Building a WordPiece vocabulary ...")
            files = self.general + [
                file for half in self.halves for domain, found in half for file in found if self._own(domain)
            ]
            vocabulary.build(vocabulary.texts(files), path, size=self.config.vocabulary_size)
        return path

    def _own(self, domain: str) -> bool:
        """The sample's general text covers its domains; a person's own text may use other characters."""
        return domain not in ("medical", "finance") or not (self.state / "corpus" / "domain-1").exists()

    def _configure(self, run: str, vocab: Path, weights: Path | None, steps: int, domains: list[str]) -> dict[str, Any]:
        data = {key: value for key, value in self.data.items() if key != "demo"}
        data["base"] = data["base"] | {"vocab": str(vocab.absolute())}
        if weights is not None:
            data["base"]["weights"] = str(weights.absolute())
        data["trainer"] = data["trainer"] | {"run": run, "steps": steps, "domains": domains}
        up.check(data, CONFIG)
        path = self.state / f"{run}.yaml"
        path.write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False), encoding="utf-8")
        return data

    async def _submit(self, connection: Connection, parts: list[tuple[str, list[Found]]]) -> None:
        for domain, files in parts:
            async for _ in submit.submit(
                files, domain=domain, text_fields=(), store=connection.store, bus=connection.bus
            ):
                pass

    async def _measure(self, connection: Connection) -> Summary:
        ledger = Ledger(connection.store, connection.bus)
        report = await audit(ledger)
        while report.waiting:
            await asyncio.sleep(0.5)
            report = await audit(ledger)
        self._say("Measuring on text that was held out, before and after ...")
        scores = await evaluate.compare(
            connection, self.state, "demo", [*self.domains, GENERAL], self.config.held_out_rows
        )
        found = progress.read(self.state / "runs" / "demo")
        assert found is not None
        return Summary(
            audit=report,
            scores=scores,
            steps=found.step,
            tokens_per_second=found.tokens / max(found.train_seconds, 1e-9),
            padding=padding(self.state / "runs" / "demo" / "steps.jsonl"),
            seconds=time.monotonic() - self.began,
            checkpoint=found.checkpoint,
            local_checkpoint=found.local_checkpoint,
            corpus=self.corpus,
        )

    def _say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.0f} s[/]  {text}", highlight=False, soft_wrap=True)


class Screen:
    """What a person sees while a run trains: the stages, what waits, and the run's numbers."""

    def __init__(self, demo: Demo, running: Stack, connection: Connection, asked: Callable[[], bool]) -> None:
        self._demo, self._running, self._connection, self._asked = demo, running, connection, asked
        self._ledger = Ledger(connection.store, connection.bus)
        self._last_line = 0.0

    async def train(
        self, run: str, data: dict[str, Any], after: int | None = None, then: Callable[[], Any] | None = None
    ) -> None:
        """Train a run to its end, showing progress; when step ``after`` is done, call ``then`` once.

        Raises:
            KeyboardInterrupt: stop was asked for; the run has saved a checkpoint.
            MindStreamError: the trainer failed.
        """
        folder = self._demo.state / "runs" / run
        before = progress.read(folder)
        if before is not None and before.state == "finished" and before.step >= data["trainer"]["steps"]:
            return
        process = train.start(self._demo.state / f"{run}.yaml", self._demo.state)
        try:
            with Live(console=self._demo.console, refresh_per_second=4, transient=True) as live:
                while process.poll() is None:
                    self._look()
                    found = await status.gather(self._connection, self._ledger, self._demo.state)
                    live.update(
                        Group(status.stage_table(found), *(status.run_line(r) for r in found.runs if r.run == run))
                    )
                    current = next((r for r in found.runs if r.run == run), None)
                    if current is not None:
                        self._plain(current)
                        if then is not None and after is not None and current.step >= after:
                            self._demo._say(f"Step {current.step}: the second half goes in.")
                            await then()
                            then = None
                    await asyncio.sleep(0.3)
        finally:
            end(process)
        if process.returncode:
            log = self._demo.state / "logs" / f"train-{run}.log"
            raise MindStreamError(f"the trainer ended with exit code {process.returncode}; see {log}")
        if then is not None:
            await then()

    def _look(self) -> None:
        self._running.watch()
        if failed := self._running.failed():
            raise MindStreamError("; ".join(failed))
        if self._asked():
            raise KeyboardInterrupt

    def _plain(self, run: progress.Progress) -> None:
        """Without a terminal, a line now and then."""
        quiet = self._demo.console.is_terminal or run.state == "finished"
        if not quiet and time.monotonic() - self._last_line > 5:
            self._last_line = time.monotonic()
            self._demo._say(status.run_line(run))


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a trainer to stop after its update and wait for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(70)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _files(state: Path, corpus: Path | None, domain: str) -> tuple[list[Found], list[list[tuple[str, list[Found]]]]]:
    """General text, and the two halves of the domain text as (domain, files)."""
    own: list[Found] = []
    if corpus is not None:
        if domain == GENERAL:
            raise ConfigError(f"--domain {GENERAL}: this is the name of the demonstration's base text; choose another.")
        own, _ = submit.find([corpus])
        if not own:
            raise InputError(f"nothing to read in {corpus}. Ingest reads {submit.kinds()}.")
    written = sample.write(state / "corpus")
    general = _found(written.paths("general"))
    if own:
        middle = (len(own) + 1) // 2
        return general, [[(domain, own[:middle])], [(domain, own[middle:])]]
    parts = ("domain-1", "domain-2")
    return general, [[(name, _found(written.paths(part, name))) for name in ("medical", "finance")] for part in parts]


def _found(paths: list[Path]) -> list[Found]:
    return [Found(path, path.name, path.stat().st_size) for path in paths]


def padding(steps: Path) -> float:
    """The share of positions in the trained batches that held padding."""
    positions = filled = 0
    done = (msgspec.json.decode(line, type=Stepped) for line in steps.read_bytes().splitlines())
    for step in {step.step: step for step in done}.values():  # an update that was done again counts once
        positions += step.rows * step.length
        filled += step.tokens + 2 * step.rows
    return 1 - filled / positions if positions else 0.0


def show(summary: Summary, state: Path, console: Console) -> None:
    """The summary for a person."""
    report = summary.audit
    table = Table(
        "domain",
        "documents accepted",
        "in rows",
        "dropped",
        "rows",
        "tokens",
        title="What came in",
        title_justify="left",
    )
    for domain, flow in sorted(report.flows.items()):
        table.add_row(
            domain,
            f"{flow.accepted:,}",
            f"{flow.catalogued:,}",
            f"{sum(flow.dropped.values()):,}",
            f"{flow.rows:,}",
            f"{flow.tokens:,}",
        )
    console.print(table)
    reasons: dict[str, int] = {}
    for flow in report.flows.values():
        for reason, number in flow.dropped.items():
            reasons[reason] = reasons.get(reason, 0) + number
    console.print(
        "Dropped: " + (", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items())) or "nothing"),
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"Audit: {'balanced, nothing lost, nothing twice' if balanced(report) else 'NOT BALANCED: ' + '; '.join(report.problems)}; "
        f"{count(report.dead_letters, 'dead letter')}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"Training: {summary.steps} steps on the domain text, {summary.tokens_per_second:,.0f} tokens/s, padding {summary.padding:.1%}; "
        f"all together {summary.seconds:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    console.print(evaluate.table(summary.scores))
    console.print(
        f"Checkpoint (transformers opens it): {summary.local_checkpoint}\n"
        f"                in the object store: {summary.checkpoint}",
        highlight=False,
        soft_wrap=True,
    )
    go_on = command(f"up --config {state / 'demo.yaml'} --set trainer.run=mine --set trainer.domains=null", state)
    console.print(
        "\nYour own text:\n"
        "  make run CORPUS=/path/to/folder DOMAIN=finance        the same on your folder\n"
        f"  {go_on}\n"
        f"  {command('submit PATH --domain D', state)}     in another terminal; then status, audit, eval",
        highlight=False,
        soft_wrap=True,
    )


def _options(corpus: Path | None, domain: str) -> str:
    return f" --corpus {corpus} --domain {domain}" if corpus is not None else ""
