"""Three malformed files among 2,000. Bar: the 1,997 good documents, and a ledger that names the three with reasons."""

from __future__ import annotations

import sys

import orjson

from benchmarks.bench import COLUMNS, bench_of, fresh, parser, record, table
from benchmarks.corpus import MALFORMED
from benchmarks.outputs import written
from benchmarks.runs import run


def main(arguments: list[str]) -> None:
    options = parser(__doc__).parse_args(arguments)
    bench = bench_of(options)
    output = fresh("out/bad")
    done = run(bench.build(bench.documents("bad"), output, *COLUMNS, "--tokenizer-backend", "fast")).check()
    lines = [line for part in sorted(output.rglob("rejects/*.jsonl")) for line in part.read_bytes().splitlines()]
    rejects = [orjson.loads(line) for line in lines]
    documents, _ = written(output)
    record("bad_files", {"documents": documents, "rejects": rejects}, done)
    rows = [(r["key"], r["reason"], r.get("detail", "")) for r in rejects]
    table(
        f"Three malformed files among 2,000: {documents} documents written, set aside:",
        ("key", "reason", "detail"),
        rows,
    )
    named = {r["key"].rsplit("/", 1)[-1] for r in rejects}
    if named != set(MALFORMED) or len(rejects) != len(MALFORMED):
        sys.exit(f"the ledger names {sorted(named)}, but should name {sorted(MALFORMED)}")
