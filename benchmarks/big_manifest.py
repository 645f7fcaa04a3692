"""Open, exact len and first schedule of 100 million rows in 10,000 shards, from a manifest made for it. Bar: 1 s, 200 MB.

A fresh process, from its start, imports included; peak memory is the process's whole resident memory.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.bench import WORK, middle, parser, record, table
from benchmarks.runs import run

ROWS, SHARDS, RANKS, BATCH_TOKENS = 100_000_000, 10_000, 8, 14_400


def write_manifest(folder: Path) -> None:
    """Write the manifest of a data set with log-normal lengths as in workload W; there are no shards behind it."""
    from shardprep.core.buckets import fit_edges
    from shardprep.core.content import Generation, Ledger, ShardInfo, SplitInfo
    from shardprep.core.deal import rows_of_shards, tokens_of_shards
    from shardprep.core.histogram import histogram_of
    from shardprep.core.manifest import Manifest, fingerprint_of

    rng, sample = np.random.default_rng(7), 1_000_000
    lengths = np.clip(rng.lognormal(np.log(900.0) - 0.8**2 / 2, 0.8, sample), 16, 8192).astype(np.int64)
    histogram = histogram_of(lengths)
    histogram.counts[:] *= ROWS // sample
    rows, tokens = rows_of_shards(ROWS, SHARDS).tolist(), tokens_of_shards(histogram, SHARDS).tolist()
    shards = tuple(
        ShardInfo(
            f"0badcafe/train/{i:05d}-of-{SHARDS:05d}.parquet", "train", rows[i], tokens[i], tokens[i] * 2,
            hashlib.sha256(b"%d" % i).hexdigest(), 65_536, hashlib.sha256(b"footer %d" % i).hexdigest(), 9,
        )
        for i in range(SHARDS)
    )  # fmt: skip
    generations = (Generation((SplitInfo("train", histogram, ROWS, sum(tokens), shards),)),)
    schema = ({"name": "id", "type": "string", "nullable": False},)
    tokenizer = {"fingerprint": "77" * 32, "eos_id": None, "pad_id": 0}
    buckets = fit_edges(histogram, 64, 8)
    manifest = Manifest(
        plan="0badcafe",
        fingerprint=fingerprint_of(generations=generations, schema=schema, tokenizer=tokenizer, buckets=buckets),
        settings={},
        tokenizer=tokenizer,
        schema=schema,
        buckets=buckets,
        generations=generations,
        ledger=Ledger(found=ROWS, written=ROWS, set_aside={}, rows=ROWS, tokens=sum(tokens)),
        created_by={"shardprep": "made for a benchmark"},
    )
    manifest.check()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_bytes(manifest.to_bytes())


def measure(folder: str) -> None:
    """In a fresh process: print what opening took, part by part."""
    import os
    import resource

    began = float(os.environ["BENCH_T0"])
    times = {}

    def passed(what: str) -> None:
        times[what] = time.time() - began

    import shardprep

    passed("imported")
    dataset = shardprep.open(folder)
    passed("opened")
    loader = dataset.loader("train", batch_tokens=BATCH_TOKENS, rank=0, world_size=RANKS)
    length = len(loader)
    passed("len")
    schedule = loader.plan.schedule(0)
    rows = len(schedule.micro_batch(0, 0).row)
    passed("first schedule")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print("RESULT " + json.dumps({**times, "len": length, "rows": rows, "peak_bytes": peak}))


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    options = flags.parse_args(arguments)
    folder = WORK / "read/big-manifest"
    write_manifest(folder)
    runs = []
    for rep in range(options.reps):
        command = [
            sys.executable,
            "-c",
            "import sys; from benchmarks.big_manifest import measure; measure(sys.argv[1])",
        ]
        done = run([*command, str(folder)], env={"BENCH_T0": str(time.time())}).check()
        found = json.loads(done.output.split("RESULT ")[-1])
        record("big_manifest", {"rep": rep, **found})
        runs.append(found)
    rows = [
        (
            f"{(folder / 'manifest.json').stat().st_size / 1e6:.1f}",
            *(f"{middle([r[what] for r in runs]):.2f}" for what in ("imported", "opened")),
            f"**{middle([r['first schedule'] for r in runs]):.2f}**",
            f"{middle([r['first schedule'] - r['imported'] for r in runs]):.2f}",
            f"**{middle([r['peak_bytes'] for r in runs]) / 1e6:.0f}**",
            runs[0]["len"],
        )
    ]
    heads = (
        "manifest, MB",
        "imported, s",
        "opened, s",
        "first schedule, s",
        "of it without imports, s",
        "peak RSS, MB",
        "len",
    )
    table(f"{ROWS:,} rows in {SHARDS:,} shards, seconds from the process's start (bar: 1 s and 200 MB)", heads, rows)
