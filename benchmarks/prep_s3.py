"""Documents per second from S3 (SeaweedFS on the same cores) to a local folder, whole command, against the peers.

python -m benchmarks prep_s3 --docs 20k
python -m benchmarks prep_s3 --docs full --tools fast,litdata,daft,loop_threads16
"""

from __future__ import annotations

from benchmarks.bench import bench_of, parser
from benchmarks.s3_corpus import s3_corpus
from benchmarks.turns import S3_TOOLS, compare

BARS = {"20k": "fast: at least 4 x the best peer", "full": "fast: at least 6 x the best peer"}


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--docs", default="20k", choices=["full", "20k", "small"])
    flags.add_argument("--tools", default=",".join(S3_TOOLS))
    flags.add_argument("--limit-s", type=float, default=900)
    options = flags.parse_args(arguments)
    bench = bench_of(options)
    title = f"Preparation, S3, {options.docs}, {bench.tokenizer.name} (bar: {BARS.get(options.docs, 'none')})"
    with s3_corpus(bench, [options.docs]) as (uri, env):
        source = f"{uri}/{options.docs}/good"
        compare(
            bench, title, "prep_s3", source, options.docs, options.tools.split(","), options.reps, options.limit_s, env
        )
