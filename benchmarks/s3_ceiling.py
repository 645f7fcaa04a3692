"""Objects per second from S3, whole command, against bare obstore GETs of the same keys by as many processes.

Taken twice: over the whole command, and between two sizes (which leaves the start-up of both out). Bar: at least 0.6
of the bare GETs.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from benchmarks.bench import COLUMNS, bench_of, fresh, middle, parser, record, table
from benchmarks.outputs import written
from benchmarks.runs import run
from benchmarks.s3_corpus import s3_corpus

PROCESSES = 2


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--sizes", default="20k,full", help="two parts of the corpus, the smaller first")
    options = flags.parse_args(arguments)
    bench = bench_of(options)
    parts = options.sizes.split(",")
    walls: dict[tuple[str, str], list[float]] = defaultdict(list)
    documents: dict[str, int] = {}
    with s3_corpus(bench, parts) as (uri, env):
        for rep in range(options.reps):
            for part in parts:
                output = fresh(f"out/ceiling-{part}")
                flag = ("--tokenizer-backend", "fast", "--workers", str(PROCESSES))
                commands = {
                    "shardprep": bench.build(f"{uri}/{part}/good", output, *COLUMNS, *flag),
                    "bare GETs": [sys.executable, "-m", "benchmarks.bare_gets", f"{part}/good/", str(PROCESSES)],
                }
                for tool, command in commands.items():
                    done = run(command, env=env).check()
                    record("s3_ceiling", {"tool": tool, "part": part, "rep": rep}, done)
                    walls[tool, part].append(done.wall_s)
                documents[part] = written(output)[0]
    small, large = parts
    rows = []
    for part in parts:
        ours, bare = (documents[part] / middle(walls[tool, part]) for tool in ("shardprep", "bare GETs"))
        rows.append((f"{documents[part]}, whole command", f"{ours:,.0f}", f"{bare:,.0f}", f"**{ours / bare:.2f}**"))
    more = documents[large] - documents[small]
    ours, bare = (
        more / (middle(walls[tool, large]) - middle(walls[tool, small])) for tool in ("shardprep", "bare GETs")
    )
    rows.append((f"{more} more, start-up left out", f"{ours:,.0f}", f"{bare:,.0f}", f"**{ours / bare:.2f}**"))
    heads = ("objects", "shardprep, objects/s", "bare obstore GETs, objects/s", "share")
    table(f"S3 objects per second, {PROCESSES} processes each (bar: a share of at least 0.6)", heads, rows)
