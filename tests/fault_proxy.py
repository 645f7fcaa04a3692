"""An HTTP proxy that makes an S3 server misbehave on purpose, and counts what passes.

It reads request heads and forwards them unchanged (the client's Host stays, so signatures still verify). In a thread:

    with FaultProxy(upstream_port) as proxy:
        proxy.set_rules([{"kind": "slowdown", "every": 3, "first": 2}])
        ...  proxy.endpoint ...
        proxy.counts()["requests"]["GET"]

or as a program of its own: `python fault_proxy.py LISTEN_PORT UPSTREAM_PORT`, steered by GET /__faults?rules=JSON.

A rule is a dict. Which requests: method, match (text in the path), key (the path ends with it), p (chance, 0-1), first
(only the first N tries of each method and path), every (only each N-th distinct method and path), times (N times in all).
What happens, by `kind`:
    slowdown   503 SlowDown              error      any `status` and `code`
    reset      the connection is reset   reset_after  the reset comes after `share` of the answer's body
    truncate   half the body, then close stall / delay  wait `delay` seconds, then go on
    expired    403 ExpiredToken          redirect   301 PermanentRedirect with x-amz-bucket-region: `region`,
    require    403 unless the header `header` is there (value `value`)   unless the signature is for that region
    hold       wait until other rules are set
    lost_answer  the request is passed on, its answer is thrown away and the connection reset
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import sys
import threading
import urllib.parse
from typing import Any, Self

CODES = {"slowdown": (503, "SlowDown"), "expired": (403, "ExpiredToken"), "require": (403, "AccessDenied")}
BUFFER_BYTES = 65_536


class Faults:
    """The rules, and what was counted; one per proxy, used in its event loop only."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.set([])

    def set(self, rules: list[dict[str, Any]]) -> None:
        self.rules = rules
        self.tries: dict[tuple[int, str, str], int] = {}
        self.hits = [0] * len(rules)
        self.requests: dict[str, int] = {}
        self.now = self.most = 0
        self.log: list[tuple[str, str]] = []

    def report(self) -> dict[str, Any]:
        """Requests by verb (LIST apart from GET), faults by kind, most requests in flight, and rejected ones."""
        faults: dict[str, int] = {}
        for rule, hits in zip(self.rules, self.hits, strict=True):
            faults[rule["kind"]] = faults.get(rule["kind"], 0) + hits
        return {"requests": dict(self.requests), "faults": faults, "most_in_flight": self.most}

    def pick(self, method: str, path: str, head: bytes) -> dict[str, Any] | None:
        for number, rule in enumerate(self.rules):
            if rule.get("method", method) not in (method, _verb(method, path)) or rule.get("match", "") not in path:
                continue
            if "key" in rule and not path.split("?", maxsplit=1)[0].endswith(rule["key"]):
                continue
            if not self._has_turn(number, rule, method, path) or self.rng.random() >= rule.get("p", 1):
                continue
            if rule["kind"] == "require" and _header(head, rule["header"]) == rule.get("value", "requester"):
                continue
            if rule["kind"] == "redirect" and f"/{rule['region']}/s3/".encode() in head:
                continue
            if self.hits[number] >= rule.get("times", float("inf")):
                continue
            self.hits[number] += 1
            return rule
        return None

    def _has_turn(self, number: int, rule: dict[str, Any], method: str, path: str) -> bool:
        place = (number, method, path)
        if place not in self.tries:
            self.tries[place] = 0
            if "every" in rule and sum(1 for at in self.tries if at[0] == number) % rule["every"]:
                self.tries[place] = 1 << 60  # not one of those that fail
        self.tries[place] += 1
        return self.tries[place] <= rule.get("first", 1 << 59)


def _verb(method: str, path: str) -> str:
    return "LIST" if method == "GET" and ("list-type=" in path or "?prefix=" in path) else method


def _header(head: bytes, name: str) -> str | None:
    found = re.search(rb"\r\n" + re.escape(name.encode()) + rb":[ \t]*([^\r\n]*)", head, re.IGNORECASE)
    return found[1].decode("latin-1") if found else None


def _length(head: bytes) -> int:
    return int(_header(head, "content-length") or 0)


async def _copy_body(
    head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, most: int | None = None
) -> None:
    if "chunked" in (_header(head, "transfer-encoding") or "").lower():
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            chunk = await reader.readexactly(size + 2)
            if writer is not None:
                writer.write(line + chunk)
                await writer.drain()
            if not size:
                return
    left = _length(head) if most is None else min(most, _length(head))
    while left:
        data = await reader.read(min(left, BUFFER_BYTES))
        if not data:
            raise ConnectionError
        left -= len(data)
        if writer is not None:
            writer.write(data)
            await writer.drain()


