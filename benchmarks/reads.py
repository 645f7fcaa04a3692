"""Where workload W lies in every format, made when it is missing, and one run of a reader in a fresh process."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.bench import ROOT, WORK
from benchmarks.read_workload import ROWS
from benchmarks.runs import Run, run

FOLDER = Path(os.environ.get("READ_WORK", WORK / "read"))
PEERS = {  # reader -> its format and environment, as in read_peers.py, which only the peers' environments can import
    "mmap": ("mmap", "v"),
    "mmap_plain": ("mmap", "v"),
    "litdata": ("litdata", "v"),
    "hf_map": ("parquet", "v"),
    "grain": ("arrayrec", "v"),
    "wds": ("wds", "v"),
    "mds": ("mds", "m"),
    "hf_stream": ("parquet", "v"),
}


def python_of(reader: str, peers: Path | None) -> str | None:
    """Return the interpreter of a reader's environment; None where it is not there."""
    if reader.startswith("ours"):
        return sys.executable
    python = None if peers is None else peers / PEERS[reader][1] / "bin/python"
    return str(python) if python is not None and python.exists() else None


def format_of(reader: str) -> str:
    return "shardprep" if reader.startswith("ours") else PEERS[reader][0]


def data_set(format_name: str = "shardprep", python: str = sys.executable, rows: int = ROWS) -> Path:
    """Return the folder of W in a format; write it first where it is missing."""
    folder = FOLDER / (format_name if rows == ROWS else f"{format_name}-{rows}")
    if not folder.exists():
        making = folder.with_name(folder.name + ".making")
        command = [python, "-m", "benchmarks.read_workload", format_name, str(making), "--rows", str(rows)]
        run(command, env={"PYTHONPATH": str(ROOT)}).check()
        making.rename(folder)
    return folder


def cache_of(reader: str, *, empty: bool = False) -> Path:
    """Return the folder of a reader's cache; one for all readers of ours."""
    folder = FOLDER / f"cache-{'ours' if reader.startswith('ours') else reader}"
    if empty:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def busy_s() -> float:
    """Return the CPU seconds that all processes of this machine used since it started (Linux; 0 elsewhere)."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, soft, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(limit_s: float) -> None:
    """Return when other processes take less than a tenth of one core for a second, or after limit_s."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = busy_s()
        time.sleep(1)
        if busy_s() - before < 0.1:
            return


PATIENCE_S = float(os.environ.get("BENCH_PATIENCE_S", "60"))  # 0: never wait for a quiet machine, never try again


def read_alone(*arguments: object, **options: object) -> tuple[dict[str, object], Run]:
    """Do as `read`, and again where other processes took more than 5 % of the cores meanwhile; the quietest run counts."""
    best: tuple[float, tuple[dict[str, object], Run]] | None = None
    for _ in range(3 if PATIENCE_S else 1):
        wait_until_quiet(PATIENCE_S)
        before = busy_s()
        result, done = read(*arguments, **options)
        others = (busy_s() - before - done.cpu_s) / max(done.wall_s, 1e-9) / (os.cpu_count() or 1)
        result["others"] = round(others, 3)
        if best is None or others < best[0]:
            best = others, (result, done)
        if others < 0.05 or "error" in result:
            break
    assert best is not None
    return best[1]


def read(
    reader: str,
    peers: Path | None,
    *flags: str,
    place: str | None = None,
    workers: int = 0,
    empty_cache: bool = False,
    env: Mapping[str, str] | None = None,
    limit_s: float = 300,
) -> tuple[dict[str, object], Run]:
    """Run a reader in a fresh process; return what it says of itself and what was measured from outside.

    A failure is {"error": its last words}. Without a place the reader reads its own folder.
    """
    python = python_of(reader, peers)
    if python is None:
        return {"error": "no environment"}, Run(0, 0, 1, "")
    where = place or str(data_set(format_of(reader), python))
    cache = cache_of(reader, empty=empty_cache)
    command = [
        python,
        "-m",
        "benchmarks.read_run",
        reader,
        where,
        "--workers",
        str(workers),
        "--cache",
        str(cache),
        *flags,
    ]
    quiet = {} if where.startswith("s3://") else {"HF_HUB_OFFLINE": "1"}
    given = {**quiet, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **(env or {}), "BENCH_T0": str(time.time())}
    done = run(command, env=given, limit_s=limit_s)
    if empty_cache:
        shutil.rmtree(cache, ignore_errors=True)
    results = [line[7:] for line in done.output.splitlines() if line.startswith("RESULT ")]
    if not results:
        why = "over the limit" if done.killed else f"ended with {done.returncode}"
        return {"error": f"{why}: {done.output[-800:]}"}, done
    return json.loads(results[-1]), done
