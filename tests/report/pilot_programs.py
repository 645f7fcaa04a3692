"""Training-like programs for the pilot's tests, run as `python pilot_programs.py WHAT SHARDS CACHE [...]`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import shardprep


def loader_of(**settings):
    dataset = shardprep.open(sys.argv[2], cache_dir=sys.argv[3])
    return dataset.loader("train", **{"batch_tokens": 2_000, **settings})


def steady():
    """Work of known length: 4 ms a micro-batch and 3 ms a step, for ever."""
    loader = loader_of(accumulate=3)
    while True:
        for batch in loader:
            time.sleep(0.004)
            if batch.last_in_step:
                time.sleep(0.003)


def epochs():
    """Play some epochs, say how many steps, and end."""
    loader = loader_of()
    for _ in range(int(sys.argv[4])):
        for _batch in loader:
            time.sleep(0.003)
    print("played", loader.steps * int(sys.argv[4]), "steps until", time.time(), flush=True)


def small_windows():
    """Next to no work on shards that are needed one after the other: storage sets the pace."""
    for _batch in loader_of(batch_tokens=None, batch_size=20, window_rows=1):
        time.sleep(0.001)


def few_steps():
    for batch in loader_of():
        if batch.step == 10:
            break


def failing():
    loader = loader_of()
    for number, _batch in enumerate(loader):
        if number == 5:
            print("loss is nan", flush=True)
            raise RuntimeError("CUDA out of memory, or so")


def no_loader():
    print("trained without shardprep")


def family():
    """A parent with a child in a session of its own, as torchrun's workers are; both write their process ids."""
    with open(f"{sys.argv[4]}/child", "w") as out:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        out.write(str(subprocess.Popen(command, start_new_session=True).pid))
    # A grandchild whose parent has ended: it is nobody's child any more.
    leave = ["sh", "-c", 'sleep 600 > /dev/null 2>&1 & echo $! > "$0"', f"{sys.argv[4]}/orphan"]
    subprocess.run(leave, start_new_session=True, check=True)
    with open(f"{sys.argv[4]}/parent", "w") as out:
        out.write(str(os.getpid()))
    steady()


def deaf():
    """A family that does not heed SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    family()


def leaver():
    """Play an epoch and end, with something left running, and files of its own among the metrics."""
    folder = os.environ["SHARDPREP_METRICS_DIR"]
    os.mkdir(f"{folder}/folder.jsonl")
    with open(f"{folder}/own.jsonl", "w") as out:
        out.write('{"loss": 1}\nnot JSON\n[1]\n')
    leave = ["sh", "-c", 'sleep 600 > /dev/null 2>&1 & echo $! > "$0"', f"{sys.argv[4]}/orphan"]
    subprocess.run(leave, start_new_session=True, check=True)
    print("x" * 8_000_000, end="")  # as a progress bar that knows no end of line
    for _batch in loader_of():
        time.sleep(0.001)


def late_rank():
    """Two ranks that write their steps one after the other, and another split before them."""
    folder, os.environ["SHARDPREP_METRICS_DIR"] = os.environ["SHARDPREP_METRICS_DIR"], sys.argv[4]
    for _ in loader_of():
        time.sleep(0.001)
    with open(f"{sys.argv[4]}/train-rank-00000.jsonl") as file:
        lines = [json.loads(line) for line in file]
    whole = {name: [x for line in lines for x in line["steps"].get(name, [])] for name in lines[-1]["steps"]}
    few = {name: values[:10] for name, values in whole.items()}
    for split, rank, steps in (("first", 0, few), ("two", 0, whole), ("two", 1, whole)):
        told = lines[0] | {"split": split, "rank": rank, "world_size": 2, "steps": steps}
        with open(f"{folder}/{split}-rank-{rank:05d}.jsonl", "w") as out:
            out.write(json.dumps(told) + "\n")
        time.sleep(0.3)
    time.sleep(600)


def two_ranks():
    """Under torchrun: rank 1 takes four times as long for a micro-batch; a step ends for both together."""
    import torch
    import torch.distributed as dist

    from shardprep.torch import TorchLoader

    dist.init_process_group("gloo")
    dataset = shardprep.open(sys.argv[2], cache_dir=sys.argv[3])
    loader = TorchLoader(dataset.loader("train", batch_tokens=500, accumulate=3))
    one = torch.ones(1)
    for _ in range(100):
        for batch in loader:
            time.sleep(0.003 * (1 + 3 * dist.get_rank()))
            if batch.last_in_step:
                dist.all_reduce(one)


if __name__ == "__main__":
    {
        "steady": steady,
        "epochs": epochs,
        "small_windows": small_windows,
        "few_steps": few_steps,
        "failing": failing,
        "no_loader": no_loader,
        "family": family,
        "deaf": deaf,
        "two_ranks": two_ranks,
        "leaver": leaver,
        "late_rank": late_rank,
    }[sys.argv[1]]()
