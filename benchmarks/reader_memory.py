"""Anonymous memory (RssAnon, Linux) of the reader on one node, at workload W and at ten times as many rows.

Two ranks of the node share a cache, which is empty at the start, and read an epoch from S3 each. Bar: at most 200 MB a node
beyond one batch a thread and the mapped cache, whatever the number of rows. The sum over both ranks is their peaks', sampled a
hundred times a second, without what they held after `import shardprep`; interpreter and libraries are in it else.
"""

from __future__ import annotations

import shutil

from benchmarks.bench import parser, record, table
from benchmarks.rank_run import BATCH_TOKENS
from benchmarks.read_workload import ROWS
from benchmarks.reader_s3 import results, start_rank
from benchmarks.reads import cache_of, data_set
from benchmarks.s3_reads import place_of, s3_reads

RANKS, THREADS = 2, 2


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--rows", default=f"{ROWS},{10 * ROWS}")
    options = flags.parse_args(arguments)
    sizes = [int(n) for n in options.rows.split(",")]
    folders = {f"rows-{n}": data_set(rows=n) for n in sizes}
    rows = []
    with s3_reads(folders) as server:
        for n in sizes:
            for state in ("empty", "warm"):
                cache = cache_of("memory", empty=state == "empty")
                place = place_of(f"rows-{n}")
                world = ("--world", str(RANKS), "--watch")
                ranks = [start_rank(cache, server.env, "--rank", str(r), *world, place=place) for r in range(RANKS)]
                found = results(ranks)
                batches = RANKS * THREADS * BATCH_TOKENS * 16
                peaks = [f["anonymous_bytes"] for f in found]
                beyond = sum(peaks) - sum(f["imported_bytes"] for f in found) - batches
                record("reader_memory", {"rows": n, "cache": state, "peaks": peaks, "beyond": beyond})
                if sum(f["rows"] for f in found) != n:
                    raise AssertionError(f"{sum(f['rows'] for f in found)} rows played of {n}")
                rows.append(
                    (
                        f"{n:,}", state, ", ".join(f"{p / 1e6:.0f}" for p in peaks), f"{(sum(peaks) - batches) / 1e6:.0f}",
                        f"**{beyond / 1e6:.0f}**",
                    )
                )  # fmt: skip
            shutil.rmtree(cache_of("memory"))
    heads = (
        "rows",
        "cache",
        "peak RssAnon of each rank, MB",
        "both, less a batch a thread, MB",
        "and less imports, MB",
    )
    table(f"Anonymous memory of {RANKS} ranks on one node (bar: 200 MB)", heads, rows)
