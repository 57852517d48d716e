"""Counters are there at 0 before anything happens, and the three pages answer over real HTTP."""

from __future__ import annotations

import http.client
import re
import urllib.request

import pytest
from mindstream_common import metrics
from mindstream_common.stage import Counts
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(stage: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a scrape shows of one stage."""
    everything = samples(generate_latest(REGISTRY).decode())
    return {key: value for key, value in everything.items() if ("stage", stage) in key[1]}


def test_counters_are_at_zero_from_the_start() -> None:
    assert scraped("new-stage") == {}
    metrics.at_zero("new-stage")
    found = {key: value for key, value in scraped("new-stage").items() if not key[0].endswith("_created")}
    for outcome in ("done", "repeated", "retried", "dead"):
        assert found["mindstream_shards_total", (("outcome", outcome), ("stage", "new-stage"))] == 0
    for name in ("back_pressure_total", "waiting_shards", "working_shards", "bus_connected", "shard_seconds_count"):
        assert found[f"mindstream_{name}", (("stage", "new-stage"),)] == 0
    assert set(found.values()) == {0.0}


def test_a_shards_counts_are_added_with_their_labels() -> None:
    counts = Counts(documents_in=10, documents_out=7, dropped={"empty": 1, "too_short": 2}, bytes_in=100, bytes_out=70)
    for _ in range(2):
        metrics.count("counted", "medical", counts)
    found = scraped("counted")
    of = (("domain", "medical"), ("stage", "counted"))
    assert found["mindstream_documents_in_total", of] == 20
    assert found["mindstream_documents_out_total", of] == 14
    assert found["mindstream_bytes_in_total", of] == 200
    assert found["mindstream_bytes_out_total", of] == 140
    dropped = (("domain", "medical"), ("reason", "too_short"), ("stage", "counted"))
    assert found["mindstream_documents_dropped_total", dropped] == 4


def test_names_follow_the_template() -> None:
    names = [family.name for family in REGISTRY.collect() if family.name.startswith("mindstream_")]
    assert names
    for name in names:
        assert re.fullmatch(r"mindstream_[a-z]+(_[a-z]+)*", name), name


def get(port: int, path: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("content-type", ""), answer.read().decode()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def reason() -> list[str]:
    """Why the served process is not ready; empty text: it is."""
    return [""]


@pytest.fixture(scope="module")
def port(reason: list[str]) -> int:
    """Where the three pages are served."""
    return metrics.serve(host="127.0.0.1", port=0, ready=lambda: reason[0])


def test_healthz(port: int) -> None:
    assert get(port, "/healthz")[::2] == (200, '{"status":"alive"}')


def test_readyz_says_why_not(port: int, reason: list[str]) -> None:
    reason[0] = "the bus is away"
    assert get(port, "/readyz")[::2] == (503, '{"status":"the bus is away"}')
    reason[0] = ""
    assert get(port, "/readyz")[::2] == (200, '{"status":"ready"}')


def test_metrics_page(port: int) -> None:
    """Without a redirect: not every scraper follows one."""
    metrics.at_zero("served")
    status, kind, text = get(port, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert samples(text)["mindstream_shards_total", (("outcome", "dead"), ("stage", "served"))] == 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert answer.status == 200


def test_other_pages_are_not_found(port: int) -> None:
    assert get(port, "/")[0] == 404
