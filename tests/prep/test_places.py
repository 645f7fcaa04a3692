"""Output and staging must not lie where the source would read them; a published data set answers to stricter flags."""

from __future__ import annotations

import json

import pytest

from shardprep.api import build_dataset
from shardprep.errors import ConfigError, TooManyBad
from shardprep.prep.globs import holds
from shardprep.prep.settings import Settings
from tests.prep.builds import TOKENIZER


@pytest.mark.parametrize(
    ("source", "place", "inside"),
    [
        ("s3://b/raw", "s3://b/raw/shards", True),
        ("s3://b/raw", "s3://b/raw", True),
        ("s3://b/raw", "s3://b/rawdata", False),
        ("s3://b/raw/**", "s3://b/raw/out", True),
        ("s3://b/**/*.json", "s3://b/out", True),
        ("s3://b/raw/*.json", "s3://b/raw/out", False),
        ("s3://b/raw/*/*.json", "s3://b/raw/out", True),
        ("s3://b/raw", "out", False),
    ],
)
def test_what_a_source_would_read(source, place, inside):
    assert holds(source, place) is inside


def test_links_and_globs_on_a_disk(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert holds(str(tmp_path / "link"), str(tmp_path / "real/out"))
    assert holds(str(tmp_path / "link/**"), str(tmp_path / "real/out"))
    assert not holds(str(tmp_path / "link/*.json"), str(tmp_path / "real/out"))
    assert not holds(str(tmp_path / "real"), str(tmp_path / "out"))


def test_staging_inside_the_source_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    settings = Settings(scheduler="serial", staging=str(tmp_path / "in/tmp"))
    with pytest.raises(ConfigError, match=r"staging .* lies inside the source"):
        build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, settings)


@pytest.mark.parametrize("stricter", [{"on_bad": "fail"}, {"max_bad": "0"}])
def test_stricter_flags_on_a_published_data_set(stricter, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/good.json").write_text(json.dumps({"text": "good"}))
    (tmp_path / "in/bad.json").write_text("{")
    build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, Settings(scheduler="serial"))
    with pytest.raises(TooManyBad, match="1 invalid_json"):
        build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, Settings(scheduler="serial", **stricter))
    assert not build_dataset(tmp_path / "in", tmp_path / "out", TOKENIZER, Settings(scheduler="serial")).fresh
