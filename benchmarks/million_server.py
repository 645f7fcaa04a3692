"""An S3 server for listings only: N keys that exist nowhere, listed page by page as ListObjectsV2 does.

    python -m benchmarks.million_server PORT OBJECTS

Keys are raw/000/0000.json, raw/000/0001.json ...: 1,000 a folder. It knows prefix, delimiter, start-after,
continuation-token and max-keys, and answers every GET with one small document. Signatures are not looked at.
"""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.parse
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

BODY = b'{"id": "one", "text": "A document of the listing that was made for the test.", "label": 1}'
PAGE = 1000
LAST = chr(0x10FFFF)
ITEM = (
    "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    '<ETag>"d41d8cd98f00b204e9800998ecf8427e"</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>'
)


def keys_of(objects: int) -> list[str]:
    """Return the keys in their order."""
    return sorted(f"raw/{i // 1000:04d}/{i % 1000:04d}.json" for i in range(objects))


def entries(keys: list[str], prefix: str, delimiter: str, after: str) -> Iterator[tuple[str, bool]]:
    """Yield (key or common prefix, whether it is a prefix) behind `after`, in order."""
    place = max(bisect_left(keys, prefix), bisect_right(keys, after))
    while place < len(keys) and keys[place].startswith(prefix):
        key = keys[place]
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            yield key, False
            place += 1
        else:
            folder = key[: cut + len(delimiter)]
            yield folder, True
            place = bisect_left(keys, folder + LAST, place)


def page(keys: list[str], query: dict[str, str]) -> bytes:
    """Return the answer to one ListObjectsV2 request."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    wanted = min(int(query.get("max-keys", PAGE)), PAGE)
    found, more = [], False
    for entry in entries(keys, prefix, delimiter, after):
        if len(found) == wanted:
            more = True
            break
        found.append(entry)
    parts = ['<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">']
    parts.append(f"<Name>bench</Name><Prefix>{prefix}</Prefix><KeyCount>{len(found)}</KeyCount>")
    parts.append(f"<MaxKeys>{wanted}</MaxKeys><IsTruncated>{'true' if more else 'false'}</IsTruncated>")
    if more:
        last, is_folder = found[-1]
        token = last + LAST if is_folder else last
        parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
    parts += [ITEM.format(name, len(BODY)) for name, is_folder in found if not is_folder]
    parts += [f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name, is_folder in found if is_folder]
    return "".join([*parts, "</ListBucketResult>"]).encode()


def answer_to(head: str, keys: list[str]) -> bytes:
    """Return status, headers and body for one request."""
    method, target = head.split(" ", 2)[:2]
    parts = urllib.parse.urlsplit(target)
    query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    key = urllib.parse.unquote(parts.path).removeprefix("/bench").removeprefix("/")
    status, body, headers = "200 OK", BODY, 'ETag: "d41d8cd98f00b204e9800998ecf8427e"\r\n'
    headers += "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    byte_range = re.search(r"\r\nrange: *bytes=(\d+)-(\d*)", head, re.IGNORECASE)
    place = bisect_left(keys, key)
    if "list-type" in query:
        body = page(keys, query)
    elif keys[place : place + 1] != [key]:
        status, body = (
            "404 Not Found",
            b"<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>",
        )
    elif byte_range:
        start, stop = int(byte_range[1]), min(int(byte_range[2] or len(BODY)) + 1, len(BODY))
        status, body = "206 Partial Content", BODY[start:stop]
        headers += f"Content-Range: bytes {start}-{stop - 1}/{len(BODY)}\r\n"
    shown = b"" if method == "HEAD" else body
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + shown


async def serve(port: int, keys: list[str]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(answer_to(head.decode("latin-1"), keys))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), keys_of(int(sys.argv[2]))))
