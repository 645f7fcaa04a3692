"""A job of its own: reads shards of a data set through a cache, again and again, and compares every row.

read_shards.py SET FOLDER LIMIT SEED TIMES
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from shardprep.reader.cache import NoRoom, ShardCache
from tests.reader.shards import assert_same_rows, refs_in, rows_of


def main(folder: str, cache_folder: str, limit: str, seed: str, times: str) -> None:
    rng = random.Random(int(seed))
    refs = refs_in(Path(folder))
    cache = ShardCache(cache_folder, int(limit) or None)
    print("begun", flush=True)
    for _ in range(int(times)):
        number = rng.randrange(len(refs))
        deadline = time.monotonic() + 200
        while True:
            try:
                shard = cache.get(refs[number])
            except NoRoom:  # others map what is there: they let go soon
                assert time.monotonic() < deadline
                time.sleep(0.002)
            else:
                break
        assert_same_rows(shard.view.block, rows_of(number, 400))
        shard.close()
        del shard
    print(cache.counts()["misses"], flush=True)
    print("done", flush=True)


main(*sys.argv[1:])
