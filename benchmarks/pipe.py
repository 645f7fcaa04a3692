"""How a Pipe-mode reader keeps up with its FIFO, and what its buffer costs in padding and memory.

Workload W as RecordIO shards comes through a real FIFO from a process that writes as fast as it can, or at a given rate, as
a network does. "bytes" reads the same FIFO and drops what it reads; "records" decodes it, piece after piece, and drops the
rows; "pipe" makes batches of 16,384 tokens. Bar: the pipe reader takes the stream at 0.7 x the rate of plain reading or more.

    python -m benchmarks pipe                  all
    python -m benchmarks pipe --parts rate     only: rate, padding
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from io import FileIO
from pathlib import Path

from benchmarks.bench import middle, parser, record, table
from benchmarks.reads import data_set, wait_until_quiet

BATCH_TOKENS = 16_384
RATES = (0, 400, 200, 100)  # MB/s of the writer; 0: as fast as it can
BUFFERS_MB = (4, 16, 64, 128, 256, 512)
PIECE = 1 << 20


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/train/*.rec"))


def write(fifo: str, folder: str, rate_mb_s: str) -> None:
    """Write all shards to a FIFO, at most at this rate."""
    rate, sent = float(rate_mb_s) * 1e6, 0
    with open(fifo, "wb", buffering=0) as out:
        started = time.monotonic()
        for shard in shards_of(Path(folder)):
            data = memoryview(shard.read_bytes())
            for at in range(0, len(data), PIECE):
                piece = data[at : at + PIECE]
                while piece:
                    piece = piece[out.write(piece) :]
                sent += min(PIECE, len(data) - at)
                ahead = sent / rate - (time.monotonic() - started) if rate else 0
                if ahead > 0:
                    time.sleep(ahead)


def read(way: str, folder: str, root: str, buffer_mb: str) -> None:
    """Read one epoch, and print what was seen."""
    import shardprep

    if way != "pipe":
        with open(Path(root, "input/data/train_0"), "rb", buffering=0) as file:
            print(json.dumps((read_bytes if way == "bytes" else read_records)(file, folder)))
        return
    pipe = shardprep.pipe(
        "train",
        manifest=folder,
        batch_tokens=BATCH_TOKENS,
        root=root,
        buffer_bytes=int(float(buffer_mb) * 2**20) if float(buffer_mb) else None,
    )
    before = anonymous_bytes()
    while not pipe.metrics()["bytes_fetched"] and not pipe._stream.bytes_read:  # noqa: SLF001
        time.sleep(0.0005)
    started, busy, rows, most = time.monotonic(), time.process_time(), 0, 0
    for batch in pipe:
        rows += batch.real
        if not batch.round % 64:
            most = max(most, anonymous_bytes())
    seconds, busy = time.monotonic() - started, time.process_time() - busy
    pipe.close()
    told = pipe.metrics()
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu": busy,
                "bytes": told["bytes_fetched"],
                "rows": rows,
                "tokens_per_second": told["tokens"] / seconds,
                "padding": told["padding_share"],
                "memory": most - before,
            }
        )
    )


def read_bytes(file: FileIO, folder: str) -> dict[str, float]:  # noqa: ARG001
    """Read a FIFO and drop the bytes."""
    room = bytearray(PIECE)
    size = file.readinto(room)
    started, busy = time.monotonic(), time.process_time()
    while got := file.readinto(room):
        size += got
    return {"seconds": time.monotonic() - started, "cpu": time.process_time() - busy, "bytes": size}


def read_records(file: FileIO, folder: str) -> dict[str, float]:
    """Read a FIFO, decode its records in one thread, and drop the rows."""
    from shardprep.formats.recordio import decode_prefix, schema_of
    from shardprep.storage.dataset import open_dataset

    schema = schema_of(open_dataset(folder)[1])
    room, filled, size, tokens = memoryview(bytearray(4 * PIECE)), 0, 0, 0
    decode_prefix(b"", schema)  # imports and the like
    filled = file.readinto(room)
    started, busy = time.monotonic(), time.process_time()
    while True:
        while filled < len(room) and (got := file.readinto(room[filled:])):
            filled += got
        block, used = decode_prefix(room[:filled], schema)
        if not used:
            break
        tokens, size = tokens + block.tokens, size + used
        room[: filled - used] = bytes(room[used:filled])
        filled -= used
    seconds = time.monotonic() - started
    return {"seconds": seconds, "cpu": time.process_time() - busy, "bytes": size, "tokens_per_second": tokens / seconds}


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process (Linux; 0 elsewhere)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return next(int(line.split()[1]) << 10 for line in status.read_text().splitlines() if line.startswith("RssAnon"))


def one(way: str, folder: Path, rate: float, buffer_mb: float = 0) -> dict[str, float]:
    """Return what a reader in a process of its own saw of one epoch, written by another process."""
    with tempfile.TemporaryDirectory() as root:
        data = Path(root, "input/data")
        data.mkdir(parents=True)
        os.mkfifo(data / "train_0")
        run = [sys.executable, "-m", "benchmarks.pipe"]
        writer = subprocess.Popen([*run, "write", str(data / "train_0"), str(folder), str(rate)])
        reader = subprocess.Popen(
            [*run, "read", way, str(folder), root, str(buffer_mb)], stdout=subprocess.PIPE, text=True
        )
        assert reader.stdout is not None
        lines = reader.stdout.read().splitlines()
        if reader.wait() or writer.wait():
            raise SystemExit(f"{way}: the reader ended with {reader.returncode}, the writer with {writer.returncode}")
        return json.loads(lines[-1])


def rates(folder: Path, reps: int) -> None:
    rows = []
    for rate in RATES:
        found: dict[str, list[dict[str, float]]] = {"bytes": [], "records": [], "pipe": []}
        for _ in range(reps):
            for way, results in found.items():
                results.append(one(way, folder, rate))
        speeds = {way: [r["bytes"] / r["seconds"] / 1e6 for r in results] for way, results in found.items()}
        ratios = {
            way: middle([b / a for a, b in zip(speeds[way], speeds["pipe"], strict=True)])
            for way in ("bytes", "records")
        }
        tokens = middle([r["tokens_per_second"] for r in found["pipe"]]) / 1e6
        busy = middle([r["cpu"] / r["bytes"] * 1e9 for r in found["pipe"]])
        record("pipe", {"rate": rate, **speeds, "ratios": ratios})
        rows.append(
            (
                f"{rate} MB/s" if rate else "as fast as it can", *(f"{middle(s):.0f}" for s in speeds.values()),
                f"{tokens:.0f}", f"{busy:.1f}", f"**{ratios['bytes']:.2f}**", f"{ratios['records']:.2f}",
            )
        )  # fmt: skip
    heads = (
        "the writer", "bytes, MB/s", "records, MB/s", "pipe, MB/s", "pipe, million tokens a second",
        "pipe, CPU seconds a GB", "pipe / bytes (bar: 0.70)", "pipe / records",
    )  # fmt: skip
    table("A Pipe-mode reader against plain reading of the same FIFO", heads, rows)


def paddings(folder: Path) -> None:
    rows = []
    for buffer_mb in BUFFERS_MB:
        found = one("pipe", folder, 0, buffer_mb)
        record("pipe_padding", {"buffer_mb": buffer_mb, **found})
        rows.append((f"{buffer_mb}", f"{100 * found['padding']:.2f} %", f"{found['memory'] / 2**20:.0f}"))
    heads = ("buffer_bytes, MB", "padding", "memory beyond the start, MB")
    table("What the buffer of a pipe costs, workload W in 16 shards of 9 MB tokens", heads, rows)


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--parts", default="rate,padding")
    options = flags.parse_args(arguments)
    folder = data_set("recordio")
    wait_until_quiet(float(os.environ.get("BENCH_PATIENCE_S", "60")))
    if "rate" in options.parts:
        rates(folder, options.reps)
    if "padding" in options.parts:
        paddings(folder)


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
