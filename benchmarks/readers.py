"""Rows a second and time to the first batch, local files, against the other readers, in turns: A B C A B C ...

    python -m benchmarks readers [--workers 0] [--readers ours,mmap,litdata] [--reps 3]

Workload W (read_workload.py), warm page cache and warm caches, each run a fresh process, rows a second after the first
batch over a whole epoch. The other readers make random batches of 16 rows with ids and labels. Ours makes its own, of at
most 14,400 slots, and `ours_random` the same work as the others; `_all` takes ids and labels too (see read_ours.py).
Bars, 0 workers: ours at least 2.5 x mmap, 3 x litdata, 25 x MosaicML and WebDataset; ours_random at least 1.2 x mmap.
With 2 workers: ours_torch at least 4 x the best other. First batch: at most 0.3 s after mmap's; without torch 0.6 s.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from benchmarks.bench import bench_of, middle, parser, record, table
from benchmarks.read_workload import ROWS
from benchmarks.reads import data_set, format_of, python_of, read, read_alone

ALONE = "ours,ours_all,ours_random,ours_random_all,ours_torch,mmap,mmap_plain,litdata,hf_map,grain,wds,mds,hf_stream"
WORKERS = "ours_torch,ours_torch_all,mmap,mmap_plain,litdata,hf_map,grain,wds,mds,hf_stream"
TOKENS = 35_553_938


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--workers", type=int, default=0)
    flags.add_argument("--readers")
    options = flags.parse_args(arguments)
    peers = bench_of(options).peers
    readers = (options.readers or (WORKERS if options.workers else ALONE)).split(",")
    readers = [
        reader for reader in readers if python_of(reader, peers) is not None or print(f"{reader}: no environment")
    ]
    for reader in readers:
        data_set(format_of(reader), str(python_of(reader, peers)))
    if any(reader.startswith("ours") for reader in readers):
        read("ours", peers)  # fills our cache; hf_map's is filled by its first run, which is not counted
    if "hf_map" in readers:
        read("hf_map", peers, "--stop", "1")
    found: dict[str, list[dict]] = defaultdict(list)
    for rep in range(options.reps):
        for reader in readers:
            result, done = read_alone(reader, peers, workers=options.workers)
            record("readers", {"rep": rep, **result, "reader": reader, "workers": options.workers}, done)
            if "error" in result:
                print(f"{reader}: {result['error']}", file=sys.stderr)
                continue
            whole = result["rows"] == ROWS and result["tokens"] == TOKENS
            told = f"{result['rate']:,.0f} rows/s, first batch {result['first_s']:.2f} s, others took {result['others']:.0%}"
            print(f"{reader} rep {rep}: {told}{'' if whole else ', INCOMPLETE'}", file=sys.stderr, flush=True)
            found[reader].append({**result, "cpu_s": done.cpu_s})
    print_table(options.workers, found)


def print_table(workers: int, found: dict[str, list[dict]]) -> None:
    rates = {reader: middle([run["rate"] for run in runs]) for reader, runs in found.items()}
    rows = []
    for reader in sorted(rates, key=rates.__getitem__, reverse=True):
        runs = found[reader]
        # A lead is the median over repetitions: both runs of a pair are of the same minute.
        leads = [
            f"{middle([a['rate'] / b['rate'] for a, b in zip(found[us], runs, strict=False)]):.2f} x"
            for us in OURS
            if us in found
        ]
        rows.append(
            (
                f"**{reader}**" if reader.startswith("ours") else reader,
                f"{rates[reader]:,.0f}",
                ", ".join(f"{run['rate']:,.0f}" for run in runs),
                f"{middle([run['tokens'] / run['steady_s'] for run in runs]) / 1e6:.1f}",
                f"{1 - runs[0]['tokens'] / runs[0]['slots']:.3f}",
                f"{middle([run['first_s'] for run in runs]):.2f}",
                f"{middle([run['total_s'] for run in runs]):.2f}",
                f"{middle([run['cpu_s'] for run in runs]):.1f}",
                *leads,
            )
        )
    heads = ("reader", "rows/s", "runs", "Mtokens/s", "padding", "first batch, s", "whole epoch, s", "CPU, s")
    leads = tuple(f"{us} over it" for us in OURS if us in found)
    table(f"Readers, local files, workload W, {workers} worker processes", (*heads, *leads), rows)


OURS = ("ours", "ours_all", "ours_random", "ours_random_all", "ours_torch", "ours_torch_all")
