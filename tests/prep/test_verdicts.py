from pathlib import Path

import orjson
import pytest

from shardprep.formats.engines import versions
from shardprep.formats.probe import Verdict, verdict_key
from shardprep.formats.tokenizer import resolve
from shardprep.prep import verdicts
from shardprep.prep.verdicts import cache_folder, known_verdict

BYTE = (Path(__file__).parents[1] / "cases/tok/byte.json").read_bytes()
SPEC = resolve(BYTE)


@pytest.fixture
def probed(monkeypatch):
    """Count the probes; what each finds is told here, since its truth is tested elsewhere."""
    done = []

    def verdict(data, spec):
        done.append(spec.fingerprint)
        return Verdict(ok=True, why="", backend="fast:x", seconds=1.0, versions=versions())

    monkeypatch.setattr(verdicts, "verdict", verdict)
    return done


def test_a_verdict_is_found_out_once_and_then_kept(tmp_path, probed):
    first = known_verdict(BYTE, SPEC, tmp_path / "new" / "folder")
    assert known_verdict(BYTE, SPEC, tmp_path / "new" / "folder") == first
    assert len(probed) == 1
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == [
        f"verdict-{verdict_key(SPEC, versions())}.json"
    ]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"ok": true}', b"\xff"])
def test_a_damaged_verdict_is_found_out_again(tmp_path, probed, damage):
    first = known_verdict(BYTE, SPEC, tmp_path)
    [place] = tmp_path.iterdir()
    place.write_bytes(damage)
    assert known_verdict(BYTE, SPEC, tmp_path) == first
    assert len(probed) == 2
    assert orjson.loads(place.read_bytes())["ok"] is True


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, probed):
    (tmp_path / "file").write_bytes(b"")
    for _ in range(2):
        assert known_verdict(BYTE, SPEC, tmp_path / "file").ok
    assert len(probed) == 2


def test_no_fast_backend_is_not_worth_keeping(tmp_path, monkeypatch):
    none = Verdict(ok=False, why="not installed", backend="", seconds=0.1)
    monkeypatch.setattr(verdicts, "verdict", lambda data, spec: none)
    assert known_verdict(BYTE, SPEC, tmp_path) == none
    assert not list(tmp_path.iterdir())


def test_the_cache_lies_where_the_user_wants_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "shardprep"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert cache_folder() == tmp_path / "home" / ".cache" / "shardprep"
