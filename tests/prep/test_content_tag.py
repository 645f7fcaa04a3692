"""Two jobs of one plan that meet different faults: they never write under one name, and neither harms the other."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardprep.cli import main
from shardprep.core.manifest import Manifest
from shardprep.errors import ManifestConflict, StoreError, Unavailable
from shardprep.prep import build as building
from shardprep.prep import publish
from shardprep.storage.local import LocalStore
from tests.prep.builds import (
    TOKENIZER,
    assert_holds,
    assert_whole,
    build_here,
    documents,
    hashes,
    manifest_of,
    rows_of,
    text_of,
    write_files,
)

DOCUMENTS = documents(400, seed=11)
SETTINGS: dict[str, Any] = {"split": "train=0.8,validation=0.2", "dedup": "exact", "tokenizer_backend": "reference"}
PLAIN = re.compile(r"[0-9a-f]{8}/(train|validation)/\d{5}-of-\d{5}\.parquet")
TAGGED = re.compile(r"[0-9a-f]{8}/(train|validation)/\d{5}-of-\d{5}-([0-9a-f]{8})\.parquet")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "in", DOCUMENTS)


def with_fault(patch: pytest.MonkeyPatch, act: Callable[[], Any], undo: Callable[[], Any]) -> None:
    """Let something happen to the source between listing and scan of the next build, and undo it after the scan."""
    real = building._scan_all

    def scan_all(run: Any) -> Any:
        patch.setattr(building, "_scan_all", real)
        act()
        try:
            return real(run)
        finally:
            undo()

    patch.setattr(building, "_scan_all", scan_all)


def without(patch: pytest.MonkeyPatch, *files: Path) -> None:
    """Let files be away while the next build scans: what it lists, and so its plan, is what it always was."""
    with_fault(
        patch,
        lambda: [os.rename(file, file.with_suffix(".away")) for file in files],
        lambda: [os.rename(file.with_suffix(".away"), file) for file in files],
    )


def tag_of(manifest: Manifest) -> str:
    tags = {TAGGED.fullmatch(shard.name)[2] for shard in manifest.shards}  # type: ignore[index]
    (tag,) = tags
    return tag


def test_the_tag_tells_what_was_missed(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build_here(source, tmp_path / "plain", **SETTINGS)
    assert all(PLAIN.fullmatch(shard.name) for shard in plain.shards)
    tags = []
    for number, missed in enumerate([(3,), (3,), (4,), (3, 4)]):
        output = tmp_path / f"out{number}"
        without(monkeypatch, *(source / f"d{n:05d}.json" for n in missed))
        made = build_here(source, output, **SETTINGS)
        assert made.plan == plain.plan
        assert made.ledger.set_aside == {"missing_object": len(missed)}
        assert_whole(output)
        assert_holds(output, [d for n, d in enumerate(DOCUMENTS) if n not in missed])
        (part,) = (output / made.plan / "rejects").iterdir()
        assert part.name == f"part-00000-{tag_of(made)}.jsonl"
        tags.append(tag_of(made))
    assert tags[0] == tags[1]
    assert len(set(tags)) == 3
    assert hashes(tmp_path / "out0") == hashes(tmp_path / "out1")


def test_the_reason_tells_too(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = source / "d00003.json"
    without(monkeypatch, one)
    missing = build_here(source, tmp_path / "missing", **SETTINGS)
    listed = one.stat()
    with_fault(monkeypatch, lambda: os.utime(one), lambda: os.utime(one, ns=(listed.st_atime_ns, listed.st_mtime_ns)))
    changed = build_here(source, tmp_path / "changed", **SETTINGS)
    assert changed.plan == missing.plan
    assert changed.ledger.set_aside == {"object_changed": 1}
    assert tag_of(changed) != tag_of(missing)


@pytest.mark.parametrize("first_is_whole", [True, False])
def test_the_loser_harms_nothing(
    first_is_whole: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job stands before its first shard until another one of the same plan, which misses other objects, published."""
    output, real = tmp_path / "out", LocalStore.put_file
    overtaken = False

    def put(store: LocalStore, key: str, *arguments: Any, **named: Any) -> Any:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            if not first_is_whole:
                without(monkeypatch, source / "d00007.json")
            build_here(source, output, **SETTINGS, shards=2)
        return real(store, key, *arguments, **named)

    monkeypatch.setattr(LocalStore, "put_file", put)
    without(monkeypatch, *(source / f"d{n:05d}.json" for n in range(10, 30)))
    with suppress(ManifestConflict):
        build_here(source, output, **SETTINGS, shards=2)
    assert overtaken
    for shard in manifest_of(output).shards:
        assert (PLAIN if first_is_whole else TAGGED).fullmatch(shard.name)
    assert_holds(output, DOCUMENTS if first_is_whole else DOCUMENTS[:7] + DOCUMENTS[8:])
    from shardprep.prep.verify import verify

    assert verify(str(output), progress=False).ok


