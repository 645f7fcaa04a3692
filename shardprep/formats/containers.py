"""Containers: what an object's bytes are, told by content. Compression, encoding, JSON lines or one value."""

from __future__ import annotations

import re
import zlib

import orjson
import zstandard

from shardprep.formats.reasons import Reason, Refused

BOM = b"\xef\xbb\xbf"
LAYERS_MAX = 2  # gzip of gzip happens by accident; more is a mistake worth telling
READ_BYTES = 1 << 18  # how much is decompressed between two looks at the limit
ZSTD_INPUT_BYTES = 1 << 10  # a block of 4 bytes can hold 128 KiB: 1 KiB of input gives at most 32 MiB

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_OTHER_FORMATS = (
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x04\x22\x4d\x18", "lz4 data"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy data"),
    (b"PAR1", "a Parquet file"),
    (b"Obj\x01", "an Avro file"),
    (b"ARROW1", "an Arrow file"),
    (b"%PDF-", "a PDF file"),
)
_CONTENT = re.compile(rb"[^ \t\r\n]")  # JSON's white space, and nothing else
_END_OF_DATA = "unexpected end of data"  # orjson's words for a valid beginning
_OPENS_ONLY = re.compile(rb"[ \t\r]*(?:\{|\[[ \t\r]*(?:\{.*)?)[ \t\r]*", re.DOTALL)


def unpack(data: bytes, max_bytes: int) -> bytes:
    """Return the object's plain bytes, a leading byte order mark still there.

    Undoes gzip (any number of members) and zstd (any number of frames), each up to twice. Raises Refused: too_large
    before more than about max_bytes are decompressed, bad_compression, unsupported_format, wrong_encoding.
    """
    for _ in range(LAYERS_MAX):
        if data[:2] == _GZIP:
            data = _gunzip(data, max_bytes)
        elif _is_zstd(data):
            data = _unzstd(data, max_bytes)
        else:
            break
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    if data[:2] == _GZIP or _is_zstd(data):
        raise Refused(Reason.BAD_COMPRESSION, f"compressed more than {LAYERS_MAX} times; unpack it first")
    foreign = _foreign(data)
    if foreign is not None:
        raise foreign
    return data


def is_lines(head: bytes, *, complete: bool) -> bool | None:
    """Tell whether an object holds JSON lines from its first bytes; None: more of them are needed.

    One JSON value, or something compressed, or not UTF-8, is no lines. Else lines, if any line is a JSON object. A
    first line that only opens a value (`{`, `[`, `[{...`) begins one value, not lines: so a damaged array is never
    taken for lines, half of which happen to be good.
    """
    if len(head) < len(_ZSTD) and not complete:
        return None
    if head[:2] == _GZIP or _is_zstd(head) or _foreign(head) is not None:
        return False
    start = _first_content(head, len(BOM) if head.startswith(BOM) else 0)
    line_end = head.find(b"\n", start)
    if line_end < 0 or _first_content(head, line_end) == len(head):
        # All there is so far is one line: alone in its object it is one value, good or bad.
        return False if complete else None
    first = head[start:line_end]
    try:
        if isinstance(orjson.loads(first), dict):
            return True
    except orjson.JSONDecodeError as error:
        if _OPENS_ONLY.fullmatch(first):
            return False
        if error.msg == _END_OF_DATA:
            verdict = _is_one_value(head, start, complete=complete)
            if verdict is not False:
                return False if verdict else None
    return True if _any_object(head, start, complete=complete) else (False if complete else None)


def _first_content(data: bytes, start: int) -> int:
    match = _CONTENT.search(data, start)
    return match.start() if match else len(data)


def _is_one_value(head: bytes, start: int, *, complete: bool) -> bool | None:
    """Tell whether all of it is one JSON value; None while it may still become one."""
    stop = len(head) if complete else head.rfind(b"\n") + 1  # a cut inside a UTF-8 sequence proves nothing
    try:
        orjson.loads(memoryview(head)[start:stop])
    except orjson.JSONDecodeError as error:
        return None if error.msg == _END_OF_DATA and not complete else False
    return True if complete else None


