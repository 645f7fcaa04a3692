"""Programs of several real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"


def environment(**more: object) -> dict[str, str]:
    # One thread each: several processes on two cores, and sums in one order.
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in more.items()}}


def ranks(world: int, program: str | Path, *arguments: object, timeout_s: float = 300) -> list[str]:
    """Run a program as so many ranks, without torchrun; return what each printed."""
    port = free_port()
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    processes = [
        subprocess.Popen(
            command,
            env=environment(RANK=rank, WORLD_SIZE=world, MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors
    return [out for out, _ in said]


def torchrun(world: int, program: Path, *arguments: object, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a program under torchrun."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-addr", "127.0.0.1",
        "--master-port", str(free_port()), str(program), *map(str, arguments),
    ]  # fmt: skip
    return subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
