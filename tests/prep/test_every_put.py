"""A data set exists when its manifest exists, and never half: the k-th put fails, for every k."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import Full, StoreError, Unavailable
from shardprep.storage.local import LocalStore
from tests.prep.builds import (
    TOKENIZER,
    assert_holds,
    assert_unpublished,
    assert_whole,
    build_here,
    documents,
    hashes,
    run,
    write_files,
    write_lines,
)

OLD, NEW = documents(20, seed=1), documents(40, seed=2)
SETTINGS: dict[str, Any] = {
    "split": "train=0.7,validation=0.3",
    "dedup": "exact",
    "shards": 2,
    "on_duplicate_id": "set-aside",
    "tokenizer_backend": "reference",
}
DYING = Path(__file__).with_name("dying_build.py")
PUTS = ("put", "put_file", "put_new", "put_if_match")


class Puts:
    """Counts the puts of this process; the k-th raises, before anything is written."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen = 0
        self.at: int | None = None
        self.error: type[StoreError] = Unavailable
        for name in PUTS:
            self._wrap(patch, name)

    def _wrap(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(LocalStore, name)

        def put(store: LocalStore, key: str, *arguments: Any, **named: Any) -> Any:
            self.seen += 1
            if self.seen == self.at:
                raise self.error(f"made to fail: {key}", uri=key)
            return real(store, key, *arguments, **named)

        patch.setattr(LocalStore, name, put)


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Puts]:
    return Puts(monkeypatch)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files and lines, a bad document, a text that comes twice, an id that comes twice."""
    folder = tmp_path_factory.mktemp("source")
    write_files(folder, NEW[:30])
    again = {"id": "again", "text": NEW[3]["text"]}
    write_lines(folder / "lines.jsonl", [*NEW[30:], again, {"id": NEW[4]["id"], "text": "other"}, "{broken"])
    return folder


@pytest.fixture(scope="module")
def right(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    output = tmp_path_factory.mktemp("right")
    build_here(source, output, **SETTINGS)
    manifest = assert_whole(output)
    assert_holds(output, NEW)
    assert manifest.ledger.set_aside == {"duplicate_id": 1, "duplicate_text": 1, "invalid_json": 1}
    return hashes(output)


@pytest.mark.parametrize("error", [Unavailable, Full])
def test_the_kth_put_fails(
    error: type[StoreError], source: Path, right: dict[str, str], puts: Puts, tmp_path: Path
) -> None:
    puts.error = error
    for k in itertools.count(1):
        output = tmp_path / str(k)
        puts.seen, puts.at = 0, k
        try:
            build_here(source, output, **SETTINGS)
        except error as raised:
            assert "made to fail" in raised.message
        else:
            break
        assert_unpublished(output)
        puts.at = None
        build_here(source, output, **SETTINGS)
        assert hashes(output) == right
    assert k > 15, "a build puts more files than that"
    assert hashes(output) == right


def test_a_run_that_fails_at_every_put_in_turn_gets_there(
    source: Path, right: dict[str, str], puts: Puts, tmp_path: Path
) -> None:
    """Every rerun into one output fails a little later, until one gets through: nothing is done twice for ever."""
    for k in itertools.count(1):
        puts.seen, puts.at = 0, k
        try:
            build_here(source, tmp_path, **SETTINGS)
        except Unavailable:
            assert_unpublished(tmp_path)
        else:
            break
    assert hashes(tmp_path) == right


def test_the_kth_put_fails_over_an_older_data_set(
    source: Path, right: dict[str, str], puts: Puts, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    build_here(write_files(tmp_path / "in", OLD), older)
    before = hashes(older)
    seen_old = 0
    for k in itertools.count(1):
        output = tmp_path / str(k)
        shutil.copytree(older, output)
        puts.seen, puts.at = 0, k
        try:
            build_here(source, output, overwrite=True, **SETTINGS)
        except Unavailable:
            now = hashes(output)
            assert {name: now.get(name) for name in before} == before
            seen_old += 1
        else:
            break
        puts.at = None
        build_here(source, output, overwrite=True, **SETTINGS)
        assert hashes(output) == right
    assert seen_old > 15


def deaths(parent: Path, source: Path, **settings: Any) -> int:
    """Die at every put, each in a folder of its own; return how many deaths there were."""
    call = {"source": str(source), "settings": {"id_field": "id", "scheduler": "serial"} | settings}
    done = run([sys.executable, str(DYING), str(parent), str(TOKENIZER), json.dumps(call)])
    assert done.returncode == 0, done.stderr
    codes = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert codes[-1] == 0, done.stderr
    assert set(codes[:-1]) == {99}, done.stderr
    return len(codes) - 1


def test_the_process_dies_in_the_kth_put(source: Path, right: dict[str, str], tmp_path: Path) -> None:
    count = deaths(tmp_path, source, **SETTINGS)
    assert count > 15
    for k in range(1, count + 1):
        output = tmp_path / str(k)
        assert_unpublished(output)
        build_here(source, output, **SETTINGS)
        assert {name: digest for name, digest in hashes(output).items() if not name.endswith(".tmp")} == right


def test_the_process_dies_in_the_kth_put_over_an_older_data_set(
    source: Path, right: dict[str, str], tmp_path: Path
) -> None:
    parent = tmp_path / "outputs"
    older = tmp_path / "older"
    build_here(write_files(tmp_path / "in", OLD), older)
    before = hashes(older)
    for k in range(1, 60):
        shutil.copytree(older, parent / str(k))
    count = deaths(parent, source, overwrite=True, **SETTINGS)
    assert count > 15
    for k in range(1, count + 1):
        now = hashes(parent / str(k))
        assert {name: now.get(name) for name in before} == before, f"the older data set is broken by put {k}"
    build_here(source, parent / "7", overwrite=True, **SETTINGS)
    assert_whole(parent / "7")
    assert hashes(parent / str(count + 1)) == right
