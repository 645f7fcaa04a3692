"""RecordIO shards against Parquet shards of the same rows: writing, reading, size, and data sets in the loader; in turns.

    python -m benchmarks recordio [--parts codec,files,s3] [--rows 20000] [--reps 5]

codec  row groups of workload W (4 MB, as a build cuts them) encoded and decoded in one thread of this process, all digests
       and check sums included. Bars: written at least at 0.5 x, read at least at 0.3 x Parquet's tokens a second.
       `short` are the same tokens in rows of 60, where what a record costs beside its tokens shows
files  a cold epoch (empty cache) and a warm one from local files, each in a fresh process. Bar: at most 1.3 x Parquet's time
s3     a cold epoch and the first batch from S3 (SeaweedFS on the same cores), empty cache. Bar: 1.3 x
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.bench import middle, parser, record, table
from benchmarks.read_workload import lengths, name, workload
from benchmarks.reads import data_set, read
from benchmarks.s3_reads import place_of, s3_reads
from shardprep.core.block import TokenBlock, offsets_of
from shardprep.core.buckets import LengthBuckets
from shardprep.core.row_groups import row_groups
from shardprep.formats import parquet, recordio
from shardprep.formats.recordio_spans import Spans
from shardprep.formats.shard import shard_schema

GROUP_BYTES = 4_000_000
SHORT = 60  # tokens a row
FORMATS = ("parquet", "recordio")
SETS = {"parquet": "shardprep", "recordio": "recordio"}


def blocks_of(row_lengths: np.ndarray) -> list[TokenBlock]:
    """Return tokens of W as rows of these lengths, sorted by length and cut into row groups."""
    sizes = np.sort(row_lengths)
    offsets = offsets_of(sizes)
    ids = np.resize(workload().ids, int(offsets[-1]))
    columns = pa.RecordBatch.from_arrays(
        [pa.array([name(i) for i in range(len(sizes))]), pa.array(np.arange(len(sizes)) % 10)],
        schema=pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("label", pa.int64())]),
    )
    whole = TokenBlock(ids, offsets, columns)
    cuts = row_groups(sizes, LengthBuckets((int(sizes[-1]),), 1), GROUP_BYTES, 40).tolist()
    return [whole.slice(a, b) for a, b in pairwise(cuts)]


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def codec(rows: int, reps: int) -> None:
    out = []
    for what, row_lengths in (
        ("W", lengths()[:rows]),
        (f"rows of {SHORT}", np.full(int(lengths()[:rows].sum()) // SHORT, SHORT)),
    ):
        blocks = blocks_of(row_lengths)
        schema = shard_schema(blocks[0].columns.schema, pieces=False, metadata={})
        tokens = sum(block.tokens for block in blocks)
        as_parquet = parquet.encode_shard(blocks, schema)[0]
        as_records = recordio.encode_shard(blocks, schema)
        spans = Spans.parse(as_records.spans, as_records.digest.info("p/train/0.rec", "train"))
        parts = [as_records.records[a:b] for a, b in pairwise(spans.byte_starts.tolist())]

        def read_parquet(data: pa.Buffer = as_parquet) -> None:
            file = parquet.open_shard(data)
            for group in range(file.num_row_groups):
                parquet.decode_row_group(file, group)

        def read_records(spans: Spans = spans, parts: list[bytes] = parts) -> None:
            for span, part in enumerate(parts):
                recordio.decode_span(spans, span, part)

        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(reps):
            times["write parquet"].append(timed(lambda: parquet.encode_shard(blocks, schema)))  # noqa: B023  called now
            times["write recordio"].append(timed(lambda: recordio.encode_shard(blocks, schema)))  # noqa: B023
            times["read parquet"].append(timed(read_parquet))
            times["read recordio"].append(timed(read_records))
        sizes = {"parquet": len(as_parquet), "recordio": len(as_records.records)}
        for verb, bar in (("write", 0.5), ("read", 0.3)):
            pairs = zip(times[f"{verb} parquet"], times[f"{verb} recordio"], strict=True)
            lead = middle([a / b for a, b in pairs])
            rates = [tokens / middle(times[f"{verb} {kind}"]) / 1e6 for kind in FORMATS]
            out.append((what, verb, *(f"{rate:.0f}" for rate in rates), f"**{lead:.2f} x**", f"{bar} x",
                        *(f"{sizes[kind] / tokens:.2f}" for kind in FORMATS)))  # fmt: skip
            record(
                "recordio codec", {"what": what, "verb": verb, "rates": rates, "lead": lead, "escapes": spans.escapes}
            )
        print(
            f"{what}: sha256 {hashlib.sha256(as_records.records).hexdigest()[:12]}, {spans.escapes} escapes",
            file=sys.stderr,
        )
    heads = ("rows", "", "Parquet, M tokens/s", "RecordIO", "over Parquet", "bar", "Parquet, bytes a token", "RecordIO")
    table("One thread, row groups of 4 MB", heads, out)


Measure = tuple[str, tuple[str, ...], bool, str]  # what, flags of read_run, with an empty cache, the figure


def in_turns(title: str, places: dict[str, str], env: dict[str, str], measures: list[Measure], reps: int) -> None:
    """Run the reader over both data sets in turns and print what each took, and the median of the pairs."""
    rows = []
    for what, flags, is_cold, figure in measures:
        found: dict[str, list[float]] = defaultdict(list)
        for rep in range(reps + (not is_cold)):
            for kind in FORMATS:
                result, done = read("ours_all", None, *flags, place=places[kind], empty_cache=is_cold, env=env)
                record("recordio reader", {"what": what, "kind": kind, "rep": rep, "title": title, **result}, done)
                if "error" in result:
                    sys.exit(f"{kind}: {result['error']}")
                if is_cold or rep:  # a first warm run fills the cache
                    found[kind].append(float(result[figure]))
        ratio = middle([b / a for a, b in zip(found["parquet"], found["recordio"], strict=True)])
        rows.append((what, *(f"{middle(found[kind]):.2f}" for kind in FORMATS), f"**{ratio:.2f} x**", "1.3 x"))
    table(title, ("", "Parquet, s", "RecordIO, s", "over Parquet", "bar"), rows)


COLD = ("cold epoch, from the process's start", (), True, "total_s")
FIRST = ("first batch, from the process's start", ("--stop", "1"), True, "first_s")
WARM = ("warm epoch, behind the first batch", (), False, "steady_s")


def main(arguments: list[str]) -> None:
    flags = parser(__doc__)
    flags.add_argument("--parts", default="codec,files,s3")
    flags.add_argument("--rows", type=int, default=20_000)
    options = flags.parse_args(arguments)
    parts = options.parts.split(",")
    if "codec" in parts:
        codec(options.rows, options.reps)
    if "files" not in parts and "s3" not in parts:
        return
    sets: dict[str, Path] = {kind: data_set(SETS[kind], rows=options.rows) for kind in FORMATS}
    if "files" in parts:
        places = {kind: str(folder) for kind, folder in sets.items()}
        in_turns(f"{options.rows:,} rows from local files", places, {}, [COLD, FIRST, WARM], options.reps)
    if "s3" in parts:
        with s3_reads(sets) as server:
            places = {kind: place_of(kind) for kind in FORMATS}
            in_turns(f"{options.rows:,} rows from S3", places, server.env, [COLD, FIRST], options.reps)
