"""Metrics in files: JSON lines, Prometheus' text format, and disks that fail."""

from __future__ import annotations

import json
import os
import re
import warnings

import pytest

from shardprep.errors import ConfigError
from shardprep.reader.metric_files import metrics_of, prometheus_text
from shardprep.reader.metrics import Metrics

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} ([-+0-9.e]+)')


def samples(text):
    """Read Prometheus' text format: {(name, labels): value}, each name with its HELP and TYPE before it."""
    found, kinds, helped = {}, {}, set()
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            helped.add(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            kinds[line.split(" ")[2]] = line.split(" ")[3]
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert name in helped
            assert kinds[name] == ("counter" if name.endswith("_total") else "gauge")
            found[name, labels] = float(value)
    assert text.endswith("\n")
    return found


def read_some(metrics):
    metrics.began()
    metrics.add(bytes_fetched=10, batches=2, rows=3, tokens=40, slots=64, cache_hits=1, cache_misses=5)


def test_a_folder_gets_one_file_a_rank_with_whole_lines(tmp_path):
    folder = tmp_path / "new" / "metrics"
    for rank in (0, 1):
        for _ in range(2):  # as after a restart: appended to
            metrics = metrics_of(rank=rank, world_size=2, split="train", folder=str(folder))
            read_some(metrics)
            metrics.ended()
    assert sorted(os.listdir(folder)) == ["train-rank-00000.jsonl", "train-rank-00001.jsonl"]
    lines = [json.loads(line) for line in (folder / "train-rank-00001.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    for line in lines:
        assert (line["rank"], line["tokens"], line["final"], line["pid"]) == (1, 40, True, os.getpid())
        assert line["time"] > 1.7e9


def test_prometheus_text_has_units_totals_and_labels():
    metrics = Metrics(rank=3, split='a "b"\\\n')
    read_some(metrics)
    metrics.waited(1.0, 2.0, [("fetch", 1.0, 1.75)])
    got = samples(prometheus_text(metrics.snapshot()))
    labels = r'rank="3",split="a \"b\"\\\n"'
    assert got["shardprep_reader_fetched_bytes_total", labels] == 10
    assert got["shardprep_reader_tokens_total", labels] == 40
    assert got["shardprep_reader_slots_total", labels] == 64
    assert got["shardprep_reader_cache_misses_total", labels] == 5
    assert got["shardprep_reader_wait_seconds_total", labels + ',cause="fetch"'] == 0.75
    assert got["shardprep_reader_wait_seconds_total", labels + ',cause="other"'] == 0.25
    assert not any("first_batch" in name for name, _ in got)  # there was none


def test_the_prometheus_file_is_replaced_whole_for_each_rank(tmp_path):
    for rank in (0, 1):
        path = str(tmp_path / "textfiles" / "shardprep-{split}-{rank}.prom")
        metrics = metrics_of(rank=rank, split="train/x", prometheus=path)
        for _ in range(2):
            read_some(metrics)
            metrics.ended()
    assert sorted(os.listdir(tmp_path / "textfiles")) == ["shardprep-train_x-0.prom", "shardprep-train_x-1.prom"]
    text = (tmp_path / "textfiles" / "shardprep-train_x-1.prom").read_text()
    assert samples(text)["shardprep_reader_rows_total", 'rank="1",split="train/x"'] == 6
    assert os.stat(tmp_path / "textfiles" / "shardprep-train_x-1.prom").st_mode & 0o444 == 0o444  # for the exporter


def test_the_callback_gets_snapshots():
    got = []
    metrics = metrics_of(callback=got.append, callback_every_s=1000)
    read_some(metrics)
    metrics.ended()
    assert [snapshot["rows"] for snapshot in got] == [3]


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/x \(Not a directory\); name another folder"):
        metrics_of(folder=str(tmp_path / "file" / "x"))
    with pytest.raises(ConfigError, match="metrics cannot be written to"):
        metrics_of(prometheus=str(tmp_path / "file" / "x.prom"))


@pytest.mark.parametrize("where", ["folder", "prometheus"])
def test_a_disk_that_fails_later_warns_once_and_training_goes_on(tmp_path, where):
    folder = tmp_path / "metrics"
    metrics = metrics_of(**{where: str(folder / "x.prom" if where == "prometheus" else folder)})
    folder.rmdir()
    read_some(metrics)
    with pytest.warns(UserWarning, match="no more metrics are written, training goes on"):
        metrics.ended()
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.began()
        metrics.ended()
    assert os.listdir(folder) == []
