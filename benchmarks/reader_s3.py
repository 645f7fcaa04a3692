"""Readers from S3 (SeaweedFS on the same cores), each run in a fresh process with an empty cache.

    python -m benchmarks reader_s3 [--parts epoch,first,bytes,wait] [--readers ours,litdata,...]

epoch  a whole cold epoch of workload W, from the process's start; bars: ours at least 1.2 x litdata, 4 x MosaicML, HF
       streaming and WebDataset. litdata is patched for plain http.
first  the first batch, against a bare parallel obstore fetch of the same bytes; bar: at most 1.3 x
bytes  over two epochs by 4 nodes of 2 ranks, each node with its own cache, 16 shards; bar: 1.02 x the data
wait   share of time waited by a consumer of 500,000 tokens/s with 30 ms before each answer; bar: 1 % after the first batch
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.bench import ROOT, bench_of, middle, parser, record, table
from benchmarks.read_workload import ROWS
from benchmarks.reads import cache_of, data_set, format_of, python_of, read
from benchmarks.runs import run
from benchmarks.s3_reads import CountingRelay, folder_bytes, place_of, s3_reads
from tests.servers import FaultProxyProcess, SeaweedFS, environment

READERS = "ours,ours_all,litdata,mds,hf_stream,wds"
BARS = {"litdata": 1.2, "mds": 4, "hf_stream": 4, "wds": 4}
NODES, RANKS_A_NODE, EPOCHS = 4, 2, 2
TOKENS_PER_SECOND, LATENCY_S = 500_000, 0.030


def cold_epochs(server: SeaweedFS, readers: list[str], peers: Path | None, reps: int) -> None:
    found: dict[str, list[dict]] = defaultdict(list)
    for rep in range(reps):
        for reader in readers:
            env = {**server.env, **({"LITDATA_HTTP": "1"} if reader == "litdata" else {})}
            result, done = read(reader, peers, place=place_of(format_of(reader)), empty_cache=True, env=env)
            record("reader_s3 epoch", {"rep": rep, **result, "reader": reader}, done)
            if "error" in result:
                print(f"{reader}: {result['error']}", file=sys.stderr)
                continue
            if result["rows"] != ROWS:
                print(f"{reader}: only {result['rows']} rows", file=sys.stderr)
            print(
                f"{reader} rep {rep}: {result['total_s']:.2f} s, first {result['first_s']:.2f}",
                file=sys.stderr,
                flush=True,
            )
            found[reader].append({**result, "cpu_s": done.cpu_s})
    rows = []
    for reader in sorted(found, key=lambda r: middle([x["total_s"] for x in found[r]])):
        runs = found[reader]
        leads = [
            f"{middle([b['total_s'] / a['total_s'] for a, b in zip(found[us], runs, strict=False)]):.2f} x"
            for us in ("ours", "ours_all")
            if us in found
        ]
        rows.append(
            (
                reader, f"{middle([r['total_s'] for r in runs]):.2f}", ", ".join(f"{r['total_s']:.2f}" for r in runs),
                f"{middle([r['first_s'] for r in runs]):.2f}",
                f"{middle([r['cpu_s'] for r in runs]):.1f}", *leads, BARS.get(reader, "-"),
            )
        )  # fmt: skip
    heads = ("reader", "cold epoch, s", "runs", "first batch, s", "client CPU, s",
             *(f"{us} over it" for us in ("ours", "ours_all") if us in found), "bar")  # fmt: skip
    table("A cold epoch from S3, workload W, empty cache, no worker processes", heads, rows)


Span = tuple[str, int, int]  # key, start, stop (exclusive)


def first_spans(folder: Path) -> list[list[Span]]:
    """Return what the first round of one rank needs, in the order in which one can know it: manifest, footers, row groups."""
    import pyarrow.parquet as pq

    import shardprep
    from shardprep.formats.parquet import row_group_range

    dataset = shardprep.open(str(folder))
    loader = dataset.loader("train", batch_tokens=14_400, rank=0, world_size=1)
    batch = loader.plan.schedule(0).micro_batch(0, 0)
    footers: dict[Span, None] = {}
    groups: dict[Span, None] = {}
    for shard, row in sorted(set(zip(batch.shard.tolist(), batch.row.tolist(), strict=True))):
        info = loader.plan.refs[shard].info
        metadata, first = pq.read_metadata(folder / info.name), 0
        footers[info.name, info.bytes - info.footer_bytes, info.bytes] = None
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            if first <= row < first + count:
                groups[info.name, *row_group_range(metadata, group)] = None
            first += count
    manifest = ("manifest.json", 0, (folder / "manifest.json").stat().st_size)
    return [[manifest], list(footers), list(groups)]


BARE = """
import os, sys, json, time
began = float(os.environ["BENCH_T0"])
import obstore
from obstore.store import S3Store
from concurrent.futures import ThreadPoolExecutor
imported = time.time() - began
store = S3Store("bench", prefix=sys.argv[2], client_options={"allow_http": True}, virtual_hosted_style_request=False)
waves, got = json.loads(sys.argv[1]), []
with ThreadPoolExecutor(32) as pool:
    for wave in waves:
        got += pool.map(lambda job: len(obstore.get_range(store, job[0], start=job[1], end=job[2])), wave)
