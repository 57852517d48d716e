"""``python -m mindstream_common.forget``: list the dedup claims' namespaces, or delete one that is no longer used.

Claims have no expiry. When ``pipeline.generation`` was raised, or a new version compares in another way, the namespace
before it only takes memory. Deleting one that is in use forgets every text that was seen; nothing else is lost.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import valkey
from valkey.cluster import ValkeyCluster

from mindstream_common.claims import tag
from mindstream_common.errors import InputError
from mindstream_common.settings import from_environment

STEP = 1000  # keys looked at, or deleted, in one call: the server answers workers in between


def connect(url: str) -> Any:
    """A client of the server, or of the cluster that it belongs to."""
    client = valkey.Valkey.from_url(url)
    if not client.info("cluster").get("cluster_enabled"):
        return client
    client.close()
    return ValkeyCluster.from_url(url)


def namespaces(client: Any) -> Iterator[tuple[str, str]]:
    """(hash tag, what it is in words) of every namespace that compares texts."""
    for key in client.scan_iter("{*}:n", count=STEP):
        words = client.get(key)
        if words is not None:
            yield key.decode()[1:-3], words.decode()


def forget(client: Any, namespace: str) -> int:
    """Delete a namespace's keys, its name last. Returns how many there were.

    Raises:
        InputError: no namespace has this hash tag.
    """
    name = f"{tag(namespace)}:n"
    if not client.exists(name):
        known = ", ".join(sorted(found for found, _ in namespaces(client))) or "there is none"
        raise InputError(f"no namespace is called {namespace!r}. Those that there are: {known}.")
    deleted, keys = 0, []
    for key in client.scan_iter(f"{tag(namespace)}:*", count=STEP):
        if key != name.encode():
            keys.append(key)
        if len(keys) == STEP:
            deleted += client.unlink(*keys)
            keys.clear()
    deleted += client.unlink(*keys) if keys else 0
    return int(deleted + client.unlink(name))


def main(arguments: list[str] | None = None) -> str:
    """What is printed."""
    parser = argparse.ArgumentParser(prog="python -m mindstream_common.forget", description=__doc__)
    parser.add_argument("namespace", nargs="?", help="the 8 digits of the namespace to delete; without it, list them")
    namespace = parser.parse_args(arguments).namespace
    client = connect(from_environment().valkey_url)
    try:
        if namespace:
            return f"deleted {forget(client, namespace)} keys of {namespace}"
        return "\n".join(f"{found}  {words}" for found, words in sorted(namespaces(client)))
    finally:
        client.close()


if __name__ == "__main__":
    print(main())  # noqa: T201
