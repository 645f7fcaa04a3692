"""A build with a slow tokenizer that writes down what it did: so that a test can kill it at a moment of its choice.

    SLOW_BUILD_LOG=FILE SLOW_BUILD_HOLD=CALLS python slow_build.py CALL_JSON

The call: source, output and settings. The log gets one line for each call of the tokenizer: "PID texts". Calls after the
first so many wait as long as there is FILE.hold: so there is a middle of the work, however busy the machine is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

SLEEP_S = 0.15  # a task of 256 small files is one call


class SlowBytes:
    """The byte tokenizer, slowly."""

    fingerprint = "bytes"
    vocab_size = 257
    eos_id = 256

    def encode_batch(self, texts: Sequence[str]) -> tuple[Any, Any]:
        line = f"{os.getpid()} {len(texts)}\n".encode()
        log = os.environ["SLOW_BUILD_LOG"]
        file = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        os.write(file, line)
        number = os.pread(file, os.lseek(file, 0, os.SEEK_CUR), 0).count(b"\n")
        os.close(file)
        time.sleep(SLEEP_S)
        while number > int(os.environ["SLOW_BUILD_HOLD"]) and os.path.exists(f"{log}.hold"):
            time.sleep(0.01)
        data = [text.encode() for text in texts]
        offsets = np.concatenate([[0], np.cumsum([len(d) for d in data])]).astype(np.int64)
        return np.frombuffer(b"".join(data), dtype=np.uint8).astype(np.int32), offsets


def main() -> None:
    import shardprep
    from shardprep.errors import ShardprepError

    call = json.loads(sys.argv[1])
    try:
        summary = shardprep.build(call["source"], call["output"], tokenizer=SlowBytes(), **call["settings"])
    except ShardprepError as error:
        print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
