"""CPU seconds of the client per 1,000 documents from S3, fast backend, start-up told apart.

Two sizes are run in turns; the slope between them is the cost of a document, what is left is the start-up. The
server's CPU is not in it. Bar: at most 0.30 s per 1,000 documents.
"""

from __future__ import annotations

from benchmarks.bench import COLUMNS, bench_of, fresh, middle, parser, record, table
from benchmarks.outputs import written
from benchmarks.runs import run
from benchmarks.s3_corpus import s3_corpus


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--sizes", default="20k,full", help="two parts of the corpus, the smaller first")
    options = flags.parse_args(arguments)
    bench = bench_of(options)
    parts = options.sizes.split(",")
    cpu: dict[str, list[float]] = {part: [] for part in parts}
    documents: dict[str, int] = {}
    with s3_corpus(bench, parts) as (uri, env):
        for rep in range(options.reps):
            for part in parts:
                output = fresh(f"out/cpu-{part}")
                done = run(
                    bench.build(f"{uri}/{part}/good", output, *COLUMNS, "--tokenizer-backend", "fast"), env=env
                ).check()
                record("client_cpu", {"part": part, "rep": rep}, done)
                cpu[part].append(done.cpu_s)
                documents[part] = written(output)[0]
    small, large = parts
    slope = (middle(cpu[large]) - middle(cpu[small])) / (documents[large] - documents[small])
    start_up_s = middle(cpu[small]) - slope * documents[small]
    rows = [
        (documents[part], ", ".join(f"{c:.1f}" for c in cpu[part]), f"{1000 * middle(cpu[part]) / documents[part]:.3f}")
        for part in parts
    ]
    rows.append(("each document more", "-", f"**{1000 * slope:.3f}**"))
    rows.append(("start-up", f"{start_up_s:.1f}", "-"))
    heads = ("documents", "CPU s of the client", "CPU s per 1,000 documents")
    table("Client CPU from S3, fast backend (bar: at most 0.30 per 1,000, start-up left out)", heads, rows)
