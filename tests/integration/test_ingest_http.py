"""Posts to the real service, which is killed again and again: every 202 is in the audit, and nothing is there twice."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from ingest_stack import config, text
from local import Local, local
from mindstream_cli.audit_report import balanced
from mindstream_cli.servers import free
from mindstream_common.documents import read
from mindstream_common.store import S3Store

pytestmark = [pytest.mark.servers]
TOKEN = "a-token-of-this-test"
POSTS = 240
KILLS = 4


def post(client: httpx.Client, url: str, number: int) -> int:
    """Send one document until it is answered 202; returns the number of attempts."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": f"post-{number}"}
    deadline = time.monotonic() + 40
    attempt = 0
    while True:
        attempt += 1
        try:
            answer = client.post(url, params={"domain": "medical"}, headers=headers, json={"text": text(number)})
            if answer.status_code == 202:
                return attempt
            assert answer.status_code == 503, (number, attempt, answer.text)
        except httpx.TransportError:
            pass  # it was just killed
        assert time.monotonic() < deadline, number
        time.sleep(0.1)


@pytest.mark.chaos
def test_every_202_is_in_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDSTREAM_INGEST_TOKEN", TOKEN)
    port = next(port for port in range(31000, 32000) if free(port))
    with local(tmp_path / "state", config(tmp_path, http={"port": port}), without=("trainer",)) as stack:
        url = f"http://127.0.0.1:{port}/v1/documents"
        with httpx.Client(trust_env=False, timeout=20) as client, ThreadPoolExecutor(8) as pool:
            posts = [pool.submit(post, client, url, number) for number in range(POSTS)]
            for kill in range(1, KILLS + 1):
                while sum(each.done() for each in posts) < kill * POSTS // (KILLS + 2):
                    time.sleep(0.01)
                stack.kill("ingest")
            try:
                attempts = [each.result() for each in posts]
            finally:
                pool.shutdown(cancel_futures=True)
            assert max(attempts) > 1  # some were in hand when it died
            again = client.post(
                url,
                params={"domain": "medical"},
                headers={"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": "post-0"},
                json={"text": "another text"},
            )
            assert again.status_code == 409
        report = stack.settled(POSTS)
        assert balanced(report), report
        assert stack.child("ingest").restarts >= KILLS
        assert sum(flow.accepted for flow in report.flows.values()) == POSTS
        assert report.dead_letters == 0
        assert sorted(raw_texts(stack, tmp_path)) == sorted(text(number) for number in range(POSTS))
        for log in (tmp_path / "state" / "logs").iterdir():
            assert TOKEN not in log.read_text(encoding="utf-8", errors="replace"), log


def raw_texts(stack: Local, folder: Path) -> list[str]:
    """The text of every document in every raw shard."""
    from mindstream_cli.servers import settings

    store = S3Store.from_environment(settings(stack.state))
    found = []
    for key, _ in store.list("shards/raw/"):
        if key.endswith(".parquet"):
            path = folder / "raw.parquet"
            path.write_bytes(store.get_bytes(key))
            found += [document.text for document in read(path)]
    store.close()
    return found
