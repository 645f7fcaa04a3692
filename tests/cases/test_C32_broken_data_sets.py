import json
import os
import shutil

import pytest

from tests.cases.command import build, run
from tests.cases.inputs import BYTE, docs_1000, line, write
from tests.invariants import Dataset, assert_for_a_person, assert_sound, content


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """docs_1000 in 10 shards."""
    folder = tmp_path_factory.mktemp("c32")
    write(folder / "in/docs.jsonl", docs_1000())
    return build(folder / "in", folder / "out", "--shards", "10").root


@pytest.fixture
def copied(made, tmp_path):
    return shutil.copytree(made, tmp_path / "out")


def fourth(root):
    return Dataset(root).files[4]


def assert_verify_says(root, *words):
    ran = run("verify", root)
    assert ran.code == 1
    assert_for_a_person(ran.err)
    assert all(word in ran.err for word in words), ran.err
    as_json = run("verify", root, "--json")
    assert as_json.code == 1
    return as_json.json


def test_a_whole_data_set_is_verified(copied):
    ran = run("verify", copied)
    assert (ran.code, ran.err) == (0, "")
    assert "10 shards" in ran.out
    assert "1,000 rows" in ran.out


def test_a_shard_that_is_cut(copied):
    path = fourth(copied)
    os.truncate(path, path.stat().st_size - 10)
    told = assert_verify_says(copied, "00004-of-00010", "size")
    assert len(told["problems"]) == 1


def test_a_shard_that_is_missing(copied):
    fourth(copied).unlink()
    assert_verify_says(copied, "00004-of-00010", "missing")


def test_a_shard_of_another_data_set_with_the_same_size(copied):
    path = fourth(copied)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    assert_verify_says(copied, "00004-of-00010", "digest")


def test_a_shard_swapped_with_another(copied):
    files = Dataset(copied).files
    one, two = files[4], files[5]
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    assert_verify_says(copied, "00004-of-00010", "00005-of-00010")


def test_a_stray_shard_is_ignored_with_a_warning(copied):
    shutil.copy(fourth(copied), fourth(copied).with_name("stray.parquet"))
    ran = run("verify", copied)
    assert ran.code == 0
    assert "stray.parquet" in ran.err
    assert run("verify", copied, "--json").json["warnings"]
    assert len(Dataset(copied).ids) == 1000


def test_without_a_manifest_it_is_not_finished(copied, tmp_path):
    (copied / "manifest.json").unlink()
    for command in ("verify", "inspect"):
        ran = run(command, copied)
        assert ran.code == 1
        assert "not finished" in ran.err or "no finished data set" in ran.err
    assert run("verify", tmp_path / "nowhere").code == 1


def damaged(data, how):
    value = json.loads(data)
    if how == "half":
        return data[: len(data) // 2]
    if how == "empty":
        return b""
    if how == "version 2":
        return json.dumps({**value, "version": 2}).encode()
    if how == "list":
        return b"[]"
    if how == "ledger":
        value["ledger"]["written"] -= 1
    if how == "shard rows":
        value["generations"][0]["splits"][0]["shards"][3]["rows"] += 1
    if how == "shard gone":
        del value["generations"][0]["splits"][0]["shards"][3]
    if how == "named twice":
        shards = value["generations"][0]["splits"][0]["shards"]
        shards[3] = shards[2]
    if how == "type":
        value["generations"][0]["splits"][0]["shards"][3]["bytes"] = "many"
    if how == "key gone":
        del value["buckets"]
    if how == "other digest":
        value["generations"][0]["splits"][0]["shards"][3]["sha256"] = "0" * 64
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "how",
    [
        "half",
        "empty",
        "version 2",
        "list",
        "ledger",
        "shard rows",
        "shard gone",
        "named twice",
        "type",
        "key gone",
        "other digest",
    ],
)
def test_a_damaged_manifest_is_refused_by_every_command(copied, how):
    path = copied / "manifest.json"
    path.write_bytes(damaged(path.read_bytes(), how))
    for command in ("verify", "inspect"):
        ran = run(command, copied)
        assert ran.code == 1
        assert_for_a_person(ran.err)
        assert "manifest" in ran.err
    if how == "version 2":
        assert "version 2" in ran.err


def test_keys_that_this_version_does_not_know_are_ignored(copied):
    path = copied / "manifest.json"
    value = json.loads(path.read_bytes())
    value["later"] = {"a": 1}
    value["generations"][0]["splits"][0]["shards"][0]["codec"] = "zstd"
    path.write_text(json.dumps(value))
    assert run("verify", copied).code == 0
    assert run("inspect", copied, "--json").code == 0


