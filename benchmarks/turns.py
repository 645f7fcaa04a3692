"""Tools that do the same job in turns, and the table that compares them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.bench import COLUMNS, WORK, Bench, fresh, middle, record, table
from benchmarks.outputs import written
from benchmarks.peers import ENVIRONMENT_OF, READS_S3
from benchmarks.runs import Run, run

OURS = ("fast", "reference")
LOCAL_TOOLS = (*OURS, "loop", "loop_rayon", "datatrove", "litdata", "daft", "hf", "ray")
S3_TOOLS = (*OURS, *READS_S3)
PEERS_KEPT = 3


def compare(
    bench: Bench,
    title: str,
    name: str,
    source: str,
    part: str,
    tools: Sequence[str],
    reps: int,
    limit_s: float,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run the tools in turns on one source, and print documents per second and shardprep's lead over each."""
    runs: dict[str, list[Run]] = {tool: [] for tool in tools}
    counts: dict[str, tuple[int, int | None]] = {}
    out: dict[str, str] = {}
    for rep in range(reps):
        for tool in [t for t in tools if t not in out and (rep == 0 or t in _kept(runs))]:
            command = command_of(bench, tool, source, fresh(f"out/{tool}"))
            if command is None:
                out[tool] = "no environment"
                continue
            # Without the variable, the hub's client asks the network for things that a local job does not need.
            quiet = {} if source.startswith("s3://") else {"HF_HUB_OFFLINE": "1"}
            done = run(command, env={**quiet, **(env or {})}, limit_s=limit_s)
            record(name, {"tool": tool, "part": part, "rep": rep, "tokenizer": bench.tokenizer.name}, done)
            if done.returncode:
                why = "over the limit" if done.killed else f"ended with {done.returncode}"
                print(f"{tool}: {why}\n{done.output[-1500:]}", file=sys.stderr)
                out[tool] = f"{why} after {done.wall_s:.0f} s"
                continue
            runs[tool].append(done)
            counts[tool] = written(WORK / f"out/{tool}")
            print(f"{name} {part} rep {rep}: {tool} {done.wall_s:.2f} s, {counts[tool]}", file=sys.stderr, flush=True)
    _print(title, runs, counts, out)


def command_of(bench: Bench, tool: str, source: str, output: Path) -> list[str] | None:
    """Return the command of a tool; None where its environment is not there."""
    if tool in OURS:
        return bench.build(source, output, *COLUMNS, "--tokenizer-backend", tool)
    if bench.peers is not None:
        python = str(bench.peers / ENVIRONMENT_OF.get(tool, "v") / "bin/python")
    elif tool.startswith("loop"):  # needs nothing that this environment lacks
        python = sys.executable
    else:
        return None
    return [python, str(Path(__file__).with_name("peers.py")), tool, source, str(output), str(bench.tokenizer)]


def _kept(runs: Mapping[str, Sequence[Run]]) -> set[str]:
    """Return the tools that are worth another repetition: ours, the loop (a bar names it), and the fastest peers."""
    peers = sorted((t for t in runs if t not in OURS and runs[t]), key=lambda t: runs[t][0].wall_s)
    return {*OURS, "loop", *peers[:PEERS_KEPT]}


def _print(
    title: str, runs: Mapping[str, Sequence[Run]], counts: Mapping[str, tuple[int, int | None]], out: Mapping[str, str]
) -> None:
    walls = {tool: middle([r.wall_s for r in done]) for tool, done in runs.items() if done and tool not in out}
    rows = []
    for tool, wall_s in sorted(walls.items(), key=lambda pair: pair[1]):
        documents, tokens = counts[tool]
        leads = [f"{wall_s / walls[ours]:.2f} x" if ours in walls else "-" for ours in OURS]
        times = ", ".join(f"{r.wall_s:.1f}" for r in runs[tool])
        cpu_s = middle([r.cpu_s for r in runs[tool]])
        label = f"**shardprep, {tool}**" if tool in OURS else tool
        rows.append((label, times, f"{documents / wall_s:,.0f}", f"{cpu_s:.1f}", documents, tokens or "-", *leads))
    rows += [(tool, why, *["-"] * 6) for tool, why in out.items()]
    heads = ("tool", "seconds", "documents/s", "CPU s", "documents", "tokens", "lead of fast", "lead of reference")
    table(title, heads, rows)
