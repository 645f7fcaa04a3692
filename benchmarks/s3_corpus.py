"""The corpus as objects on a real S3 server (SeaweedFS) on this machine, for as long as a benchmark needs it.

    python -m benchmarks s3_corpus full 20k      start, upload, say how to use it, and stay until interrupted

A benchmark that finds S3_CORPUS=s3://bucket (and the AWS_* variables) uses that; else it starts a server of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.store import S3Store

from benchmarks.bench import Bench, bench_of, parser
from tests.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, SeaweedFS

PUTS_IN_FLIGHT = 32


@contextmanager
def s3_corpus(bench: Bench, parts: Sequence[str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the URI under which the parts lie (URI/PART/good/...) and the variables that a client needs."""
    if "S3_CORPUS" in os.environ:
        yield os.environ["S3_CORPUS"], {}
        return
    with SeaweedFS() as server:
        for part in parts:
            upload(server.endpoint, bench.documents(part), f"{part}/good")
        yield f"s3://{BUCKET}", server.env


def upload(endpoint: str, folder: Path, prefix: str) -> int:
    """Put every JSON file of a folder; return their number."""
    store = store_at(endpoint)
    files = sorted(folder.rglob("*.json"))
    begun = time.monotonic()

    def put(file: Path) -> None:
        obstore.put(store, f"{prefix}/{file.relative_to(folder).as_posix()}", file.read_bytes(), use_multipart=False)

    with ThreadPoolExecutor(PUTS_IN_FLIGHT) as pool:
        for _ in pool.map(put, files, chunksize=64):
            pass
    print(f"{len(files)} objects put in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return len(files)


def store_at(endpoint: str) -> S3Store:
    """Return a bare client, with nothing of shardprep in it."""
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region=REGION,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("parts", nargs="*", default=["20k"])
    options = flags.parse_args(arguments)
    with s3_corpus(bench_of(options), options.parts) as (uri, env):
        print("\n".join(f"export {name}={value}" for name, value in {"S3_CORPUS": uri, **env}.items()), flush=True)
        while True:
            time.sleep(3600)