def test_two_scans_of_a_task_never_read_each_others_rows(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that scanned waits while another of its plan scans with a fault, into the same staging folder, and stops."""
    real, seen = building._judge, []

    def judge(*arguments: Any) -> None:
        if not seen:
            seen.append("first")
            without(monkeypatch, *(source / f"d{n:05d}.json" for n in range(0, 400, 7)))
            monkeypatch.setattr(publish.Output, "publish", _refused)
            with pytest.raises(Unavailable):
                build_here(source, tmp_path / "out", **SETTINGS)
            monkeypatch.undo()
        real(*arguments)

    monkeypatch.setattr(building, "_judge", judge)
    build_here(source, tmp_path / "out", **SETTINGS)
    assert seen
    assert_whole(tmp_path / "out")
    assert_holds(tmp_path / "out", DOCUMENTS)


def _refused(*_: Any) -> None:
    raise Unavailable("made to fail")


def test_a_rerun_with_the_same_fault_finds_its_shards(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, written = tmp_path / "out", []
    with monkeypatch.context() as patch:
        patch.setattr(publish.Output, "publish", _refused)
        without(patch, source / "d00003.json")
        with pytest.raises(Unavailable):
            build_here(source, output, **SETTINGS, shards=3)
    real = LocalStore.put_file

    def put(store: LocalStore, key: str, *arguments: Any) -> Any:
        written.append(key)
        return real(store, key, *arguments)

    monkeypatch.setattr(LocalStore, "put_file", put)
    without(monkeypatch, source / "d00003.json")
    build_here(source, output, **SETTINGS, shards=3)
    assert not written
    assert_whole(output)


@pytest.mark.parametrize("fault_first", [True, False])
def test_leftovers_of_another_tag_are_swept(
    fault_first: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`assert_whole` finds no stray shards, so a glob over the data set reads each row once."""
    output = tmp_path / "out"
    for turn in range(2):
        with monkeypatch.context() as patch:
            if (turn == 0) == fault_first:
                without(patch, source / "d00003.json")
            if turn == 0:
                patch.setattr(publish.Output, "publish", _refused)
                with pytest.raises(Unavailable):
                    build_here(source, output, **SETTINGS)
            else:
                build_here(source, output, **SETTINGS)
    assert_whole(output)
    files = sorted(p.relative_to(output).as_posix() for p in output.rglob("*.parquet"))
    assert files == sorted(shard.name for shard in manifest_of(output).shards)


def test_what_could_not_be_read_is_read_again_with_overwrite(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, source / "d00003.json")
    build_here(source, tmp_path / "out", **SETTINGS)
    first = hashes(tmp_path / "out")
    build_here(source, tmp_path / "out", **SETTINGS)
    assert hashes(tmp_path / "out") == first, "published is published"
    build_here(source, tmp_path / "out", overwrite=True, **SETTINGS)
    assert_whole(tmp_path / "out")
    assert_holds(tmp_path / "out", DOCUMENTS)
    whole = hashes(tmp_path / "out")
    build_here(source, tmp_path / "out", overwrite=True, **SETTINGS)
    assert hashes(tmp_path / "out") == whole, "nothing is left to be read again"


def test_the_last_line_says_how_to_try_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [
        "build",
        str(source),
        str(tmp_path / "out"),
        "--tokenizer",
        str(TOKENIZER),
        "--id-field",
        "id",
        "--scheduler",
        "serial",
    ]
    without(monkeypatch, source / "d00003.json")
    assert main(call) == 0
    assert "--overwrite" not in capsys.readouterr().out
    assert main(call) == 0
    assert re.search(r"already built: .*1 missing_object.*--overwrite tries again", capsys.readouterr().out)


def test_a_lost_shard_of_a_data_set_with_faults(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, source / "d00003.json")
    manifest = build_here(source, tmp_path / "out", **SETTINGS)
    (tmp_path / "out" / manifest.shards[0].name).unlink()
    with pytest.raises(ManifestConflict, match=r"same plan.*--overwrite"):
        build_here(source, tmp_path / "out", **SETTINGS)
    build_here(source, tmp_path / "out", overwrite=True, **SETTINGS)
    assert_whole(tmp_path / "out")
    assert_holds(tmp_path / "out", DOCUMENTS)


def references(folder: Path, texts: list[str]) -> Path:
    """Write texts and an augmented manifest that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for n, text in enumerate(texts):
        (folder / f"{n}.txt").write_text(text)
        lines.append({"source-ref": str(folder / f"{n}.txt"), "id": str(n)})
    path = folder / "in.manifest"
    if not path.exists():
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def texts_at(output: Path) -> dict[str, str]:
    return {row["id"]: text_of(row) for row in rows_of(output)}


def test_texts_behind_a_uri_have_no_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = references(tmp_path / "in", ["one", "two", "three"]), tmp_path / "out"
    call = [
        "build",
        str(source),
        str(output),
        "--tokenizer",
        str(TOKENIZER),
        "--id-field",
        "id",
        "--scheduler",
        "serial",
    ]
    assert main(call) == 0
    assert "3 texts lie behind a source-ref" in capsys.readouterr().err
    references(tmp_path / "in", ["one", "TWO", "three"])
    assert main(call) == 0
    said = capsys.readouterr()
    assert "already built" in said.out
    assert "a later change is not seen; --overwrite reads them again" in said.err
    assert texts_at(output)["1"] == "two"
    first = {shard.name for shard in manifest_of(output).shards}
    assert main([*call, "--overwrite"]) == 0
    assert texts_at(output) == {"0": "one", "1": "TWO", "2": "three"}
    assert_whole(output)
    assert first.isdisjoint(shard.name for shard in manifest_of(output).shards)
    assert not [name for name in first if (output / name).exists()]


def test_overwrite_reads_again_what_a_stopped_job_had_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = references(tmp_path / "in", ["one", "two"])
    with monkeypatch.context() as patch:
        patch.setattr(publish.Output, "publish", _refused)
        with pytest.raises(Unavailable):
            build_here(source, tmp_path / "out")
    references(tmp_path / "in", ["ONE", "two"])
    build_here(source, tmp_path / "out", overwrite=True)
    assert texts_at(tmp_path / "out") == {"0": "ONE", "1": "two"}
    assert_whole(tmp_path / "out")


def test_the_old_data_set_stays_until_the_same_plan_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The k-th put fails while a data set is replaced by another one of the same plan: what is there is always whole."""
    source = references(tmp_path / "in", [f"text {n}" for n in range(20)])
    build_here(source, tmp_path / "older", shards=2)
    references(tmp_path / "in", [f"TEXT {n}" for n in range(20)])
    seen = k = 0
    for name in ("_put", "put_file"):
        real = getattr(LocalStore, name)

        def put(store: LocalStore, key: str, *arguments: Any, real: Any = real, **named: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == k:
                raise Unavailable(f"made to fail: {key}")
            return real(store, key, *arguments, **named)

        monkeypatch.setattr(LocalStore, name, put)
    while True:
        k, seen = k + 1, 0
        output = tmp_path / str(k)
        shutil.copytree(tmp_path / "older", output)
        try:
            build_here(source, output, shards=2, overwrite=True)
        except StoreError:
            assert texts_at(output) == {str(n): f"text {n}" for n in range(20)}
        else:
            break
    assert k > 8
    assert texts_at(output) == {str(n): f"TEXT {n}" for n in range(20)}
    assert_whole(output)
