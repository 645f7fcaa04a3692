"""A program that builds, and dies at its k-th put, for every k: with half the bytes of that file written.

    python dying_build.py OUTPUT_PARENT TOKENIZER CALL_JSON

For k = 1, 2, ... a forked child builds into OUTPUT_PARENT/k (which may hold a data set already) and ends by os._exit in
the middle of its k-th put. The program prints one line a child, "k code", and ends with the first child that got through.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import Any

import pyarrow.parquet  # all of these for speed: what is loaded here need not be loaded in every child
import tokenizers

import shardprep.formats.engines
import shardprep.prep.build
import shardprep.report.page
from shardprep.api import build_dataset
from shardprep.prep.settings import Settings

DIED = 99
LOADED = (pyarrow.parquet, tokenizers, shardprep.formats.engines, shardprep.prep.build, shardprep.report.page)


def build_and_die(call: dict[str, Any], output: str, tokenizer: str, at: int) -> None:
    write, seen = os.write, 0

    def dying(file: int, data: Any) -> int:
        nonlocal seen
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and not found.st_size:  # the first bytes of a file
            seen += 1
            if seen == at:
                write(file, data[: len(data) // 2])
                os._exit(DIED)
        return write(file, data)

    os.write = dying
    build_dataset(call["source"], output, tokenizer, Settings.of(call["settings"]))


def main() -> None:
    parent, tokenizer, call = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    at, code = 0, DIED
    while code == DIED:
        at += 1
        child = os.fork()
        if not child:
            try:
                build_and_die(call, os.path.join(parent, str(at)), tokenizer, at)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(at, code, flush=True)


if __name__ == "__main__":
    main()
