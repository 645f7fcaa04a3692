"""The reader's half: at open, or before the first document of the shard, it names the shard and what differs."""

import json
import os
import shutil

import pytest

import shardprep
from shardprep.errors import ManifestError
from tests.cases.command import build, run
from tests.cases.inputs import docs_1000, write
from tests.cases.reading import counted, documents, once, real
from tests.invariants import Dataset

FOURTH = "00004-of-00010"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return documents(tmp_path_factory.mktemp("c32"), 1000, 10)


@pytest.fixture
def copied(made, tmp_path):
    return Dataset(shutil.copytree(made.root, tmp_path / "out"))


def cut(copied):
    os.truncate(copied.files[4], copied.shards[4]["bytes"] - 10)


def gone(copied):
    copied.files[4].unlink()


def replaced(copied):
    """Put a whole, valid shard of another data set there, of the same size: only the digest differs."""
    other = bytearray(copied.files[4].read_bytes())
    other[copied.shards[4]["bytes"] // 2] ^= 1
    copied.files[4].write_bytes(other)


def swapped(copied):
    copied.files[4].write_bytes(copied.files[5].read_bytes())


DAMAGE = [(cut, "size"), (gone, "missing"), (replaced, "digest"), (swapped, "")]


def play(root, cache, **given):
    """Return the ids that were handed over before the error, and the error."""
    given = {"batch_size": 8, "num_threads": 2, **given}
    seen = []
    with pytest.raises(ManifestError) as caught:  # noqa: PT012
        for batch in shardprep.open(root, cache_dir=cache).loader(**given):
            seen += real(batch)
    return seen, caught.value


@pytest.mark.parametrize(("damage", "word"), DAMAGE)
@pytest.mark.parametrize("given", [{}, {"shuffle": False}, {"window_rows": 200}, {"batch_size": 1000}])
def test_no_document_of_a_damaged_shard_is_handed_over(copied, tmp_path, damage, word, given):
    theirs = {row["id"] for row in copied.rows[400:500]}
    assert len(theirs) == 100
    damage(copied)
    seen, error = play(copied.root, tmp_path / "cache", **given)
    assert FOURTH in str(error)
    assert word in str(error)
    assert error.fields["shard"] == copied.shards[4]["name"]
    assert theirs.isdisjoint(seen)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(("damage", "word"), DAMAGE)
def test_damage_that_comes_after_it_was_cached_is_not_papered_over(copied, tmp_path, damage, word):
    """A job that starts later finds the entry in the node's cache, but the data set is not whole any more."""
    program = (
        "import sys, shardprep\nfor _ in shardprep.open(sys.argv[1], cache_dir=sys.argv[2]).loader(batch_size=8): pass"
    )
    whole = run_apart(program, copied.root, tmp_path / "cache")
    assert (whole.returncode, whole.stderr) == (0, "")
    damage(copied)
    later = run_apart(program, copied.root, tmp_path / "cache")
    assert later.returncode != 0
    last = later.stderr.strip().splitlines()[-1]
    assert FOURTH in last
    assert word in last


def run_apart(program, *arguments):
    import subprocess
    import sys

    from tests.cases.command import environment

    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)


def test_a_stray_shard_is_not_read(copied, tmp_path):
    shutil.copy(copied.files[4], copied.files[4].with_name("stray.parquet"))
    assert counted(shardprep.open(copied.root, cache_dir=tmp_path / "cache").loader(batch_size=8)) == once(1000)
    ran = run("verify", copied.root)  # which is where the warning is
    assert "stray.parquet" in ran.err


def test_after_an_overwrite_the_new_one_is_read_and_nothing_of_the_old(copied, tmp_path):
    """Part (e), with the old one's shards still in the node's cache."""
    before = shardprep.open(copied.root, cache_dir=tmp_path / "cache")
    assert counted(before.loader(batch_size=8)) == once(1000)
    state = before.loader(batch_size=8).state_dict()
    write(tmp_path / "small/docs.jsonl", docs_1000(100))
    refused = run(
        "build", tmp_path / "small", copied.root, "--tokenizer", copied.root / "none.json", "--scheduler", "serial"
    )
    assert refused.code != 0
    assert counted(shardprep.open(copied.root, cache_dir=tmp_path / "cache").loader(batch_size=8)) == once(1000)
    build(tmp_path / "small", copied.root, "--overwrite", "--shards", "10")
    after = shardprep.open(copied.root, cache_dir=tmp_path / "cache")
    assert counted(after.loader(batch_size=8)) == once(100)
    with pytest.raises(shardprep.errors.ConfigError, match=state["fingerprint"][:8]):
        after.loader(batch_size=8).load_state_dict(state)


def test_a_loader_of_the_old_one_that_is_still_open_says_what_happened(copied, tmp_path):
    old = shardprep.open(copied.root, cache_dir=tmp_path / "cache").loader(batch_size=8, shuffle=False)
    write(tmp_path / "small/docs.jsonl", docs_1000(100))
    build(tmp_path / "small", copied.root, "--overwrite", "--shards", "10")
    with pytest.raises(ManifestError, match=r"00000-of-00010.*missing"):
        list(old)


@pytest.mark.parametrize("how", ["half", "empty", "gone", "version 2"])
def test_a_manifest_that_is_damaged_is_refused_at_open(copied, how):
    path = copied.root / "manifest.json"
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "version 2":
        path.write_text(json.dumps({**json.loads(data), "version": 2}))
    else:
        path.write_bytes(data[: len(data) // 2] if how == "half" else b"")
    with pytest.raises(ManifestError, match=r"manifest\.json"):
        shardprep.open(copied.root)
