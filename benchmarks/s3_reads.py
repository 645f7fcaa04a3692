"""Workload W on a real S3 server (SeaweedFS) on this machine, and a relay that counts what clients fetch from it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import obstore

from benchmarks.s3_corpus import PUTS_IN_FLIGHT, store_at
from tests.servers import BUCKET, SeaweedFS


@contextmanager
def s3_reads(folders: dict[str, Path]) -> Iterator[SeaweedFS]:
    """Yield a server on which each folder lies under its name: s3://bench/NAME."""
    with SeaweedFS() as server:
        store = store_at(server.endpoint)
        files = [(f"{name}/{file.relative_to(folder).as_posix()}", file)
                 for name, folder in folders.items() for file in sorted(folder.rglob("*")) if file.is_file()]  # fmt: skip
        with ThreadPoolExecutor(PUTS_IN_FLIGHT // 4) as pool:
            list(pool.map(lambda pair: obstore.put(store, pair[0], pair[1].read_bytes()), files))
        yield server


def place_of(name: str) -> str:
    return f"s3://{BUCKET}/{name}"


class CountingRelay:
    """A TCP relay in a thread: passes bytes on as they are, and counts those that come back from the server."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = upstream_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.port = self.received_bytes = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._pass(reader, up_writer, count=False), self._pass(up_reader, writer, count=True))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 18):
                self.received_bytes += len(data) if count else 0
                writer.write(data)
                await writer.drain()
        writer.close()


def folder_bytes(folder: Path, suffixes: Sequence[str] = (".parquet",)) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.suffix in suffixes)
