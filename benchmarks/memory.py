"""Peak memory of a worker at 10 x more documents. Bar: within 10 % once past 50,000, and at most 1 GiB at defaults.

Half of the corpus, and five times the whole of it (hard links; ids are the keys, so no document is twice there).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.bench import bench_of, fresh, parser, record, table
from benchmarks.outputs import written
from benchmarks.runs import run

COPIES = 5


def linked(source: Path, target: Path, copies: int, share: float) -> Path:
    """Return a folder of hard links: the first share of the source's files, that many times."""
    files = sorted(source.rglob("*.json"))
    files = files[: int(len(files) * share)]
    done = target / "done"
    if not done.exists():
        for copy in range(copies):
            for file in files:
                place = target / "good" / str(copy) / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.unlink(missing_ok=True)
                os.link(file, place)
        done.touch()
    return target / "good"


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--docs", default="full", choices=["full", "20k", "small"])
    options = flags.parse_args(arguments)
    bench = bench_of(options)
    source = bench.documents(options.docs)
    # Links must lie on the corpus's own disk.
    parts = {
        "half": linked(source, bench.corpus / f"memory-{options.docs}-half", 1, 0.5),
        "five": linked(source, bench.corpus / f"memory-{options.docs}-five", COPIES, 1.0),
    }
    rows, peaks = [], {}
    for part, folder in parts.items():
        output = fresh(f"out/memory-{part}")
        done = run(bench.build(folder, output, "--tokenizer-backend", "fast"), watch_memory=True, limit_s=1800).check()
        record("memory", {"part": part, "docs": options.docs}, done)
        peaks[part] = done.worker_bytes
        documents = written(output)[0]
        sizes = [f"{b / 2**20:,.0f}" for b in (done.worker_bytes, done.driver_bytes)]
        rows.append((documents, *sizes, f"{documents / done.wall_s:,.0f}"))
        print(f"memory {part}: {rows[-1]}", file=sys.stderr)
    rows.append(("growth", f"**{peaks['five'] / peaks['half'] - 1:+.1%}**", "-", "-"))
    heads = ("documents", "largest worker, MiB", "driver, MiB", "documents/s")
    table("Peak memory at defaults (bar: a worker grows by at most 10 %, and stays under 1,024 MiB)", heads, rows)
