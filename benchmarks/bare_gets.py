"""The limit: list a prefix and GET every object with bare obstore, and do nothing with it.

python -m benchmarks.bare_gets PREFIX PROCESSES        AWS_* in the environment; prints objects and bytes
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import obstore

from benchmarks.s3_corpus import store_at

GETS_IN_FLIGHT = 16  # a process; more gains nothing on this server


def get_all(keys: list[str]) -> int:
    """Return the bytes of all objects, fetched with 16 requests in flight."""
    store = store_at(os.environ["AWS_ENDPOINT_URL"])
    with ThreadPoolExecutor(GETS_IN_FLIGHT) as pool:
        return sum(pool.map(lambda key: len(obstore.get(store, key).bytes()), keys, chunksize=1))


def main() -> None:
    prefix, processes = sys.argv[1], int(sys.argv[2])
    pages = obstore.list(store_at(os.environ["AWS_ENDPOINT_URL"]), prefix=prefix)
    keys = [item["path"] for page in pages for item in page]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        size = sum(pool.map(get_all, [keys[i::processes] for i in range(processes)], chunksize=1))
    print(len(keys), size)


if __name__ == "__main__":
    main()
