"""Resume at 1, 50 and 99 % of an epoch: is each row played exactly once, and when does the first batch come?

Local files, warm caches; each part of an epoch is a fresh process that loads the state of the one before. Bar for ours: exact,
and at every place a first batch at most 10 % later than that of a fresh start. Readers without a state replay and throw away.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.bench import bench_of, middle, parser, record, table
from benchmarks.read_workload import ROWS
from benchmarks.reads import FOLDER, data_set, format_of, python_of, read, read_alone

PLACES = (0.01, 0.50, 0.99)
READERS = "ours_all,mmap,litdata,mds,hf_stream,wds"


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--readers", default=READERS)
    options = flags.parse_args(arguments)
    peers = bench_of(options).peers
    rows = []
    for reader in options.readers.split(","):
        python = python_of(reader, peers)
        if python is None:
            continue
        data_set(format_of(reader), python)
        whole, _ = read(reader, peers)  # warms caches, counts batches
        if "error" in whole:
            print(f"{reader}: {whole['error']}", file=sys.stderr)
            continue
        firsts: dict[float, list[float]] = defaultdict(list)
        fresh: list[float] = []
        kept: dict[float, tuple[int, int]] = {}
        for rep in range(options.reps):
            for place in PLACES:
                fresh.append(float(read_alone(reader, peers, "--stop", "1")[0]["first_s"]))
                found = parts(reader, peers, max(1, round(int(whole["batches"]) * place)))
                record("resume", {"reader": reader, "place": place, "rep": rep, **found})
                if "error" in found:
                    print(f"{reader} at {place:.0%}: {found['error']}", file=sys.stderr)
                    continue
                firsts[place].append(float(found["first_s"]))
                kept[place] = ROWS - int(found["distinct"]), int(found["seen"]) - int(found["distinct"])
        start = middle(fresh)
        cells = [
            f"{middle(firsts[p]):.2f} s ({middle(firsts[p]) / start - 1:+.0%}), {kept[p][0]} lost, {kept[p][1]} twice"
            if firsts[p]
            else "failed"
            for p in PLACES
        ]
        rows.append((reader, f"{start:.2f}", *cells))
    heads = ("reader", "first batch, fresh start, s", *(f"after a resume at {place:.0%}" for place in PLACES))
    table("Resume, workload W, local files, no worker processes", heads, rows)


def parts(reader: str, peers: Path | None, batches: int) -> dict[str, object]:
    """Play so many batches, and the rest in another process; return what the second one says of both."""
    state = FOLDER / f"state-{reader}"
    first, _ = read(reader, peers, "--stop", str(batches), "--save", str(state))
    if "error" in first:
        return first
    second, _ = read_alone(reader, peers, "--load", str(state))
    state.unlink()
    return second
