"""--format recordio through the whole job: the same data set as in Parquet, the same bytes every time, nothing half."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.errors import BlockError, ConfigError, Unavailable
from shardprep.prep.settings import Settings
from shardprep.prep.verify import verify
from tests.formats.records import dmlc_records
from tests.prep.builds import (
    assert_holds,
    assert_unpublished,
    assert_whole,
    build_here,
    command,
    documents,
    hashes,
    manifest_of,
    rows_of,
    run,
    write_files,
    write_lines,
)
from tests.prep.test_every_put import Puts, deaths, puts  # noqa: F401  a fixture

DOCUMENTS = documents(60, seed=3)
SETTINGS: dict[str, Any] = {
    "format": "recordio",
    "columns": ("label:int64",),
    "split": "train=0.7,validation=0.3",
    "shards": 2,
    "row_group_size": "2kb",
    "tokenizer_backend": "reference",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_files(folder, DOCUMENTS[:40])
    write_lines(folder / "lines.jsonl", [*DOCUMENTS[40:], "{broken"])
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built")
    build_here(source, output, **SETTINGS)
    assert_whole(output)
    assert_holds(output, DOCUMENTS)
    return output


def copy_of(built: Path, folder: Path) -> Path:
    return Path(shutil.copytree(built, folder / "copy"))


def files_of(output: Path, ending: str) -> list[Path]:
    return sorted(path for path in output.rglob("*" + ending) if path.name not in ("manifest.json", "tokenizer.json"))


def test_the_files_lie_where_a_pipe_channel_sees_records_only(built: Path) -> None:
    manifest = manifest_of(built)
    folder = built / manifest.plan
    names = [f"{number:05d}-of-00002" for number in range(2)]
    for split in ("train", "validation"):
        assert sorted(path.name for path in (folder / split).iterdir()) == [name + ".rec" for name in names]
        beside = sorted(path.name for path in (folder / "index" / split).iterdir())
        assert beside == sorted(name + ending for name in names for ending in (".idx", ".json"))
    assert manifest.shards[0].name == f"{manifest.plan}/train/00000-of-00002.rec"
    assert all(shard.row_groups > 1 and shard.escapes == 0 for shard in manifest.shards)
    for shard in manifest.shards:
        data = (built / shard.name).read_bytes()
        lines = (built / shard.name.replace("/", "/index/", 1)).with_suffix(".idx").read_text()
        wanted = "".join(f"{i}\t{begin}\n" for i, (begin, _) in enumerate(dmlc_records(data)))
        assert lines == wanted


def test_it_is_the_data_set_that_parquet_would_be(source: Path, built: Path, tmp_path: Path) -> None:
    parquet = build_here(source, tmp_path, **{**SETTINGS, "format": "parquet"})
    records = manifest_of(built)
    assert records.buckets == parquet.buckets
    assert records.ledger == parquet.ledger
    assert records.schema == parquet.schema
    assert [split.facts() for split in records.generations[0].splits] == [
        split.facts() for split in parquet.generations[0].splits
    ]
    assert [(s.rows, s.tokens, s.split) for s in records.shards] == [
        (s.rows, s.tokens, s.split) for s in parquet.shards
    ]
    assert [{k: v for k, v in row.items() if k != "length"} for row in rows_of(tmp_path)] == rows_of(built)
    assert records.plan != parquet.plan
    assert records.fingerprint != parquet.fingerprint
    document = json.loads((tmp_path / "manifest.json").read_bytes())
    assert all("escapes" not in s for g in document["generations"] for split in g["splits"] for s in split["shards"])


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_same_bytes_for_any_number_of_workers(workers: int, source: Path, built: Path, tmp_path: Path) -> None:
    build_here(source, tmp_path, **SETTINGS, scheduler="local", workers=workers)
    assert hashes(tmp_path) == hashes(built)


def test_the_kth_put_fails(source: Path, built: Path, puts: Puts, tmp_path: Path) -> None:  # noqa: F811
    for k in itertools.count(1):
        output = tmp_path / str(k)
        puts.seen, puts.at = 0, k
        try:
            build_here(source, output, **SETTINGS)
        except Unavailable:
            pass
        else:
            break
        assert_unpublished(output)
        puts.at = None
        build_here(source, output, **SETTINGS)
        assert hashes(output) == hashes(built)
    assert k > 20, "three files a shard, four shards"


@pytest.mark.slow
def test_the_process_dies_in_the_kth_put(source: Path, built: Path, tmp_path: Path) -> None:
    count = deaths(tmp_path, source, **SETTINGS)
    assert count > 20
    for k in range(1, count + 1):
        assert_unpublished(tmp_path / str(k))
        build_here(source, tmp_path / str(k), **SETTINGS)
        found = {name: digest for name, digest in hashes(tmp_path / str(k)).items() if not name.endswith(".tmp")}
        assert found == hashes(built)


def unfinished(source: Path, output: Path, puts: Puts) -> None:  # noqa: F811
    """Build up to the manifest, and stop there."""
    puts.seen, puts.at = 0, None
    build_here(source, output.with_name("counted"), **SETTINGS)
    puts.seen, puts.at = 0, puts.seen
    with pytest.raises(Unavailable, match="manifest"):
        build_here(source, output, **SETTINGS)
    puts.at = None


def written(path: Path) -> tuple[int, int]:
    """Return what differs when a file was put again; the number of an inode alone may come back."""
    return path.stat().st_ino, path.stat().st_mtime_ns


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("ending", [".rec", ".idx", ".json"])
@pytest.mark.parametrize("harm", [Path.unlink, _flip, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_rerun_keeps_finished_shards_and_makes_damaged_ones_again(
    ending: str,
    harm: Callable[[Path], None],
    source: Path,
    built: Path,
    puts: Puts,  # noqa: F811
    tmp_path: Path,
) -> None:
    output = tmp_path / "out"
    unfinished(source, output, puts)
    shards = files_of(output / manifest_of(built).plan / ("train" if ending == ".rec" else "index/train"), ending)
    before = {path: written(path) for path in files_of(output, ".rec")}
    harm(shards[1])
    build_here(source, output, **SETTINGS)
    assert hashes(output) == hashes(built)
    again = [path.name for path, when in before.items() if written(path) != when]
    assert again == [shards[1].with_suffix(".rec").name]


@pytest.mark.parametrize("ending", [".rec", ".idx", ".json"])
def test_a_published_set_that_lost_a_file_is_built_again(
    ending: str, source: Path, built: Path, tmp_path: Path
) -> None:
    output = copy_of(built, tmp_path)
    files_of(output / manifest_of(built).plan, ending)[0].unlink()
    build_here(source, output, **SETTINGS)
    assert hashes(output) == hashes(built)
    whole = {path: written(path) for path in files_of(output, ".rec")}
    build_here(source, output, **SETTINGS)
    assert {path: written(path) for path in whole} == whole, "nothing to do"


def test_files_that_a_stopped_job_left_are_swept_with_the_index(source: Path, built: Path, tmp_path: Path) -> None:
    plan = manifest_of(built).plan
    left = [tmp_path / plan / name for name in ("train/00000-of-00009.rec", "index/train/00000-of-00009.idx")]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")
    build_here(source, tmp_path, **SETTINGS)
    assert hashes(tmp_path) == hashes(built)


@pytest.mark.parametrize(
    ("ending", "harm", "said"),
    [
        (".rec", Path.unlink, "is missing"),
        (".rec", _flip, r"sha256 digest.* begins at byte [0-9,]+|sha256 digest"),
        (".rec", lambda path: path.write_bytes(path.read_bytes()[:-5]), r"bytes \(size\).* is cut off at byte [0-9,]+"),
        (".idx", Path.unlink, r"lacks the file .*index/train/00000-of-00002\.idx"),
        (".idx", _flip, r"00000-of-00002\.idx, which was replaced or damaged"),
        (".json", Path.unlink, r"lacks the file .*index/train/00000-of-00002\.json"),
        (".json", _flip, r"00000-of-00002\.json with another sha256 digest"),
    ],
)
def test_verify_rereads_all_three_files(
    ending: str, harm: Callable[[Path], None], said: str, built: Path, tmp_path: Path
) -> None:
    output = copy_of(built, tmp_path)
    harm(files_of(output / manifest_of(built).plan / ("train" if ending == ".rec" else "index/train"), ending)[0])
    outcome = verify(str(output), progress=False)
    assert len(outcome.problems) == 1
    plan = manifest_of(built).plan
    assert outcome.problems[0].startswith(f"{plan}/train/00000-of-00002.rec: ")
    assert re.search(said, outcome.problems[0]), outcome.problems
    assert outcome.rows == manifest_of(built).ledger.rows - manifest_of(built).shards[0].rows


def test_verify_warns_of_strays_and_finds_a_vocabulary_overrun(built: Path, tmp_path: Path) -> None:
    output = copy_of(built, tmp_path)
    plan = manifest_of(built).plan
    (output / plan / "index" / "train" / "x.idx").write_text("0\t0\n")
    assert verify(str(output), progress=False).warnings == (
        f"{plan}/index/train/x.idx is not part of the data set: readers ignore it",
    )


class NumberTokens:
    """The text is the ids."""

    fingerprint = "22" * 32
    vocab_size = 200_000
    pad_id = 0

    def encode_batch(self, texts: Sequence[str]) -> tuple[Any, Any]:
        rows = [[int(number) for number in text.split()] for text in texts]
        offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
        return np.array([number for row in rows for number in row], dtype=np.int32), offsets


def test_escapes_are_counted_in_the_manifest(tmp_path: Path) -> None:
    texts = [" ".join(["7"] * i + ["10", "35", "26455"] * 2) for i in range(40)]
    source = write_lines(tmp_path / "in.jsonl", [{"id": str(i), "text": text} for i, text in enumerate(texts)])
    manifest = build_here(source, tmp_path / "out", tokenizer=NumberTokens(), no_eos=True, format="recordio", shards=2)
    assert_whole_of_numbers(tmp_path / "out", texts)
    counts = [shard.escapes for shard in manifest.shards]
    data = [(tmp_path / "out" / shard.name).read_bytes() for shard in manifest.shards]
    heads = [sum(each[i : i + 4] == b"\n#\xd7\xce" for i in range(0, len(each), 4)) for each in data]
    assert counts == [found - shard.rows for found, shard in zip(heads, manifest.shards, strict=True)]
    assert sum(filter(None, counts)) > 10


def assert_whole_of_numbers(output: Path, texts: list[str]) -> None:
    assert verify(str(output), progress=False).ok
    found = {row["id"]: " ".join(map(str, row["input_ids"])) for row in rows_of(output)}
    assert found == {str(i): text for i, text in enumerate(texts)}


def test_calls_that_are_wrong_are_refused_before_anything_is_done() -> None:
    with pytest.raises(ConfigError, match="--column values"):
        Settings.of({"format": "recordio", "columns": ["values:int64"]})
    with pytest.raises(ConfigError, match="give that split another name"):
        Settings.of({"format": "recordio", "split": "train=0.5, index=0.5"})
    Settings.of({"columns": ["values:int64"], "split": "train=0.5,index=0.5"})


def test_the_command_line(source: Path, built: Path, tmp_path: Path) -> None:
    flags = ("--format", "recordio", "--scheduler", "serial", "--json")
    dry = run(command(source, tmp_path / "out", *flags, "--dry-run"))
    assert dry.returncode == 0, dry.stderr
    assert json.loads(dry.stdout)["likely_shards"] == {"train": 1}
    done = run(command(source, tmp_path / "out", *flags))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == len(DOCUMENTS)
    wrong = run(command(source, tmp_path / "other", *flags, "--column", "values"))
    assert (wrong.returncode, (tmp_path / "other").exists()) == (2, False)
    inspect = [*command(source, tmp_path / "out")[:3], "inspect", str(tmp_path / "out")]
    assert "RecordIO, 0 magic words escaped" in run(inspect).stdout
    assert json.loads(run([*inspect, "--json"]).stdout)["escapes"] == 0
    page = (tmp_path / "out" / manifest_of(tmp_path / "out").plan / "report.html").read_text()
    assert "recordio-protobuf" in page
    assert "Any Parquet reader" not in page


def test_a_record_too_large_for_recordio_stops_the_job_with_advice(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardprep.formats.recordio_encode.MOST_BYTES", 200)
    with pytest.raises(BlockError, match=r"makes a record of .* --format parquet"):
        build_here(source, tmp_path, **SETTINGS)
    assert_unpublished(tmp_path)


def test_rows_with_wide_columns_are_cut_into_smaller_spans(tmp_path: Path) -> None:
    wide = [{**document, "note": "n" * 4_000 * (i % 2)} for i, document in enumerate(DOCUMENTS)]
    source = write_files(tmp_path / "in", wide)
    manifest = build_here(source, tmp_path / "out", **{**SETTINGS, "columns": ("note",), "row_group_size": "8kb"})
    assert_whole(tmp_path / "out")
    assert {row["note"] for row in rows_of(tmp_path / "out")} == {"", "n" * 4_000}
    assert all(shard.bytes / shard.row_groups < 12_000 for shard in manifest.shards)
