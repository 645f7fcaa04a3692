"""Run one benchmark, or all of them: docs/benchmarks.md says what each shows and what it has to reach.

    python -m benchmarks                          all, in the order below; two to three hours with every peer
    python -m benchmarks reader                   those of the reader; 30 minutes with every peer
    python -m benchmarks --quick                  all with 500 documents: only shows that they work
    python -m benchmarks NAME [FLAGS]             one; NAME --help says its flags

The corpus is made first: python -m benchmarks.corpus FOLDER --raw ...; flags or environment: CORPUS, TOKENIZER, PEERS.
Results are Markdown tables on standard output, and JSON lines in benchmarks/work/results.jsonl. The reader's benchmarks
make their own data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from benchmarks.bench import bench_of, parser
from benchmarks.s3_corpus import s3_corpus

NAMES = (
    "balance", "bad_files", "listing", "prep_local", "redo", "memory", "prep_s3", "s3_ceiling", "client_cpu",
    "s3_corpus",
    "readers", "resume", "schedule_figures", "order_quality", "small_model", "big_manifest", "reader_s3", "reader_memory",
    "pipe",
    "recordio",
)  # fmt: skip
BEST_LOCAL, BEST_S3 = "fast,loop,loop_rayon,litdata", "fast,loop_threads16,litdata,daft"
LOCAL_STEPS = (
    ("balance", ()),
    ("bad_files", ()),
    ("listing", ()),
    ("prep_local", ("--docs", "20k")),
    ("prep_local", ("--docs", "full", "--tools", BEST_LOCAL)),
    ("redo", ()),
    ("memory", ()),
)
S3_STEPS = (
    ("prep_s3", ("--docs", "20k")),
    ("prep_s3", ("--docs", "full", "--tools", BEST_S3, "--reps", "2")),
    ("s3_ceiling", ()),
    ("client_cpu", ()),
)
READER_STEPS = (
    ("schedule_figures", ()),
    ("order_quality", ()),
    ("big_manifest", ()),
    ("readers", ()),
    ("readers", ("--workers", "2", "--reps", "2")),
    ("resume", ()),
    ("reader_s3", ()),
    ("reader_memory", ()),
    ("recordio", ()),
    ("pipe", ()),
    ("small_model", ()),
)
QUICK_READER = (
    ("schedule_figures", ("--epochs", "1")),
    ("order_quality", ("--seeds", "2")),
    ("big_manifest", ("--reps", "1")),
    ("readers", ("--reps", "1", "--readers", "ours,ours_random_all,mmap_plain")),
    ("readers", ("--reps", "1", "--workers", "2", "--readers", "ours_torch_all")),
    ("resume", ("--reps", "1", "--readers", "ours_all")),
    ("reader_s3", ("--reps", "1", "--readers", "ours", "--parts", "epoch,first,bytes")),
    ("reader_memory", ("--rows", "40000")),
    ("pipe", ("--reps", "1", "--parts", "rate")),
    ("recordio", ("--reps", "1", "--rows", "4000")),
    ("small_model", ("--seeds", "1", "--epochs", "1")),
)
QUICK_LOCAL = (
    ("balance", ("--rows", "2000")),
    ("bad_files", ()),
    ("listing", ("--objects", "20000")),
    ("prep_local", ("--docs", "small", "--reps", "2")),
    ("redo", ("--docs", "20k")),
    ("memory", ("--docs", "small")),
)
QUICK_S3 = (
    ("prep_s3", ("--docs", "small", "--reps", "1")),
    ("s3_ceiling", ("--sizes", "small,bad", "--reps", "1")),
    ("client_cpu", ("--sizes", "small,bad", "--reps", "1")),
)


def run_one(name: str, arguments: Sequence[str]) -> None:
    import_module(f"benchmarks.{name}").main(list(arguments))


def run_all(
    local: Sequence[tuple[str, Sequence[str]]], s3: Sequence[tuple[str, Sequence[str]]], parts: Sequence[str]
) -> None:
    """Run the local benchmarks, then those from S3 on one server that is filled once."""
    for name, arguments in local:
        run_one(name, arguments)
    with s3_corpus(bench_of(parser(None).parse_args([])), parts) as (uri, env):
        os.environ.update({"S3_CORPUS": uri, **env})
        for name, arguments in s3:
            run_one(name, arguments)


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments:
        run_all((*READER_STEPS, *LOCAL_STEPS), S3_STEPS, ["20k", "full"])
    elif arguments == ["--quick"]:
        os.environ.setdefault("BENCH_PATIENCE_S", "0")
        run_all((*QUICK_READER, *QUICK_LOCAL), QUICK_S3, ["small", "bad"])
    elif arguments == ["reader"]:
        for name, given in READER_STEPS:
            run_one(name, given)
    elif arguments[0] in NAMES:
        run_one(arguments[0], arguments[1:])
    else:
        sys.exit(f"{__doc__}\nNAME is one of: {', '.join(NAMES)}")


if __name__ == "__main__":
    main()
