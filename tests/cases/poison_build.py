"""A program that builds with a byte tokenizer of its own, which ends its process on the text POISON.

    python poison_build.py SOURCE OUTPUT SETTINGS_JSON

Prints the summary, or the error's message on standard error with its exit code. With LOADS_LOG in the environment
every unpickling of the tokenizer adds the process's id to that file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardprep
from shardprep.errors import ShardprepError

POISON = "POISON"


class Poisoned:
    """Bytes as ids; a text that is POISON kills. Pickled by value, since it belongs to the program that runs."""

    fingerprint = "bytes, and POISON kills"
    vocab_size = 258
    eos_id = 256
    pad_id = 257

    def encode_batch(self, texts: Sequence[str]) -> tuple[Any, Any]:
        if POISON in texts:
            os._exit(137)
        data = [text.encode() for text in texts]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in data])]).astype(np.int64)
        return np.frombuffer(b"".join(data), dtype=np.uint8).astype(np.int32), offsets

    def __setstate__(self, state: dict[str, Any]) -> None:
        log = os.environ.get("LOADS_LOG")
        if log:
            with open(log, "a") as file:
                file.write(f"{os.getpid()}\n")

    def __getstate__(self) -> dict[str, Any]:
        return {"not": "empty"}


def main() -> int:
    source, output, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    try:
        print(json.dumps(shardprep.build(source, output, tokenizer=Poisoned(), **settings)))
    except ShardprepError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
