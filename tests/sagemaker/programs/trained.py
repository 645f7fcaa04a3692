"""A training process: real shards, checkpoints, a graceful stop. Its "model" is the sum of all tokens that it has seen."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import shardprep
from shardprep.adapters.sagemaker import Checkpoints, GracefulStop


def main(job):
    checkpoints = Checkpoints(job["checkpoints"])
    cache = str(Path(job["checkpoints"]).parent / "cache")
    loader = shardprep.open(job["uri"], cache_dir=cache).loader("train", batch_tokens=512, accumulate=2)
    model = 0
    with open(job["log"], "ab", buffering=0) as log:

        def tell(**line):
            log.write(json.dumps(line).encode() + b"\n")

        found = checkpoints.load()
        if found is not None:
            loader.load_state_dict(found.state["reader"])
            model = json.loads(Path(found.files[0]).read_text())
            tell(resumed=found.step)

        def save():
            state = loader.state_dict()
            step = state["epoch"] * loader.steps + state["step"]
            with checkpoints.file(f"model-{step}.json") as path:
                Path(path).write_text(json.dumps(model))
            checkpoints.save(step, {"reader": state}, files=[f"model-{step}.json"])
            tell(saved=step)

        rows, lines = [], 0
        with GracefulStop(save, save_every_s=job.get("save_every_s")) as stop:
            if loader.upcoming_state()["epoch"] == 0:
                for batch in loader:
                    model += int((batch.input_ids * batch.attention_mask * (batch.weight[:, None] > 0)).sum())
                    rows += [name for name, weight in zip(batch.ids, batch.weight, strict=True) if weight]
                    if batch.last_in_step:
                        tell(rows=rows)
                        rows, lines = [], lines + 1
                        # Slow from a step on: whoever waits for that step finds it at work, however busy the machine is.
                        time.sleep(1 if lines >= job.get("slow_after", 1e9) else job["step_seconds"])
                        if stop.after_step():
                            break
                else:
                    save()
        left = stop.seconds_left if stop.requested else None
        print(json.dumps({"stopped_by": stop.signal and stop.signal.name, "seconds_left": left, "model": model}))


main(json.loads(sys.argv[1]))
