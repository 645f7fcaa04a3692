"""Work that is done again after kill -9 of everything at half way. Bar: at most one task per worker.

The staging folder is watched from outside: the kill comes when half of the scan tasks are finished; afterwards a task
counts as redone if its finished file is written again, and each worker may have lost the one it was at.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

from benchmarks.bench import COLUMNS, bench_of, fresh, parser, record, table
from benchmarks.outputs import written
from benchmarks.runs import run

WORKERS = 2


def finished(staging: Path) -> dict[str, int]:
    """Return the finished scan tasks: name of the sidecar -> inode (a file written again is another one)."""
    found = {}
    for path in staging.glob("*/scan-*.json"):
        try:
            found[path.name] = path.stat().st_ino
        except FileNotFoundError:
            continue  # removed after publishing, between the two calls
    return found


def content(output: Path) -> dict[str, str]:
    """Return name -> sha256 of everything that must be the same after any crash: all but build.json."""
    files = (p for p in output.rglob("*") if p.is_file() and p.name != "build.json")
    return {str(p.relative_to(output)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--docs", default="full", choices=["full", "20k", "small"])
    options = flags.parse_args(arguments)
    bench = bench_of(options)
    source = bench.documents(options.docs)

    def command(output: Path, staging: Path) -> list[str]:
        flags = ("--tokenizer-backend", "fast", "--workers", str(WORKERS), "--staging", str(staging))
        return bench.build(source, output, *COLUMNS, *flags)

    clean_out, clean_staging = fresh("out/redo-clean"), fresh("out/redo-clean-staging")
    seen: dict[str, int] = {}

    def watch(staging: Path, into: dict[str, int]) -> bool:
        into.update(finished(staging))
        return False

    clean = run(command(clean_out, clean_staging), kill_when=lambda: watch(clean_staging, seen)).check()
    tasks = len(seen)
    output, staging = fresh("out/redo"), fresh("out/redo-staging")
    killed = run(command(output, staging), kill_when=lambda: len(finished(staging)) >= tasks / 2)
    if not killed.killed:
        sys.exit("the job ended before half of its tasks were seen to be finished: take more documents")
    time.sleep(0.5)
    before = finished(staging)
    after: dict[str, int] = {}
    rerun = run(command(output, staging), kill_when=lambda: watch(staging, after)).check()
    again = sum(after.get(name, inode) != inode for name, inode in before.items())
    lost = min(WORKERS, tasks - len(before))
    same = content(clean_out) == content(output)
    record("redo", {"tasks": tasks, "finished": len(before), "again": again, "lost": lost, "same": same}, rerun)
    row = (
        tasks,
        len(before),
        f"**{again}**",
        f"at most {lost}",
        f"{clean.wall_s:.1f}, {killed.wall_s:.1f}, {rerun.wall_s:.1f}",
        written(output)[0],
        "yes" if same else "NO",
    )
    heads = (
        "scan tasks",
        "finished at the kill",
        "finished ones done again",
        "unfinished ones lost",
        "seconds: clean, until the kill, rerun",
        "documents",
        "same bytes as the clean run",
    )
    table(f"kill -9 at half way, {WORKERS} workers (bar: at most one task per worker is done again)", heads, [row])
