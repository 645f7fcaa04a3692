"""What a handler saves before the first batch arrives, and a fork right after a data set was opened."""

from __future__ import annotations

import subprocess
import sys

from shardprep.torch import TorchLoader


def test_a_state_taken_before_the_first_batch_is_the_beginning(dataset):
    def states(prefetch):
        loader = TorchLoader(dataset.loader(batch_tokens=2_000), prefetch=prefetch)
        supply, seen = loader.loader.in_threads, [loader.state_dict()]

        def watched(*given):
            seen.append(loader.state_dict())
            return supply(*given)

        loader.loader.in_threads = watched
        for batch in loader:
            seen += [loader.state_dict(), batch.state()]
            break
        return [(state["epoch"], state["step"]) for state in seen]

    assert states(0)[:2] == states(2)[:2] == [(0, 0), (0, 0)]
    assert states(0)[2:] == states(2)[2:]


def test_workers_forked_right_after_opening_read_all_rows(shards, tmp_path):
    program = f"""
import warnings
import shardprep
from torch.utils.data import DataLoader
from shardprep.torch import ShardIterable
warnings.simplefilter("ignore")
loader = shardprep.open({str(shards)!r}, cache_dir={str(tmp_path / "cache")!r}).loader(batch_tokens=2_000)
workers = DataLoader(ShardIterable(loader), batch_size=None, num_workers=2, multiprocessing_context="fork")
print(sum(int(batch.weight.sum()) for batch in workers) == loader.plan.sets[0].histogram.rows)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "True\n", done.stderr
