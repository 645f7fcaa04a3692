"""One rank of ours in a fresh process, as a training loop of a given pace would use it; prints one line, RESULT and JSON.

    python -m benchmarks.rank_run PLACE --cache FOLDER [--rank 0 --world 1 --epochs 1] [--tokens-per-second 500000] [--watch]

waited_s and wall_s are measured around `next`, after the first batch. --watch samples the process's anonymous memory (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path

BATCH_TOKENS = 14_400


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


class Watch(threading.Thread):
    """Samples anonymous memory a hundred times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = anonymous_bytes()

    def run(self) -> None:
        while True:
            self.most = max(self.most, anonymous_bytes())
            time.sleep(0.01)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("place")
    flags.add_argument("--cache", required=True)
    flags.add_argument("--rank", type=int, default=0)
    flags.add_argument("--world", type=int, default=1)
    flags.add_argument("--epochs", type=int, default=1)
    flags.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    flags.add_argument("--tokens-per-second", type=float, default=0)
    flags.add_argument("--watch", action="store_true")
    options = flags.parse_args()
    started = float(os.environ.get("BENCH_T0") or time.time())
    watch = None
    if options.watch:
        watch = Watch()
        watch.start()
    import shardprep

    imported = anonymous_bytes()
    dataset = shardprep.open(options.place, cache_dir=options.cache)
    loader = dataset.loader(
        "train", batch_tokens=options.batch_tokens, rank=options.rank, world_size=options.world, slots=options.world
    )
    rows = tokens = 0
    first_s = waited = longest = wall = 0.0
    for _ in range(options.epochs):
        batches = iter(loader)
        batch = next(batches)
        first_s = first_s or time.time() - started
        at = time.perf_counter()
        while batch is not None:
            rows, tokens = rows + batch.real, tokens + batch.tokens
            if options.tokens_per_second:
                time.sleep(batch.tokens / options.tokens_per_second)
            del batch
            asked = time.perf_counter()
            batch = next(batches, None)
            took = time.perf_counter() - asked
            waited, longest = waited + took, max(longest, took)
        wall += time.perf_counter() - at
    result = {
        "rank": options.rank,
        "rows": rows,
        "tokens": tokens,
        "first_s": first_s,
        "waited_s": waited,
        "longest_wait_s": longest,
        "wall_s": wall,
        "anonymous_bytes": watch.most if watch else 0,
        "imported_bytes": imported,
        "metrics": loader.metrics(),
    }
    print("RESULT " + json.dumps(result, default=str), flush=True)


if __name__ == "__main__":
    main()
