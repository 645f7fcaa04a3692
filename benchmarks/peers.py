"""The same job with other tools, one run in a fresh process of that tool's own environment.

    python benchmarks/peers.py TOOL SOURCE OUTPUT TOKENIZER

The job: read every JSON file under SOURCE (a folder, or s3://bucket/prefix with AWS_* set), tokenize its text with
TOKENIZER (a tokenizer.json) and write id, label and token ids to OUTPUT. Each tool is used as its own documentation
shows, with two processes (or two threads) on a machine of two cores. This file imports nothing of shardprep.

Environments: a folder named by $PEERS with two virtual environments, since the tools cannot share one:
    v   torch (CPU), datatrove 0.10.1, litdata 0.2.76, datasets 5.2.0, boto3, s3fs, tokenizers, pyarrow
    r   ray[data] 2.60.0, daft 0.7.26, tokenizers, s3fs, pyarrow
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ENVIRONMENT_OF = {"ray": "r", "daft": "r"}  # every other tool: v
# Tools that read s3:// themselves. Ray Data reads it through pyarrow, and is the slowest locally by far: left out.
READS_S3 = ("loop", "loop_threads16", "datatrove", "litdata", "daft", "hf")
BATCH = 500


LOADED: dict[str, object] = {}  # a plain dictionary: cloudpickle sends functools.cache by name, and Ray lacks the name


def tokenizer(path: str):
    if path not in LOADED:
        from tokenizers import Tokenizer

        LOADED[path] = Tokenizer.from_file(path)
    return LOADED[path]


def token_ids(path: str, texts: list[str]):
    """Return the ids of each text: encode_batch_fast is the quickest call of the tokenizers package."""
    return [encoding.ids for encoding in tokenizer(path).encode_batch_fast(texts)]


def s3_options() -> dict[str, object]:
    return {
        "key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret": os.environ["AWS_SECRET_ACCESS_KEY"],
        "client_kwargs": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    }


@cache
def s3_client():
    import boto3
    from botocore.config import Config

    return boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], config=Config(max_pool_connections=16))


def listed(source: str) -> list[str]:
    if not source.startswith("s3://"):
        return sorted(str(path) for path in Path(source).rglob("*.json"))
    bucket, prefix = source[5:].split("/", 1)
    pages = s3_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/")
    return [f"s3://{bucket}/{item['Key']}" for page in pages for item in page.get("Contents", ())]


def read(name: str) -> dict[str, object]:
    if name.startswith("s3://"):
        bucket, key = name[5:].split("/", 1)
        return json.loads(s3_client().get_object(Bucket=bucket, Key=key)["Body"].read())
    return json.loads(Path(name).read_bytes())


# ---- loops: what people write first ----------------------------------------------------------------------------------


def write_rows(documents, ids, path: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": [d["id"] for d in documents],
        "label": [d["label"] for d in documents],
        "ids": pa.array(ids, pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), path)


def encode_files(names: list[str], output: str, tag: str, path: str, readers: int = 1) -> None:
    """Read and encode a batch of files at a time; a Parquet file for every 4,000 documents."""
    pool = ThreadPoolExecutor(readers)
    documents: list[dict[str, object]] = []
    ids: list[list[int]] = []
    for start in range(0, len(names), BATCH):
        part = names[start : start + BATCH]
        batch = [read(name) for name in part] if readers == 1 else list(pool.map(read, part))
        documents += batch
        ids += token_ids(path, [str(d["text"]) for d in batch])
        if len(documents) >= 4000 or start + BATCH >= len(names):
            write_rows(documents, ids, f"{output}/{tag}-{start:08d}.parquet")
            documents, ids = [], []


def loop(source: str, output: str, path: str, readers: int = 1) -> None:
    """Two processes, half of the files each."""
    import multiprocessing

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    names = listed(source)
    s3_client.cache_clear()  # a client must not cross a fork
    Path(output).mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    halves = [context.Process(target=encode_files, args=(names[i::2], output, str(i), path, readers)) for i in range(2)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    if any(half.exitcode for half in halves):
        sys.exit(f"a process of the loop ended with {[half.exitcode for half in halves]}")


def loop_threads16(source: str, output: str, path: str) -> None:
    """The loop of somebody who knows that S3 wants requests in flight: 16 threads of GETs in each process."""
    loop(source, output, path, readers=16)


def loop_rayon(source: str, output: str, path: str) -> None:
    """One process; the tokenizers package uses both cores by itself."""
    Path(output).mkdir(parents=True)
    encode_files(listed(source), output, "0", path)


# ---- libraries -------------------------------------------------------------------------------------------------------


def datatrove(source: str, output: str, path: str) -> None:
    """20 tasks on 2 workers: finer tasks lose less in a crash, and 2 tasks take five times the memory."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder = (source, s3_options()) if source.startswith("s3://") else source
    steps = [
        JsonlReader(folder, glob_pattern="**/*.json"),
        DocumentTokenizer(output, path, shuffle_documents=False, save_filename="tokens"),
    ]
    LocalPipelineExecutor(pipeline=steps, tasks=20, workers=2, logging_dir=output + ".log").run()


