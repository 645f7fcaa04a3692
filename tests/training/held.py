"""pipelines/train.py with long steps from a step on: whoever waits for that step finds it at work, however busy the machine is.

held.py TRAIN_PY HOLD_AT WORDS...
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path

import torch

LONG_S = 2.0


def steps_in(log: Path) -> int:
    """Return the last step that the budget log tells; a line that is being written does not count."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return max((record["step"] for record in map(json.loads, lines) if record["event"] == "step"), default=0)


def main(program: str, hold_at: int, words: list[str]) -> None:
    log = Path(words[words.index("--checkpoints") + 1]) / "budget.jsonl"
    clip = torch.nn.utils.clip_grad_norm_

    def clipped(*given: object) -> torch.Tensor:
        if steps_in(log) >= hold_at:
            time.sleep(LONG_S)
        return clip(*given)

    torch.nn.utils.clip_grad_norm_ = clipped
    sys.argv, sys.path[0] = [program, *words], str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
