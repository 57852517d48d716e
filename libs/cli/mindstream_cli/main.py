"""The ``mindstream`` command. Each command is thin: it reads its flags and calls a module that does the work."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from mindstream_common.errors import MindStreamError
from rich.console import Console

HERE = Path(".mindstream")
app = typer.Typer(
    name="mindstream",
    help="Keep a language model learning from text that never stops arriving.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
console = Console()
errors = Console(stderr=True)

State = Annotated[Path, typer.Option("--state", help="The local stack's folder.", envvar="MINDSTREAM_STATE")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def told(command: Callable[..., Any]) -> Callable[..., Any]:
    """A user's mistake is one message and exit code 2, never a traceback; Ctrl-C is 130."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except MindStreamError as error:
            errors.print(f"[bold red]error:[/] {_plain(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(2) from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            errors.print(
                f"[bold red]error:[/] {_plain(place)}{error.strerror or error}. Check the disk's room and the permissions.",
                soft_wrap=True,
                highlight=False,
            )
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            errors.print("stopped")
            raise typer.Exit(130) from None

    return call


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


@app.command(
    epilog="Example: `mindstream demo`, or on your own texts: `mindstream demo --corpus ~/reports --domain finance`"
)
@told
def demo(
    corpus: Annotated[
        Path | None, typer.Option(help="A folder of your own text instead of the sample's domain text.")
    ] = None,
    domain: Annotated[str, typer.Option(help="What your text is about; letters, digits, - and _.")] = "own",
    state: State = HERE / "demo",
    anew: Annotated[bool, typer.Option("--anew", help="Forget an earlier demonstration and begin again.")] = False,
) -> None:
    """Servers, five services, a small base model, domain text that streams in while it trains, and a checkpoint."""
    from mindstream_cli import demo as module

    module.run(state=state, corpus=corpus, domain=domain, anew=anew, console=console)


@app.command(
    epilog="Examples: `mindstream up --config configs/local.yaml --set base.vocab=vocab.txt` · "
    "`mindstream up --scale cleaning=2 --scale tokenizer=2` · Ctrl-C drains and stops."
)
@told
def up(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="The run's file (default: what this state ran last, else configs/local.yaml)."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value on top of the file; repeatable.")
    ] = None,
    scale: Annotated[list[str] | None, typer.Option("--scale", help="SERVICE=NUMBER of processes; repeatable.")] = None,
    state: State = HERE,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Go on in the background; `mindstream down` stops it.")
    ] = False,
) -> None:
    """Start the local stack: nats-server, object store, Valkey and the five services, all on 127.0.0.1."""
    from mindstream_cli import up as module

    if detach:
        module.detach(module.file_of(config, state), settings or [], scale or [], state, console)
    else:
        module.run(module.file_of(config, state), settings or [], scale or [], state, console)


@app.command(epilog="Examples: `mindstream down` · `mindstream down --erase`")
@told
def down(
    state: State = HERE,
    erase: Annotated[
        bool, typer.Option("--erase", help="Also delete the state folder: all shards and checkpoints.")
    ] = False,
) -> None:
    """Stop a stack that runs in the background: drain the services, then stop the servers."""
    from mindstream_cli import up as module

    module.down(state, erase, console)


@app.command(
    epilog="Examples: `mindstream submit reports/ notes.txt --domain finance` · "
    "`mindstream submit qa.csv --domain medical --text-field ask --text-field answer` · "
    "`mindstream submit qa.jsonl --domain medical --template '问：{ask}\\n答：{answer}'` · "
    "`mindstream submit inbox/ --domain news --watch`"
)
@told
def submit(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files and folders: .txt .md .html .jsonl .json .csv .tsv .parquet .warc .pdf .docx .tar .zip, also .gz and .zst."
        ),
    ],
    domain: Annotated[str, typer.Option("--domain", help="What the text is about: finance, medical, general, ...")],
    text_field: Annotated[
        list[str] | None,
        typer.Option(
            "--text-field", help="Field of a record that holds text; repeatable, joined by newlines in order."
        ),
    ] = None,
    template: Annotated[
        str, typer.Option("--template", help="How a record's fields are joined: '{ask}\\n{answer}'; {{ is a brace.")
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep watching: a file is taken when it has stopped growing.")
    ] = False,
    state: State = HERE,
) -> None:
    """Hand text over: when this returns, it is stored and will be cleaned, tokenized and trained on."""
    from mindstream_cli import submit as module

    module.run(paths, domain, tuple(text_field or ()), watch, state, console, template)


@app.command(epilog="Examples: `mindstream status` · `mindstream status --json`")
@told
def status(state: State = HERE, as_json: AsJson = False) -> None:
    """What each stage has done and what waits, dead letters, the catalog, and the runs."""
    from mindstream_cli import status as module

    found = asyncio.run(module.collect(state))
    if as_json:
        sys.stdout.write(module.encode(found) + "\n")
    else:
        module.show(found, console)


@app.command(epilog="Exit code 1 when the numbers do not balance. Example: `mindstream audit --wait 60`")
@told
def audit(
    state: State = HERE,
    as_json: AsJson = False,
    wait: Annotated[float, typer.Option(help="Wait up to this many seconds until nothing is under way.")] = 0.0,
) -> None:
    """Prove that every document is in exactly one place: catalogued, dropped with a reason, or a dead letter."""
    from mindstream_cli import audit_report

    raise typer.Exit(asyncio.run(audit_report.run(state, as_json, wait, console)))