class LitDocument:
    """What litdata's optimize calls for every file (it pickles it, so it is no closure)."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, name: str) -> dict[str, object]:
        import numpy as np

        document = read(name)
        ids = np.array(tokenizer(self.path).encode(str(document["text"])).ids, np.int32)
        return {"ids": ids, "label": document["label"], "id": document["id"]}


def litdata(source: str, output: str, path: str) -> None:
    from litdata import optimize

    if source.startswith("s3://"):  # it has no option for a plain-http endpoint
        from litdata.streaming import downloader

        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    names = listed(source)
    s3_client.cache_clear()
    optimize(
        LitDocument(path),
        names,
        output_dir=output,
        chunk_bytes="64MB",
        num_workers=2,
        start_method="fork",
        verbose=False,
    )


def hf(source: str, output: str, path: str) -> None:
    import datasets

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    options = {"storage_options": s3_options()} if source.startswith("s3://") else {}
    documents = datasets.load_dataset(
        "json", data_files=listed(source), split="train", cache_dir=output + ".cache", **options
    )
    documents = documents.select_columns(["id", "label", "text"])
    rows = documents.map(
        lambda batch: {"ids": token_ids(path, batch["text"])}, batched=True, num_proc=2, remove_columns=["text"]
    )
    Path(output).mkdir(parents=True)
    for i in range(8):
        rows.shard(8, i, contiguous=True).to_parquet(f"{output}/{i}.parquet")


def ray(source: str, output: str, path: str) -> None:
    import numpy as np
    import ray as ray_

    def encode(batch: dict[str, object]) -> dict[str, object]:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        lists = token_ids(path, [str(text) for text in batch["text"]])
        ids = np.empty(len(lists), object)
        ids[:] = [np.array(one, np.int32) for one in lists]
        return {"id": batch["id"], "label": batch["label"], "ids": ids}

    ray_.init(num_cpus=2, log_to_driver=False, include_dashboard=False, object_store_memory=2 << 30)
    # override_num_blocks: the default makes a block per few files here, and is slower
    data = ray_.data.read_json(source, override_num_blocks=40)
    data.map_batches(encode, batch_size=BATCH).write_parquet(output)


def daft(source: str, output: str, path: str) -> None:
    import daft as daft_

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if source.startswith("s3://"):
        from daft.io import IOConfig, S3Config

        config = S3Config(
            endpoint_url=os.environ["AWS_ENDPOINT_URL"],
            key_id=os.environ["AWS_ACCESS_KEY_ID"],
            access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
            use_ssl=False,
        )
        daft_.set_planning_config(default_io_config=IOConfig(s3=config))

    @daft_.func.batch(return_dtype=daft_.DataType.list(daft_.DataType.int32()))
    def encode(texts):
        return token_ids(path, texts.to_pylist())

    documents = daft_.read_json(f"{source}/**/*.json")
    rows = documents.select(daft_.col("id"), daft_.col("label"), encode(daft_.col("text")).alias("ids"))
    rows.write_parquet(output)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:5])