class _Connection:
    """One client's connection and its own one to the server behind."""

    def __init__(
        self, faults: Faults, upstream: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.faults, self.upstream, self.reader, self.writer = faults, upstream, reader, writer
        self.up_reader: asyncio.StreamReader | None = None
        self.up_writer: asyncio.StreamWriter | None = None

    async def serve(self) -> None:
        try:
            while True:
                head = await self.reader.readuntil(b"\r\n\r\n")
                method, path = (part.decode("latin-1") for part in head.split(b" ", 2)[:2])
                if path.startswith("/__faults"):
                    self.steer(path)
                    continue
                verb = _verb(method, path)
                self.faults.requests[verb] = self.faults.requests.get(verb, 0) + 1
                self.faults.log.append((verb, path))
                self.faults.now += 1
                self.faults.most = max(self.faults.most, self.faults.now)
                try:
                    if not await self.answer(method, path, head):
                        return
                finally:
                    self.faults.now -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for writer in (self.writer, self.up_writer):
                if writer is not None:
                    writer.close()

    def steer(self, path: str) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        if "rules" in query:
            self.faults.set(json.loads(query["rules"][0]))
        body = json.dumps(self.faults.report()).encode()
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def reset(self) -> bool:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        return False

    async def refuse(self, method: str, path: str, head: bytes, rule: dict[str, Any]) -> bool:
        if _header(head, "expect"):
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await _copy_body(head, self.reader, None)
        status, code = CODES.get(rule["kind"], (rule.get("status", 301), rule.get("code", "PermanentRedirect")))
        body = (
            f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>made by the fault proxy</Message>'
            f"<Resource>{urllib.parse.quote(path)}</Resource></Error>"
        ).encode()
        extra = f"x-amz-bucket-region: {rule['region']}\r\n" if "region" in rule else ""
        self.writer.write(
            f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode()
        )
        if method != "HEAD":
            self.writer.write(body)
        await self.writer.drain()
        return True

    async def answer(self, method: str, path: str, head: bytes) -> bool:
        """Answer one request; return whether the connection goes on."""
        rule = self.faults.pick(method, path, head)
        kind = rule["kind"] if rule else ""
        if kind == "reset":
            return self.reset()
        if rule and kind in ("slowdown", "error", "expired", "require", "redirect"):
            return await self.refuse(method, path, head, rule)
        if rule and kind in ("delay", "stall"):
            await asyncio.sleep(rule.get("delay", 1))
        while kind == "hold" and any(rule is one for one in self.faults.rules):  # noqa: ASYNC110  set from another loop's thread
            await asyncio.sleep(0.02)
        if self.up_writer is None or self.up_reader is None or self.up_reader.at_eof():
            self.up_reader, self.up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        self.up_writer.write(head)
        if _header(head, "expect"):
            await self.continued()
        await _copy_body(head, self.reader, self.up_writer)
        await self.up_writer.drain()
        back = await self.up_reader.readuntil(b"\r\n\r\n")
        if b" 100 " in back.split(b"\r\n")[0]:
            back = await self.up_reader.readuntil(b"\r\n\r\n")
        if kind == "lost_answer":
            return self.reset()
        has_body = method != "HEAD" and not re.match(rb"HTTP/1.1 (204|304)", back)
        self.writer.write(back)
        if rule and has_body and kind in ("truncate", "reset_after"):
            await _copy_body(back, self.up_reader, self.writer, int(_length(back) * rule.get("share", 0.5)))
            if kind == "reset_after":
                return self.reset()
            return False
        if has_body:
            await _copy_body(back, self.up_reader, self.writer)
        await self.writer.drain()
        return True

    async def continued(self) -> None:
        assert self.up_reader is not None
        with contextlib.suppress(asyncio.TimeoutError):
            self.writer.write(await asyncio.wait_for(self.up_reader.readuntil(b"\r\n\r\n"), 5))


class FaultProxy:
    """The proxy in a thread of this process; `endpoint` is what clients get."""

    def __init__(self, upstream_port: int, *, seed: int = 0) -> None:
        self._upstream = upstream_port
        self._faults = Faults(seed)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._is_ready = threading.Event()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_ready.wait(300), "the fault proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set_rules(self, rules: list[dict[str, Any]]) -> None:
        """Replace the rules, and set all counts to zero."""
        self._in_loop(lambda: self._faults.set(rules))

    def counts(self) -> dict[str, Any]:
        """Return {"requests": by verb, "faults": by kind, "most_in_flight": n} since the rules were set."""
        return self._in_loop(self._faults.report)

    def log(self) -> list[tuple[str, str]]:
        """Return (verb, path) of every request since the rules were set."""
        return self._in_loop(lambda: list(self._faults.log))

    def _in_loop(self, call: Any) -> Any:
        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(120)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(_listen(self._faults, self._upstream, 0, self._tasks))
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0.01))  # connections accepted just now: their tasks must have begun
        while left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


async def _listen(faults: Faults, upstream: int, port: int, tasks: set[asyncio.Task[None]]) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _Connection(faults, upstream, reader, writer).serve()
        finally:
            tasks.discard(task)

    return await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20, backlog=1024)


async def _main(port: int, upstream: int) -> None:
    server = await _listen(Faults(), upstream, port, set())
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
