"""The same output for any hash seed, number of workers and order of the list: every shard, and the manifest."""

import pyarrow.parquet as pq
import pytest

from tests.cases.command import arguments_of, build, spawn
from tests.cases.inputs import docs_1000, split_into
from tests.invariants import content

FLAGS = ("--split", "train=0.8,validation=0.2", "--shards", "3")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """docs_1000 as 50 files of 20 lines."""
    return split_into(tmp_path_factory.mktemp("c19") / "in", docs_1000(), 20)


@pytest.fixture(scope="module")
def reference(parts, tmp_path_factory):
    """What a serial run in this process writes from a list file."""
    listed = tmp_path_factory.mktemp("c19-list") / "list.txt"
    listed.write_text("".join(f"{path}\n" for path in parts))
    out = tmp_path_factory.mktemp("c19-out") / "out"
    build(None, out, "--source-list", listed, *FLAGS)
    return content(out)


@pytest.mark.parametrize(
    ("hash_seed", "workers", "backwards"),
    [("0", 1, False), ("1", 2, True), ("2", 4, False), (None, 4, True)],
)
def test_hash_seed_workers_and_order_of_the_list_change_nothing(
    reference, parts, tmp_path, hash_seed, workers, backwards
):
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{path}\n" for path in (reversed(parts) if backwards else parts)))
    flags = ("--source-list", listed, "--scheduler", "local", "--workers", workers, *FLAGS)
    ran = spawn(*arguments_of(None, tmp_path / "out", flags), env={"PYTHONHASHSEED": hash_seed})
    assert ran.code == 0, ran.err
    assert content(tmp_path / "out") == reference


def test_the_folder_and_the_list_are_the_same_data_set(parts, tmp_path):
    from_folder = build(parts[0].parent, tmp_path / "folder", *FLAGS)
    assert from_folder.ids == {str(i) for i in range(1000)}
    glob = build(parts[0].parent / "*.jsonl", tmp_path / "glob", *FLAGS)
    assert content(tmp_path / "glob") == content(tmp_path / "folder")
    assert glob.manifest == from_folder.manifest


def test_other_times_and_places_give_another_plan_but_the_same_content(parts, tmp_path):
    copies = split_into(tmp_path / "elsewhere", docs_1000(), 20)
    first = build(parts[0].parent, tmp_path / "a", *FLAGS)
    second = build(copies[0].parent, tmp_path / "b", *FLAGS)
    assert first.manifest["plan"] != second.manifest["plan"]
    assert first.manifest["fingerprint"] == second.manifest["fingerprint"]
    assert [s["sha256"] for s in first.shards] == [s["sha256"] for s in second.shards]


def test_the_seed_changes_the_order_and_nothing_else(parts, tmp_path):
    splits = []
    for seed in (0, 1):
        dataset = build(parts[0].parent, tmp_path / f"{seed}", "--seed", seed, *FLAGS)
        splits.append(
            {
                row["id"]: path.parent.name
                for path in dataset.files
                for row in pq.read_table(path, columns=["id"]).to_pylist()
            }
        )
    assert splits[0] == splits[1]
    assert len(splits[0]) == 1000