def test_the_same_again_is_already_built(made, copied):
    ran = run(
        "build",
        made.parent / "in",
        copied,
        "--tokenizer",
        BYTE,
        "--id-field",
        "id",
        "--shards",
        "10",
        "--scheduler",
        "serial",
    )
    assert ran.code == 0
    assert "already built" in ran.out
    assert content(copied) == content(made)


def test_the_same_again_mends_a_missing_shard(made, copied):
    before = content(copied)
    fourth(copied).unlink()
    build(made.parent / "in", copied, "--shards", "10")
    assert content(copied) == before


def test_another_data_set_at_the_same_place_needs_overwrite(copied, tmp_path):
    write(tmp_path / "small/docs.jsonl", docs_1000(100))
    before = content(copied)
    ran = run("build", tmp_path / "small", copied, "--tokenizer", BYTE, "--id-field", "id", "--scheduler", "serial")
    assert ran.code == 1
    assert_for_a_person(ran.err)
    assert "--overwrite" in ran.err
    assert content(copied) == before
    dataset = build(tmp_path / "small", copied, "--overwrite")
    assert dataset.ids == {str(i) for i in range(100)}


def test_over_a_damaged_manifest_only_with_overwrite(copied, tmp_path):
    write(tmp_path / "small/docs.jsonl", docs_1000(100))
    (copied / "manifest.json").write_bytes(b'{"version":1,')
    ran = run("build", tmp_path / "small", copied, "--tokenizer", BYTE, "--id-field", "id", "--scheduler", "serial")
    assert ran.code == 1
    assert_for_a_person(ran.err)
    ran = run(
        "build",
        tmp_path / "small",
        copied,
        "--tokenizer",
        BYTE,
        "--id-field",
        "id",
        "--scheduler",
        "serial",
        "--overwrite",
    )
    assert ran.code == 0
    assert len(Dataset(copied).ids) == 100


def test_an_overwrite_that_fails_leaves_the_old_one_readable(copied, tmp_path):
    write(tmp_path / "bad/docs.jsonl", line("a", "good"), b"broken\n")
    before = content(copied)
    flags = ["--overwrite", "--on-bad", "fail", "--scheduler", "serial", "--tokenizer", BYTE, "--id-field", "id"]
    assert run("build", tmp_path / "bad", copied, *flags).code == 1
    after = content(copied)
    assert {name: digest for name, digest in after.items() if name in before} == before
    assert run("verify", copied).code == 0
    write(tmp_path / "good/docs.jsonl", docs_1000(50))
    flags = ["--overwrite", "--scheduler", "serial", "--tokenizer", BYTE, "--id-field", "id"]
    assert run("build", tmp_path / "good", copied, *flags).code == 0
    assert Dataset(copied).ids == {str(i) for i in range(50)}


def test_an_interrupted_overwrite_at_every_write_leaves_the_old_or_the_new(copied, tmp_path, monkeypatch):
    from shardprep.errors import StoreError
    from shardprep.storage.local import LocalStore

    write(tmp_path / "small/docs.jsonl", docs_1000(100))
    arguments = ["build", tmp_path / "small", copied, "--tokenizer", BYTE, "--id-field", "id", "--scheduler", "serial"]
    arguments += ["--overwrite", "--shards", "3", "--tokenizer-backend", "reference"]
    calls, fail_at = [], [0]
    for name in ("put", "put_new", "put_if_match"):
        real = getattr(LocalStore, name)

        def failing(self, *args, real=real, **more):
            calls.append(args[0])
            if len(calls) == fail_at[0]:
                raise StoreError("this write fails")
            return real(self, *args, **more)

        monkeypatch.setattr(LocalStore, name, failing)
    failures = 0
    for fail_at[0] in range(1, 60):
        calls.clear()
        code = run(*arguments).code
        found = {len(Dataset(copied).ids)}
        assert found == {1000 if code else 100}
        if code == 0:
            break
        failures += 1
    assert failures > 5
    assert run("verify", copied).code == 0


def test_a_build_over_leftovers_of_a_crash_leaves_nothing_of_them(made, tmp_path):
    out = tmp_path / "out"
    folder = out / Dataset(made).manifest["plan"]
    write(folder / "_staging/scan-00000.json", b'{"half')
    write(folder / "_staging/scan-00000.arrow", b"rubbish")
    write(folder / "train/00000-of-00010.parquet", b"PAR1 half")
    build(made.parent / "in", out, "--shards", "10")
    assert content(out) == content(made)
    assert_sound(out)
