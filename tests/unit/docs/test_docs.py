"""The documents keep up with the code: every key, metric and environment variable is in them, and every path exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mindstream_cli.up import SECTIONS
from mindstream_common import metrics
from mindstream_common.settings import Settings
from mindstream_ingest import http as ingest_http
from mindstream_trainer import training_metrics
from mindstream_trainer.config import BaseConfig
from prometheus_client.metrics import MetricWrapperBase

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def keys(type: Any) -> set[str]:
    """Every key of a section; those of a section inside it are ``outer.inner``."""
    found = set()
    for field in msgspec.structs.fields(type):
        if isinstance(field.type, msgspec.Struct.__class__):
            found |= {f"{field.encode_name}.{inner}" for inner in keys(field.type)}
        else:
            found.add(field.encode_name)
    return found


@pytest.mark.parametrize("section", [*SECTIONS, "base"])
def test_every_key_is_documented(section: str) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    part = re.search(rf"^## `{section}`\n(.*?)(?=^## |\Z)", page, re.S | re.M)
    assert part is not None
    documented = set(re.findall(r"^\| `([\w.]+)` \|", part[1], re.M))
    assert documented == keys(SECTIONS.get(section, BaseConfig))


def test_every_environment_variable_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for field in msgspec.structs.fields(Settings):
        assert f"`MINDSTREAM_{field.name.upper()}`" in page


def test_every_metric_is_documented() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(mindstream_\w+)` \| \w+ \| ([^|]*) \|", page, re.M))
    found = {}
    for module in (metrics, ingest_http, training_metrics):
        for metric in vars(module).values():
            if isinstance(metric, MetricWrapperBase):
                description = next(iter(metric.describe()))
                suffix = "_total" if description.type == "counter" else ""
                found[description.name + suffix] = ", ".join(metric._labelnames)
    assert documented == found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not link.startswith("http")]
    paths = re.findall(r"`((?:tests|services|libs|configs|docs|deploy|proto)/[\w/.\-]+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    example = "services/language/"  # the stage that CONTRIBUTING adds
    missing += [path for path in paths if not (ROOT / path).exists() and not path.startswith(example)]
    assert not missing