print("RESULT " + json.dumps({"import_s": imported, "first_s": time.time() - began, "bytes": sum(got), "requests": len(got)}))
"""


def first_batches(server: SeaweedFS, folder: Path, reps: int, *, latency_s: float = 0.0) -> None:
    spans = first_spans(folder)
    bare = {
        "bare fetch, all at once": [[span for wave in spans for span in wave]],
        "bare fetch, one after the other as far as needed": spans,
    }
    found: dict[str, list[dict]] = defaultdict(list)
    with FaultProxyProcess(server.port) as proxy:
        proxy.set_rules([{"kind": "delay", "delay": latency_s}])
        env = environment(proxy.endpoint if latency_s else server.endpoint)
        for rep in range(reps):
            result, done = read("ours", None, "--stop", "1", place=place_of("shardprep"), empty_cache=True, env=env)
            record("reader_s3 first", {"rep": rep, "latency_s": latency_s, **result}, done)
            found["ours"].append(result)
            for name, waves in bare.items():
                command = [sys.executable, "-c", BARE, json.dumps(waves), "shardprep"]
                done = run(command, env={**env, "BENCH_T0": str(time.time())}).check()
                found[name].append(json.loads(done.output.split("RESULT ")[-1]))
                record("reader_s3 bare", {"rep": rep, "latency_s": latency_s, "what": name, **found[name][-1]}, done)
    rows = []
    for name, runs in found.items():
        net = [run["first_s"] - run["import_s"] for run in runs]
        ours = found["ours"]
        leads = [
            middle([a["first_s"] / b["first_s"] for a, b in zip(ours, runs, strict=True)]),
            middle([(a["first_s"] - a["import_s"]) / b for a, b in zip(ours, net, strict=True)]),
        ]
        times = (middle([r["first_s"] for r in runs]), middle([r["import_s"] for r in runs]), middle(net))
        rows.append((name, *(f"{t:.3f}" for t in times), *("-" if name == "ours" else f"**{x:.2f}**" for x in leads)))
    heads = ("what", "from the process's start, s", "of it imports, s", "without, s", "ours over it", "without imports")
    facts = found["bare fetch, all at once"][0]
    title = f"First batch from S3, empty cache, {latency_s * 1000:.0f} ms latency: {facts['requests']} ranges, "
    table(title + f"{facts['bytes'] / 1e6:.1f} MB (bar: 1.3)", heads, rows)


def results(processes: list[subprocess.Popen]) -> list[dict]:
    found = []
    for process in processes:
        output = process.communicate(timeout=300)[0]
        if process.returncode:
            sys.exit(f"a rank ended with {process.returncode}:\n{output[-3000:]}")
        found.append(json.loads(output.split("RESULT ")[-1]))
    return found


def start_rank(cache: Path, env: dict[str, str], *flags: str, place: str | None = None) -> subprocess.Popen:
    import os

    command = [
        sys.executable,
        "-m",
        "benchmarks.rank_run",
        place or place_of("shardprep"),
        "--cache",
        str(cache),
        *flags,
    ]
    given = {**os.environ, **env, "PYTHONPATH": str(ROOT), "BENCH_T0": str(time.time())}
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def fetched_bytes(server: SeaweedFS, folder: Path) -> None:
    """Nodes play one after the other, the ranks of a node side by side: nothing is exchanged between nodes."""
    data, counted, told, rows = folder_bytes(folder), [], 0, 0
    with CountingRelay(server.port) as relay:
        for node in range(NODES):
            cache, before = cache_of(f"node-{node}", empty=True), relay.received_bytes
            ranks = range(node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE)
            processes = [
                start_rank(
                    cache, environment(relay.endpoint), "--rank", str(rank), "--world", str(NODES * RANKS_A_NODE),
                    "--epochs", str(EPOCHS),
                )
                for rank in ranks
            ]  # fmt: skip
            for result in results(processes):
                told += int(result["metrics"].get("bytes_fetched", 0))
                rows += result["rows"]
            counted.append(relay.received_bytes - before)
            cache_of(f"node-{node}", empty=True)
    if rows != ROWS * EPOCHS:
        sys.exit(f"{rows} rows were played in {EPOCHS} epochs of {ROWS}")
    record("reader_s3 bytes", {"counted": counted, "told": told, "data": data})
    row = (
        f"{data / 1e6:.2f}", ", ".join(f"{n / 1e6:.2f}" for n in counted), f"**{sum(counted) / data:.4f}**",
        f"{told / data:.4f}",
    )  # fmt: skip
    heads = (
        "shards, MB",
        "received by each node, MB, HTTP heads and manifests included",
        "over the data",
        "by metrics()",
    )
    table(
        f"Bytes fetched in {EPOCHS} epochs by {NODES} nodes of {RANKS_A_NODE} ranks (bar: 1.02 x the data)",
        heads,
        [row],
    )


def waits(server: SeaweedFS, reps: int) -> None:
    rows = []
    with FaultProxyProcess(server.port) as proxy:
        proxy.set_rules([{"kind": "delay", "delay": LATENCY_S}])
        for _ in range(reps):
            cache = cache_of("wait", empty=True)
            rank = start_rank(cache, environment(proxy.endpoint), "--tokens-per-second", str(TOKENS_PER_SECOND))
            result = results([rank])[0]
            record("reader_s3 wait", result)
            metrics = result["metrics"]
            rows.append(
                (
                    f"{result['tokens'] / result['wall_s']:,.0f}", f"{result['first_s']:.2f}", f"{result['wall_s']:.1f}",
                    f"{result['waited_s']:.3f}", f"{result['longest_wait_s'] * 1000:.0f}",
                    f"**{result['waited_s'] / result['wall_s']:.2%}**", f"{float(metrics.get('wait_share', 0)):.2%}",
                )
            )  # fmt: skip
            cache_of("wait", empty=True)
    heads = ("tokens/s", "first batch, s", "epoch after it, s", "waited, s", "longest wait, ms", "share waited",
             "by metrics(), first batch included")  # fmt: skip
    title = f"A consumer of {TOKENS_PER_SECOND:,} tokens/s, S3 with {LATENCY_S * 1000:.0f} ms a request (bar: 1 %)"
    table(title, heads, rows)


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--parts", default="epoch,first,bytes,wait")
    flags.add_argument("--readers", default=READERS)
    options = flags.parse_args(arguments)
    peers, parts = bench_of(options).peers, options.parts.split(",")
    readers = [reader for reader in options.readers.split(",") if python_of(reader, peers) is not None]
    formats = {"shardprep": sys.executable}
    if "epoch" in parts:
        formats |= {format_of(reader): str(python_of(reader, peers)) for reader in readers}
    with s3_reads({name: data_set(name, python) for name, python in formats.items()}) as server:
        if "epoch" in parts:
            cold_epochs(server, readers, peers, options.reps)
        if "first" in parts:
            first_batches(server, data_set(), options.reps)
            first_batches(server, data_set(), options.reps, latency_s=LATENCY_S)
        if "bytes" in parts:
            fetched_bytes(server, data_set())
        if "wait" in parts:
            waits(server, 1)
