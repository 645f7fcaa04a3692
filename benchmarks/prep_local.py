"""Documents per second from local files, whole command, against the other tools.

    python -m benchmarks prep_local --docs 20k              shardprep with both backends, and every peer
    python -m benchmarks prep_local --docs full --tools fast,loop,loop_rayon

Tools take turns (A B C A B C ...). Each runs once; after that only shardprep and the three fastest peers do: the
question is how far it is from the best of them.
"""

from __future__ import annotations

from benchmarks.bench import bench_of, parser
from benchmarks.corpus import warm
from benchmarks.turns import LOCAL_TOOLS, compare

BARS = {
    "20k": "fast: at least 3 x the best peer; reference: 0.9 x the loop",
    "full": "fast: at least 8 x the best peer",
}


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--docs", default="20k", choices=["full", "20k", "small"])
    flags.add_argument("--tools", default=",".join(LOCAL_TOOLS))
    flags.add_argument("--limit-s", type=float, default=900)
    options = flags.parse_args(arguments)
    bench = bench_of(options)
    source = bench.documents(options.docs)
    warm(source)
    title = f"Preparation, local files, {options.docs}, {bench.tokenizer.name} (bar: {BARS.get(options.docs, 'none')})"
    compare(
        bench, title, "prep_local", str(source), options.docs, options.tools.split(","), options.reps, options.limit_s
    )
