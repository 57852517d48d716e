"""``mindstream clean --dry-run``: what is shown is what the stage does, and nothing is stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mindstream_cleaning.config import CleaningConfig
from mindstream_cli import clean
from mindstream_cli.main import app
from mindstream_common.errors import ConfigError, InputError
from mindstream_ingest.config import IngestConfig
from typer.testing import CliRunner

RECORDS = [
    {"text": "联系电话13812345678，请拨打。我是高血压患者，可以吃党参吗？"},
    {"html": "<p>高血<b>压</b>患者</p><p>可以吃党参吗？</p>"},
    {"text": "好"},
    {"text": "é«˜è¡€åŽ‹患者可以吃吗"},
    {"text": "联系电话13812345678，请拨打。我是高血压患者，可以吃党参吗？"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "qa.jsonl"
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in RECORDS) + "{bad\n", encoding="utf-8")
    return path


def test_each_rule_with_an_example(file: Path) -> None:
    trial = clean.attempt(file, (), IngestConfig(), CleaningConfig())
    assert (trial.read, trial.kept, trial.unread) == (5, 3, {"malformed": 1})
    rules = trial.rules
    assert [name for name, did in rules.items() if did.touched] == ["encoding", "html", "personal_data"]
    assert rules["encoding"].change == clean.Example(
        source="qa.jsonl#4", before="é«˜è¡€åŽ‹患者可以吃吗", after="高血压患者可以吃吗"
    )
    assert rules["html"].change is not None
    assert rules["html"].change.after == "高血压患者⏎可以吃党参吗？"
    assert rules["personal_data"].counted == {"masked_mobile": 2}
    assert rules["length"].dropped == {"too_short": 1}
    assert rules["length"].drop is not None
    assert rules["length"].drop.before == "好"
    assert rules["length"].drop.after.startswith("dropped: too_short (1 letters and digits")
    assert rules["duplicates"].dropped == {"exact_duplicate": 1}


def test_a_late_change_is_shown_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("高血压患者" * 15 + "电话13812345678。", encoding="utf-8")
    change = clean.attempt(path, (), IngestConfig(), CleaningConfig()).rules["personal_data"].change
    assert change is not None
    assert change.before.startswith("…")
    assert change.before.endswith("电话13812345678。")
    assert change.after.endswith("电话[手机号]。")


def test_the_configuration_counts(file: Path) -> None:
    config = CleaningConfig(rules=("length", "html"), exact_duplicates=False)
    trial = clean.attempt(file, (), IngestConfig(), config)
    assert list(trial.rules) == ["length", "html"]
    assert (trial.kept, trial.rules["length"].dropped) == (4, {"too_short": 1})


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match="no column"):
        clean.attempt(path, (), IngestConfig(), CleaningConfig())
    with pytest.raises(InputError, match="is a folder"):
        clean.attempt(tmp_path, (), IngestConfig(), CleaningConfig())


def test_command(file: Path) -> None:
    result = CliRunner().invoke(app, ["clean", "--dry-run", str(file), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rules"]["personal_data"]["touched"] == 2
    shown = CliRunner().invoke(app, ["clean", "--dry-run", str(file), "--set", "cleaning.personal_data.mobile=drop"])
    assert "personal_data 2" in " ".join(shown.stdout.split())
    assert "Nothing was stored" in shown.stdout
    assert list(file.parent.iterdir()) == [file]


def test_without_the_flag_it_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="add --dry-run"):
        clean.need_dry_run(False)
    assert CliRunner().invoke(app, ["clean", str(file)]).exit_code == 2