@app.command(
    epilog="Examples: `mindstream train --config configs/local.yaml --set trainer.run=second --set trainer.steps=500` · "
    "`mindstream train -c configs/local.yaml --replay-of default --set trainer.run=again`"
)
@told
def train(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The run's file (default: the one the stack runs).")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value on top of the file; repeatable.")
    ] = None,
    replay_of: Annotated[
        str | None, typer.Option(help="Train on exactly what that run was trained on, from its journal.")
    ] = None,
    state: State = HERE,
) -> None:
    """Train a run here, in the foreground, from the catalog of the running stack. A second call continues it."""
    from mindstream_cli import train as module

    raise typer.Exit(module.run(config, settings or [], replay_of, state, console))


@app.command(name="eval", epilog="Example: `mindstream eval --run default --domain medical --domain general`")
@told
def evaluate(
    run: Annotated[str, typer.Option(help="The run whose newest checkpoint is measured.")] = "default",
    domain: Annotated[
        list[str] | None, typer.Option("--domain", help="Held-out rows of these domains; repeatable (default: all).")
    ] = None,
    rows: Annotated[int, typer.Option(help="At most this many held-out rows per domain.")] = 256,
    state: State = HERE,
    as_json: AsJson = False,
) -> None:
    """Masked-LM loss and accuracy on text that was held out: before training and now."""
    from mindstream_cli import evaluate as module

    module.run(run, domain or None, rows, state, as_json, console)


dead_app = typer.Typer(help="Events that could not be worked on: list, show, retry.", no_args_is_help=True)
app.add_typer(dead_app, name="dead")


@dead_app.command("list", epilog="Examples: `mindstream dead list` · `mindstream dead list --json`")
@told
def dead_list(state: State = HERE, as_json: AsJson = False) -> None:
    """The dead letters: number, stage, domain, attempts, and why."""
    from mindstream_cli import dead as module

    asyncio.run(module.list_letters(state, as_json, console))


@dead_app.command("show", epilog="Example: `mindstream dead show 3`")
@told
def dead_show(
    number: Annotated[int, typer.Argument(help="The number that `dead list` shows.")], state: State = HERE
) -> None:
    """One dead letter: its event and its whole error."""
    from mindstream_cli import dead as module

    asyncio.run(module.show_letter(state, number, console))


@dead_app.command(
    "retry",
    epilog="Examples: `mindstream dead retry 3 4` · `mindstream dead retry --stage cleaning` · `mindstream dead retry`",
)
@told
def dead_retry(
    numbers: Annotated[list[int] | None, typer.Argument(help="Numbers that `dead list` shows (default: all).")] = None,
    stage: Annotated[str | None, typer.Option(help="Only those of this stage.")] = None,
    state: State = HERE,
) -> None:
    """Put dead letters back into their stage's queue. Safe to repeat."""
    from mindstream_cli import dead as module

    asyncio.run(module.retry(state, numbers or None, stage, console))


@app.command(
    epilog="Examples: `mindstream clean --dry-run pages.jsonl` · "
    "`mindstream clean --dry-run qa.csv -c configs/local.yaml --set cleaning.personal_data.strict=true`"
)
@told
def clean(
    file: Annotated[Path, typer.Argument(help="A file of a kind that ingest reads.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what each rule would do; store nothing.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The run's file (default: every rule as it comes).")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value on top of the file; repeatable.")
    ] = None,
    text_field: Annotated[
        list[str] | None, typer.Option("--text-field", help="Field of a record that holds text; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """See what each rule of cleaning would do to a file, before it is submitted."""
    from mindstream_cli import clean as module

    module.need_dry_run(dry_run)
    module.run(file, config, settings or [], tuple(text_field or ()), as_json, console)


drops_app = typer.Typer(help="Documents that were dropped: how many and why, the documents, and sending them in again.")
app.add_typer(drops_app, name="drops")

Reason = Annotated[str, typer.Option("--reason", help="Only those dropped for this reason, such as near_duplicate.")]
OfDomain = Annotated[str, typer.Option("--domain", help="Only those of this domain.")]
TheDocument = Annotated[str, typer.Option("--document", help="Only the document with this id.")]


@drops_app.callback(
    invoke_without_command=True,
    epilog="Examples: `mindstream drops` · `mindstream drops --reason near_duplicate --domain medical --show 5`",
)
@told
def drops(
    context: typer.Context,
    reason: Reason = "",
    domain: OfDomain = "",
    document: TheDocument = "",
    show: Annotated[int, typer.Option("--show", min=0, help="Show so many of the documents.")] = 0,
    state: State = HERE,
    as_json: AsJson = False,
) -> None:
    """Documents that were dropped: how many and why, and the documents themselves."""
    if context.invoked_subcommand is not None:
        return
    from mindstream_cli import drops as module

    selection = module.Selection(reason=reason, domain=domain, document=document)
    asyncio.run(module.run(state, selection, show, as_json, console))


@drops_app.command(
    "restore",
    epilog="Examples: `mindstream drops restore --document ID` · "
    "`mindstream drops restore --reason too_short --domain medical --limit 100`",
)
@told
def drops_restore(
    reason: Reason = "",
    domain: OfDomain = "",
    document: TheDocument = "",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    state: State = HERE,
) -> None:
    """Send dropped documents in again; cleaning does not drop them for the same reason again. Safe to repeat."""
    from mindstream_cli import drops as module
    from mindstream_cli import restore

    restore.need_choice(reason, document)
    selection = module.Selection(reason=reason, domain=domain, document=document)
    asyncio.run(restore.run(state, selection, limit, console))


if __name__ == "__main__":
    app(prog_name=os.environ.get("MINDSTREAM_PROG", "mindstream"))
