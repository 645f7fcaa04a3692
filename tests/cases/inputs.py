"""Inputs of the cases: small ones lie beside this file, large ones are made here and held to their sha256."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
BYTE, BYTE_EOS, BYTE_NO_EOS = (HERE / "tok" / name for name in ("byte.json", "byte-eos.json", "byte-noeos.json"))
SHA256 = {
    "docs_1000": "4ecb4766a59257b5eb377e729a643c2042b29b00d08808e418baee2d7c9007c8",
    "C15": "053f452c029c5a783d319047abe3ee170498c26dc14a2046813accc661bcd219",
    "C25": "f748c8b7897c592f3bfbd7212aa30247d5c89f0b6db3dcd6476209275c1e76e4",
    "C26 equal": "5d5701e27b8b3e766f7e48110aa48ee16e931994a7a678c3bfee705b0ad8e008",
    "C26 skew": "f15614ebd50c1821a4e98cce4096fdb79d67b27b445f4b37e8466211fbd5fa69",
    "C27": "9396c767e8eba0af772ba004cd35bb3ca42a52e6d6005caf8516becb893e7cd6",
    "C39": "5d585f1b90649a8e13252c3c5b0eca4f9a314dccfe018ee6a1e7865377d29bbf",
    "C40": "2b5449a4fe39a4f9eebfd4e39837b2d8e547663de74c19064b859874849a99da",  # of all files, in order of their names
}
THREE_BYTES_ACROSS = (65_536, 1_048_576, 5_242_880)  # file offsets inside a three-byte sign of w2
W2_BYTES = 5_300_000


def line(identity: object, text: str) -> bytes:
    return json.dumps({"id": identity, "text": text}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def docs_1000(count: int = 1000) -> bytes:
    """Return the first `count` lines of docs_1000.jsonl: 11 tokens each."""
    lines = [line(i, f"doc {i:06d}") for i in range(1000)]
    _check("docs_1000", b"".join(lines))
    return b"".join(lines[:count])


def split_into(folder: Path, data: bytes, lines_per_file: int) -> list[Path]:
    """Write lines into files of so many lines; return their paths in order."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = data.splitlines(keepends=True)
    paths = []
    for first in range(0, len(lines), lines_per_file):
        paths.append(folder / f"part-{first // lines_per_file:03d}.jsonl")
        paths[-1].write_bytes(b"".join(lines[first : first + lines_per_file]))
    return paths


def giant_text(before: int) -> str:
    """Return the text of w2, which begins `before` bytes into its file."""
    unit = b"one document, no line breaks, 0123456789 "
    text = bytearray((unit * (W2_BYTES // len(unit) + 1))[:W2_BYTES])
    for offset in THREE_BYTES_ACROSS:
        start = offset - 1 - before
        text[start : start + 3] = "\u20ac".encode()
    return text.decode()


def big() -> bytes:
    """Return C15: w1, then w2 of 5.3 MB, then w3."""
    first = line("w1", "small")
    head = b'{"id":"w2","text":"'
    data = first + line("w2", giant_text(len(first) + len(head))) + line("w3", "after")
    return _check("C15", data)


def lengths() -> bytes:
    """Return C25: 1,000 documents of 2 to 501 tokens, each length twice."""
    return _check("C25", b"".join(line(i, "x" * (i * 37 % 500 + 1)) for i in range(1000)))


def equal() -> bytes:
    """Return C26's 100 documents of 100 tokens."""
    return _check("C26 equal", b"".join(line(i, f"doc {i:03d} ".ljust(99, ".")) for i in range(100)))


def skew() -> bytes:
    """Return C26's 999 documents of 501 tokens and one of 500,001."""
    sizes = ((i, 500_000 if i == 500 else 500) for i in range(1000))
    return _check("C26 skew", b"".join(line(i, f"doc {i:03d} ".ljust(size, ".")) for i, size in sizes))


def rows() -> bytes:
    """Return C27: 10,000 documents of 151 tokens."""
    return _check("C27", b"".join(line(i, f"row {i:05d} ".ljust(150, ".")) for i in range(10_000)))


def poisoned() -> bytes:
    """Return C39: 100 documents, the one on line 38 with the text POISON."""
    return _check("C39", b"".join(line(i, "POISON" if i == 37 else f"doc {i:03d}") for i in range(100)))


def many() -> list[tuple[str, bytes]]:
    """Return C40: names and bytes of 2,500 files in 25 folders, 10 tokens each."""
    files = [(f"{i % 25:02d}/{i:04d}.json", line(i, f"tiny {i:04d}").rstrip(b"\n")) for i in range(2500)]
    _check("C40", b"".join(data for _, data in sorted(files)))
    return files


def write_many(folder: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """Write files by name below a folder; return the folder."""
    for name, data in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def write(path: Path, *lines: bytes | Sequence[object]) -> Path:
    """Write a file of lines, given as bytes or as (id, text); return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(x if isinstance(x, bytes) else line(x[0], str(x[1])) for x in lines))
    return path


def _check(name: str, data: bytes) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    assert found == SHA256[name], f"the input of {name} is not the one of the case: sha256 {found}"
    return data
