"""One timed run of one reader in a fresh process; prints one line, RESULT and JSON. Runs in any reader's environment.

    python -m benchmarks.read_run READER PLACE [--workers 0] [--cache FOLDER] [--stop BATCHES --save FILE] [--load FILE]

Times are seconds since BENCH_T0 (when the process was started), imports included. The consumer sums each mask and keeps
the ids: `rate` is rows a second after the first batch. `--stop` ends after so many batches, `--save` keeps the reader's
state and the ids seen; `--load` continues from them.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from typing import Any

STARTED = float(os.environ.get("BENCH_T0") or time.time())


def import_reader(name: str) -> float:
    """Import what the reader needs; return when that was done."""
    if name.startswith("ours"):
        from benchmarks import read_ours  # noqa: F401
    else:
        from benchmarks import read_peers  # noqa: F401
    return time.time()


def reader_of(name: str, place: str, workers: int, cache: str) -> Any:
    """Return the reader and a function batch -> (ids or None, rows, slots, tokens)."""
    if name.startswith("ours"):
        from benchmarks import read_ours

        return getattr(read_ours, name)(place, workers, cache), read_ours.seen_all if name.endswith(
            "_all"
        ) else read_ours.seen
    from benchmarks import read_peers

    return getattr(read_peers, name)(place, workers, cache), seen


def seen(batch: dict[str, Any]) -> tuple[list[str], int, int, int]:
    """Return what a padded dictionary of tensors holds."""
    return batch["id"], len(batch["id"]), batch["input_ids"].numel(), int(batch["attention_mask"].sum())


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("reader")
    flags.add_argument("place")
    flags.add_argument("--workers", type=int, default=0)
    flags.add_argument("--cache", default="")
    flags.add_argument("--stop", type=int, default=0)
    flags.add_argument("--save")
    flags.add_argument("--load")
    options = flags.parse_args()
    imported = import_reader(options.reader)
    reader, look = reader_of(options.reader, options.place, options.workers, options.cache)
    opened = time.time()
    before: list[str] = []
    skip = 0
    if options.load:
        with open(options.load, "rb") as file:
            saved = pickle.load(file)
        if reader.load is not None:
            reader.load(saved["state"])
        else:
            skip = saved["batches"]  # no state: play again and throw away
    ids: list[str] = []
    batches = rows = slots = tokens = first_rows = 0
    first = 0.0
    for batch in reader.batches:
        if skip:
            skip -= 1
            continue
        names, n, s, t = look(batch)
        if not batches:
            first, first_rows = time.time(), n
        batches, rows, slots, tokens = batches + 1, rows + n, slots + s, tokens + t
        if names is not None:
            ids += names
        if batches == options.stop:
            break
    ended = time.time()
    if options.load:
        with open(options.load + ".ids", "rb") as file:  # only now: a training job has no such list to load
            before = pickle.load(file)
    if options.save:
        with open(options.save, "wb") as file:
            state = reader.state() if reader.state is not None else None
            pickle.dump({"state": state, "batches": batches}, file)
        with open(options.save + ".ids", "wb") as file:
            pickle.dump(before + ids, file)
    whole = before + ids
    result = {
        "reader": options.reader,
        "workers": options.workers,
        "import_s": imported - STARTED,
        "open_s": opened - STARTED,
        "first_s": first - STARTED,
        "total_s": ended - STARTED,
        "steady_s": ended - first,
        "batches": batches,
        "rows": rows,
        "tokens": tokens,
        "slots": slots,
        "rate": (rows - first_rows) / (ended - first) if batches > 1 else 0.0,
        "distinct": len(set(whole)),
        "seen": len(whole),
    }
    print("RESULT " + json.dumps(result), flush=True)
    if options.stop:  # workers and buffers of a broken epoch are not this benchmark's concern
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