def _any_object(head: bytes, start: int, *, complete: bool) -> bool:
    while start < len(head):
        end = head.find(b"\n", start)
        if end < 0:
            if not complete:
                return False
            end = len(head)
        try:
            if isinstance(orjson.loads(memoryview(head)[start:end]), dict):
                return True
        except orjson.JSONDecodeError:
            pass  # a bad line says nothing about the others
        start = end + 1
    return False


def _is_zstd(data: bytes) -> bool:
    return data[:4] == _ZSTD or _ZSTD_SKIPPABLE.match(data) is not None


def _foreign(data: bytes) -> Refused | None:
    """Return why these bytes cannot be UTF-8 JSON, judged by their beginning."""
    head = data[:4]
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or head == b"\x00\x00\xfe\xff":
        return _wrong_encoding("UTF-32" if b"\x00\x00" in head else "UTF-16")
    # Without a mark: JSON begins with ASCII, so its first four bytes tell by where the NULs are (RFC 4627, section 3).
    zeros = tuple(byte == 0 for byte in head)
    if zeros in ((True, True, True, False), (False, True, True, True)):
        return _wrong_encoding("UTF-32")
    if zeros in ((True, False, True, False), (False, True, False, True)):
        return _wrong_encoding("UTF-16")
    for magic, what in _OTHER_FORMATS:
        if data.startswith(magic):
            return Refused(Reason.UNSUPPORTED_FORMAT, f"this is {what}; unpack or convert it to JSON first")
    return None


def _wrong_encoding(name: str) -> Refused:
    return Refused(Reason.WRONG_ENCODING, f"this is {name}; convert it to UTF-8 first")


def _too_large(max_bytes: int) -> Refused:
    return Refused(Reason.TOO_LARGE, f"more than {max_bytes} bytes; raise --max-object-size if that is meant to be")


def _cut_short(name: str) -> Refused:
    return Refused(Reason.BAD_COMPRESSION, f"{name} data is cut short: its end is missing")


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = max_bytes
    place = 0
    while place < len(data):
        if data[place : place + 2] != _GZIP:
            rest = data[place:].lstrip(b"\x00")
            if not rest:
                break  # padding of a tape or block device
            raise Refused(Reason.BAD_COMPRESSION, f"{len(rest)} bytes that are no gzip follow the gzip data")
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            chunk = data[place : place + READ_BYTES]
            try:
                part = member.decompress(chunk, min(READ_BYTES, room + 1))
            except zlib.error as error:
                raise Refused(Reason.BAD_COMPRESSION, f"gzip data is damaged: {error}") from None
            if not chunk and not part and not member.eof:
                raise _cut_short("gzip")
            place += len(chunk) - len(member.unconsumed_tail) - len(member.unused_data)
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise _too_large(max_bytes)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = max_bytes
    place = 0
    decompressor = zstandard.ZstdDecompressor()
    while place < len(data):
        if not _is_zstd(data[place : place + 4]):
            raise Refused(Reason.BAD_COMPRESSION, f"{len(data) - place} bytes that are no zstd follow the zstd data")
        if data[place : place + 4] != _ZSTD:
            place = _skip_frame(data, place)
            continue
        frame = decompressor.decompressobj()
        while not frame.eof:
            chunk = data[place : place + ZSTD_INPUT_BYTES]
            if not chunk:
                raise _cut_short("zstd")
            try:
                part = frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise Refused(Reason.BAD_COMPRESSION, f"zstd data is damaged: {error}") from None
            place += len(chunk) - len(frame.unused_data)
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise _too_large(max_bytes)
    return b"".join(parts)


def _skip_frame(data: bytes, place: int) -> int:
    size = data[place + 4 : place + 8]
    stop = place + 8 + int.from_bytes(size, "little")
    if len(size) < 4 or stop > len(data):
        raise _cut_short("zstd")
    return stop
