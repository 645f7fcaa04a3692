"""The documents that the preparation benchmarks read: small JSON files {"id", "text", "label", ...}, one a file.

    python -m benchmarks.corpus OUT --raw FOLDER       documents of FOLDER, renumbered, each with a label
    python -m benchmarks.corpus OUT                    no FOLDER: pieces of the bundled sample's text

Makes OUT/full/good/ (all), OUT/20k/good/ (the first 20,000, hard links), OUT/small/good/ (the first 500) and
OUT/bad/good/ (1,997 good files and three malformed ones). Deterministic: the same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

FILES_A_FOLDER = 1000
MALFORMED = {
    "bad-empty.json": b"",
    "bad-null.json": b'{"id": "bad-null", "text": null, "label": 1}',
    "bad-truncated.json": b'{"id": "bad-truncated", "text": "cut off in the mid',
}


def raw_documents(folder: Path) -> Iterator[dict[str, object]]:
    """Yield every document of a folder, in the order of its "seq" field where there is one, else of its path."""
    order = []
    for path in sorted(folder.rglob("*.json")):
        document = orjson.loads(path.read_bytes())
        order.append((document.get("seq", len(order)), path))
    for _, path in sorted(order):
        yield orjson.loads(path.read_bytes())


def sample_documents(count: int) -> Iterator[dict[str, object]]:
    """Yield pieces of the sample's text with log-normal lengths: mean 3,400 characters, sigma 1."""
    sample = Path(__file__).parent.parent / "sample/documents"
    text = "\n\n".join(orjson.loads(path.read_bytes())["text"] for path in sorted(sample.rglob("*.json")))
    rng = np.random.default_rng(7)
    sizes = np.clip(rng.lognormal(np.log(3400) - 0.5, 1.0, count), 40, 400_000).astype(int)
    starts = (rng.random(count) * (len(text) - sizes)).astype(int)
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        yield {"id": f"doc-{i:08d}", "text": text[start : start + size]}


def write_corpus(out: Path, documents: Iterator[dict[str, object]], count: int) -> int:
    """Write at most count documents; return how many there were."""
    written = 0
    for i, document in enumerate(documents):
        if i == count:
            break
        data = orjson.dumps({**document, "label": i % 10})
        name = f"good/{i // FILES_A_FOLDER:03d}/{i:08d}.json"
        put(out / "full" / name, data)
        for limit, part in ((20_000, "20k"), (500, "small"), (2_000 - len(MALFORMED), "bad")):
            if i < limit:
                link(out / "full" / name, out / part / name)
        written += 1
    for name, data in MALFORMED.items():
        put(out / "bad/good/000" / name, data)
    return written


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def link(old: Path, new: Path) -> None:
    new.parent.mkdir(parents=True, exist_ok=True)
    new.unlink(missing_ok=True)
    os.link(old, new)


def warm(folder: Path) -> int:
    """Read every file once, so that each tool finds the page cache warm. Return the bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*.json") if path.read_bytes() is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--raw", type=Path, help="folder of JSON documents with id and text")
    parser.add_argument("--documents", type=int, default=100_000)
    options = parser.parse_args()
    documents = raw_documents(options.raw) if options.raw else sample_documents(options.documents)
    print(write_corpus(options.out, documents, options.documents), "documents")


if __name__ == "__main__":
    main()
