"""The other readers, each as its own documentation shows it, on workload W in its own format (read_workload.py).

A reader is a function (place, workers, cache) -> Reader: place is a folder or s3://bucket/prefix, workers a number of worker
processes, cache an empty folder. Batches are of 16 random rows, as all of these make them: `collate` pads to the longest
row, int64 ids and mask, labels, string ids. This file imports nothing of shardprep.

Environments: folders in the one named by $PEERS (see README.md): m for MosaicML streaming, v for all others.
"""

# ruff: noqa: ARG001  readers share one signature

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

ROWS = 16
SHARDS = 16
if os.environ.get("LITDATA_HTTP"):  # litdata 0.2.76 has no option for a plain-http endpoint; its workers are spawned
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001


class Reader(NamedTuple):
    """Batches, and how their position is saved and loaded; None where the reader has no such thing."""

    batches: Iterable[Any]
    state: Callable[[], Any] | None = None
    load: Callable[[Any], None] | None = None


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The collate that a user writes: numpy arrays, padded to the longest row, as torch tensors."""
    longest = max(len(r["ids"]) for r in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for i, r in enumerate(rows):
        n = len(r["ids"])
        ids[i, :n] = r["ids"]
        mask[i, :n] = 1
    return {
        "input_ids": torch.from_numpy(ids),
        "attention_mask": torch.from_numpy(mask),
        "labels": torch.as_tensor([int(r["label"]) for r in rows]),
        "id": [r["id"] for r in rows],
    }


def stateful(dataset: Any, workers: int, **options: Any) -> Reader:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(dataset, batch_size=ROWS, num_workers=workers, collate_fn=collate, **options)
    return Reader(loader, loader.state_dict, loader.load_state_dict)


class Mapped(Dataset):
    """One file of tokens, one of offsets, both memory-mapped; rows by index."""

    def __init__(self, place: str) -> None:
        self.ids = np.memmap(f"{place}/tokens.bin", np.int32, "r")
        self.offsets = np.memmap(f"{place}/offsets.bin", np.int64, "r")
        self.labels = np.memmap(f"{place}/labels.bin", np.int64, "r")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"ids": self.ids[self.offsets[i] : self.offsets[i + 1]], "label": self.labels[i], "id": f"doc-{i:08d}"}


def mmap(place: str, workers: int, cache: str) -> Reader:
    return stateful(Mapped(place), workers, shuffle=True)


def mmap_plain(place: str, workers: int, cache: str) -> Reader:
    """The same with torch's own DataLoader: a little faster, without a state."""
    return Reader(DataLoader(Mapped(place), ROWS, shuffle=True, num_workers=workers, collate_fn=collate))


def litdata(place: str, workers: int, cache: str) -> Reader:
    from litdata import StreamingDataLoader, StreamingDataset

    if place.startswith("s3://"):
        options = {
            "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "region_name": os.environ["AWS_REGION"],
        }
        dataset = StreamingDataset(place, cache_dir=cache, shuffle=True, storage_options=options)
    else:
        dataset = StreamingDataset(place, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=ROWS, num_workers=workers, collate_fn=collate)
    return Reader(loader, loader.state_dict, loader.load_state_dict)


def mds(place: str, workers: int, cache: str) -> Reader:
    from streaming import StreamingDataLoader, StreamingDataset

    where = {"remote": place, "local": cache} if place.startswith("s3://") else {"local": place}
    # With fork, workers inherit the parent's S3 connection and read each other's bytes.
    spawn = {"multiprocessing_context": "spawn"} if place.startswith("s3://") and workers else {}
    dataset = StreamingDataset(**where, shuffle=True, batch_size=ROWS)
    loader = StreamingDataLoader(dataset, batch_size=ROWS, num_workers=workers, collate_fn=collate, **spawn)
    return Reader(loader, loader.state_dict, loader.load_state_dict)


def wds(place: str, workers: int, cache: str) -> Reader:
    import webdataset

    urls = [f"{place}/s-{i:05d}.tar" for i in range(SHARDS)]
    if place.startswith("s3://"):  # it reads a URL by a pipe: the aws command is its documented way, here a boto3 one
        urls = [f"pipe:{sys.executable} {Path(__file__).with_name('s3_cat.py')} {url}" for url in urls]
    dataset = (
        webdataset.WebDataset(urls, shardshuffle=SHARDS, seed=1)
        .shuffle(1000)
        .decode()
        .map(lambda s: {"ids": s["ids.npy"], "label": s["label.cls"], "id": s["__key__"]})
        .batched(ROWS, collation_fn=collate)
    )
    return Reader(webdataset.WebLoader(dataset, batch_size=None, num_workers=workers))


def parquet_files(place: str) -> list[str]:
    return [f"{place}/s-{i:05d}.parquet" for i in range(SHARDS)]


def hf_map(place: str, workers: int, cache: str) -> Reader:
    """Converts Parquet to an Arrow cache once, beside the files: warm after the first run."""
    import datasets

    dataset = datasets.load_dataset(
        "parquet", data_files=parquet_files(place), split="train", cache_dir=place + ".hf_cache"
    )
    return stateful(dataset.with_format("numpy"), workers, shuffle=True)


def hf_stream(place: str, workers: int, cache: str) -> Reader:
    import datasets

    options = {}
    if place.startswith("s3://"):
        options["storage_options"] = {
            "key": os.environ["AWS_ACCESS_KEY_ID"],
            "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
            "client_kwargs": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        }
    dataset = datasets.load_dataset(
        "parquet", data_files=parquet_files(place), split="train", streaming=True, **options
    )
    return stateful(dataset.shuffle(seed=1, buffer_size=1000).with_format("numpy"), workers)


def grain_row(data: bytes) -> dict[str, Any]:
    tokens, label, name = pickle.loads(data)
    return {"ids": np.frombuffer(tokens, np.int32), "label": label, "id": name}


def grain(place: str, workers: int, cache: str) -> Reader:
    import grain as library

    files = [f"{place}/s-{i:05d}.array_record" for i in range(SHARDS)]
    rows = library.MapDataset.source(library.sources.ArrayRecordDataSource(files)).seed(1).shuffle().map(grain_row)
    dataset = rows.batch(ROWS, batch_fn=collate).to_iter_dataset()
    if workers:
        dataset = dataset.mp_prefetch(library.MultiprocessingOptions(num_workers=workers))
    iterator = iter(dataset)
    return Reader(iterator, iterator.get_state, iterator.set_state)
