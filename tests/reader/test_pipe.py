"""Batches through real FIFOs, fed by another process: every row once, on every rank, in every weather."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import shardprep
from shardprep.errors import ConfigError, ManifestError, Unavailable
from tests.reader.data import build, lengths_of
from tests.reader.pipes import BUFFER, channel_in, check, counted, ended, play, real_ids, shards_of

ROWS = 1500
ALL = Counter(map(str, range(ROWS)))


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """A data set of RecordIO shards."""
    return build(tmp_path_factory.mktemp("piped"), lengths_of(ROWS), format="recordio", shards=5)


@pytest.fixture
def channel(tmp_path, uri):
    with channel_in(tmp_path / "ml", uri) as channel:
        yield channel


def size_of(uri):
    return sum(os.path.getsize(path) for path in shards_of(uri))


# ---- epochs -------------------------------------------------------------------------------------------------------


def test_two_epochs(channel):
    feeder = channel.feed(channel.job(0), channel.job(1))
    with channel.pipe() as pipe:
        length, steps = len(pipe), pipe.steps
        first, second = play(pipe), play(pipe)
        assert pipe.upcoming_state()["epoch"] == 2
        told = pipe.metrics()
    assert counted(first) == counted(second) == ALL
    assert len(first) == len(second) == length == steps
    assert [step for *_, step, _ in first] == list(range(steps))
    assert first != second  # shuffled anew
    assert sorted(shape for _, shape, *_ in first)[-1] != first[0][1] or steps < 3
    assert ended(feeder) == [{"sent": size_of(channel.uri), "left_early": False}] * 2
    assert told["rows"] == 2 * ROWS
    assert told["bytes_fetched"] == 2 * size_of(channel.uri)
    assert told["wait_seconds_by_cause"]["fetch"] > 0


def test_the_same_seed_plays_the_same_batches_and_another_seed_others(channel):
    channel.feed(*(channel.job(n) for n in range(2)))
    channel.feed(*(channel.job(n, "again") for n in range(2)))
    channel.feed(channel.job(0, "other"))
    with channel.pipe() as pipe, channel.pipe("again") as again, channel.pipe("other", seed=1) as other:
        first = play(pipe)
        assert play(again) == first
        assert play(pipe) == play(again)
        assert play(other) != first


def test_a_default_buffer_holds_the_largest_shard(channel):
    channel.feed(channel.job(0))
    with channel.pipe(buffer_bytes=None) as pipe:
        assert pipe.buffer_bytes == 64 << 20
        assert counted(play(pipe)) == ALL
        assert len(pipe) == pipe.steps


def test_without_shuffle_and_with_edges(channel):
    channel.feed(channel.job(0), channel.job(1))
    with channel.pipe(shuffle=False, pad_to="edge", batch_size=7, batch_tokens=None) as pipe:
        edges = set(pipe.plan.buckets.edges)
        first = play(pipe)
        assert counted(first) == ALL
        assert {shape[1] for _, shape, *_ in first} <= edges
        assert max(shape[0] for _, shape, *_ in first) == 7
        assert play(pipe) == first


def test_another_pad_multiple(channel):
    channel.feed(channel.job(0))
    with channel.pipe(pad_multiple=32) as pipe:
        assert all(shape[1] % 32 == 0 for _, shape, *_ in play(pipe))
    with pytest.raises(ConfigError, match='pad_multiple is for pad_to="round"'):
        channel.pipe(pad_multiple=32, pad_to="edge")


def test_a_slow_writer(channel):
    size = size_of(channel.uri)
    channel.feed(channel.job(0, piece=size // 40 + 1, pause_s=0.02))
    with channel.pipe() as pipe:
        assert counted(play(pipe)) == ALL


def test_records_cut_at_every_place_of_a_read(channel, monkeypatch):
    """Pieces of a few records, and records longer than a piece."""
    for piece in (256, 1 << 12):
        monkeypatch.setattr("shardprep.reader.pipe_pieces.PIECE_BYTES", piece)
        channel.feed(channel.job(0, f"by{piece}", piece=997))
        with channel.pipe(f"by{piece}") as pipe:
            assert counted(play(pipe)) == ALL


def test_the_next_fifo_appears_late(channel):
    channel.feed(channel.job(0), channel.job(1, make=False, make_after_s=0.7))
    with channel.pipe() as pipe:
        assert counted(play(pipe)) == ALL
        assert counted(play(pipe)) == ALL


def test_the_first_fifo_appears_late(channel):
    with channel.pipe() as pipe:
        channel.feed(channel.job(0, make=False, make_after_s=0.3))
        assert counted(play(pipe)) == ALL


def test_fifos_are_opened_before_anybody_iterates(channel):
    """The platform gives up on a FIFO that is not opened within about an hour: the writer of both gets through at once."""
    opened = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys\nfor p in sys.argv[1:]: open(p, 'wb', buffering=0).close(); print(p)",
        ]
        + [channel.job(n)["path"] for n in range(2)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with channel.pipe():
        out, _ = opened.communicate(timeout=300)
    assert out.splitlines() == [channel.path(0), channel.path(1)]


def test_an_epoch_that_is_broken_off_closes_its_fifo(channel, monkeypatch):
    monkeypatch.setattr("shardprep.reader.pipe_pieces.PIECE_BYTES", 1 << 14)
    feeder = channel.feed(channel.job(0, piece=512, pause_s=0.001), channel.job(1))
    with channel.pipe() as pipe:
        for batch in pipe:
            check(batch)
            break
        assert counted(play(pipe)) == ALL
        assert pipe.upcoming_state()["epoch"] == 2
    first, second = ended(feeder)
    assert first["left_early"]
    assert first["sent"] < size_of(channel.uri)
    assert not second["left_early"]


def test_a_process_that_comes_later_begins_with_another_fifo(channel):
    channel.feed(channel.job(3))
    with channel.pipe(first_fifo=3) as pipe:
        assert pipe.upcoming_state()["epoch"] == 0
        assert counted(play(pipe)) == ALL


def test_set_epoch(channel):
    channel.feed(channel.job(0), channel.job(1))
    channel.feed(channel.job(0, "b"))
    with channel.pipe() as pipe, channel.pipe("b") as other:
        play(pipe)
        other.set_epoch(1)
        assert play(other) == play(pipe)
        assert other.state_dict()["epoch"] == 2
        with pytest.raises(ConfigError, match="epoch must be at least 0"):
            pipe.set_epoch(-1)


# ---- several ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (3, 2)])
def test_ranks_play_the_same_rounds_from_channels_of_their_own(channel, world, accumulate):
    loaders = []
    for rank in range(world):
        channel.feed(channel.job(0, f"train_{rank}"))
        loaders.append(channel.pipe(f"train_{rank}", rank=rank, world_size=world, accumulate=accumulate))
    rows, steps = Counter(), Counter()
    for batches in zip(*loaders, strict=True):
        assert (
            len({(b.round, b.input_ids.shape, b.step, b.last_in_step, b.step_rows, b.step_tokens) for b in batches})
            == 1
        )
        assert [b.slot for b in batches] == list(range(world))
        for batch in batches:
            check(batch)
            rows.update(real_ids(batch))
            steps[batch.step] += batch.real
            told = batch.step_rows
        if batches[0].last_in_step:
            assert steps[batches[0].step] == told
    assert rows == ALL
    assert len({len(loader) for loader in loaders}) == 1
    for loader in loaders:
        loader.close()


def test_two_readers_of_one_fifo_are_refused(channel):
    channel.job(0)
    message = r"is read by another process or loader already.*train_\{local_rank\}"
    with channel.pipe(), channel.pipe() as second, pytest.raises(ConfigError, match=message):
        next(iter(second))


def test_sharded_channels_have_one_rank(channel):
    with pytest.raises(ConfigError, match=r"ShardedByS3Key, so every host gets other rows.*FullyReplicated"):
        channel.pipe(distribution="ShardedByS3Key", rank=0, world_size=2)


# ---- ends and damage ----------------------------------------------------------------------------------------------


def failing(pipe, error=ManifestError):
    """Play until the error; return the rows that came before, and the error."""
    rows = Counter()
    with pytest.raises(error) as caught:  # noqa: PT012
        for batch in pipe:
            check(batch)
            rows.update(real_ids(batch))
    return rows, caught.value


def test_a_writer_that_closes_early_between_two_records(channel):
    files = shards_of(channel.uri)
    sizes = [os.path.getsize(path) for path in files]
    channel.feed({**channel.job(0), "files": files[:3]}, channel.job(1))
    with channel.pipe() as pipe:
        rows, error = failing(pipe)
        assert sum(rows.values()) == 900
        assert f'{channel.path(0)}: the stream of channel "train" ended after {sum(sizes[:3]):,} bytes' in str(error)
        assert "600 of 1,500 rows are missing" in str(error)
        assert error.fields["missing"] == 600
        assert counted(play(pipe)) == ALL  # the next FIFO is whole


def test_a_writer_that_closes_early_within_a_record(channel):
    stop = size_of(channel.uri) * 2 // 3 + 1
    channel.feed(channel.job(0, stop=stop))
    with channel.pipe() as pipe:
        rows, error = failing(pipe)
    assert set(rows.values()) == {1}
    assert 900 < len(rows) < 1100
    assert f"{len(rows):,} rows came before" in str(error)
    at = error.fields["byte"]
    assert f"ends in the midst of the record that begins at byte {at:,}, {stop - at:,} bytes into it" in str(error)
    whole = b"".join(Path(path).read_bytes() for path in shards_of(channel.uri))
    assert whole[at : at + 4] == bytes.fromhex("0a23d7ce")


def test_an_empty_stream(channel):
    channel.feed(channel.job(0, stop=0))
    with channel.pipe() as pipe:
        rows, error = failing(pipe)
    assert not rows
    assert "ended after 0 bytes and 0 rows, and 1,500 of 1,500 rows are missing" in str(error)


def test_a_damaged_record_is_named_after_the_rows_before_it(channel, tmp_path):
    whole = bytearray(b"".join(Path(path).read_bytes() for path in shards_of(channel.uri)))
    at = whole.index(bytes.fromhex("0a23d7ce"), len(whole) // 2)
    whole[at] ^= 255
    (tmp_path / "damaged").write_bytes(whole)
    channel.feed({**channel.job(0), "files": [str(tmp_path / "damaged")]})
    with channel.pipe() as pipe:
        rows, error = failing(pipe)
    assert error.fields["channel"] == "train"
    assert error.fields["byte"] in (at, whole.rindex(bytes.fromhex("0a23d7ce"), 0, at))
    assert f"{error.fields['byte']:,}" in str(error)
    assert set(rows.values()) == {1}
    assert len(rows) > 600


@pytest.mark.parametrize("junk", [b"?" * (64 << 20), bytes(64 << 20)], ids=["text", "zeros"])
def test_junk_behind_a_record_is_not_read_to_its_end(channel, tmp_path, junk):
    """No record follows, so none can be waited for: the rest of the stream must not be taken into memory."""
    (tmp_path / "junk").write_bytes(junk)
    shards = shards_of(channel.uri)
    feeder = channel.feed({**channel.job(0), "files": [*shards[:2], str(tmp_path / "junk")]})
    with channel.pipe() as pipe:
        rows, error = failing(pipe)
    end = sum(os.path.getsize(path) for path in shards[:2])
    assert f"the record that begins at byte {end:,} does not begin with the magic word" in str(error)
    assert error.fields["byte"] == end
    assert (len(rows), set(rows.values())) == (600, {1})
    (told,) = ended(feeder)
    assert told["left_early"]
    assert told["sent"] < len(junk) / 2


def test_a_part_of_the_shards_where_the_channel_is_sharded(channel):
    files = shards_of(channel.uri)
    channel.feed({**channel.job(0), "files": files[:2]}, {**channel.job(1), "files": files[2:]}, channel.job(2, stop=0))
    with channel.pipe(distribution="ShardedByS3Key") as pipe:
        first, second = play(pipe), play(pipe)
        assert play(pipe) == []  # more hosts than objects: an empty stream is no error
        with pytest.raises(TypeError, match=r"length of channel .* is not known"):
            len(pipe)
    assert counted(first) + counted(second) == ALL


def test_shards_that_come_twice_or_of_another_split(channel):
    files = shards_of(channel.uri)
    channel.feed({**channel.job(0), "files": [*files, files[0]]})
    with channel.pipe() as pipe:
        _, error = failing(pipe)
    assert "is not of this split" in str(error)
    assert "folder of this split and plan alone" in str(error)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"version": 1}', "is JSON: the channel's S3Uri must be the folder of one split"),
        (b"PAR1\x15\x04\x15\x10" * 4, "is Parquet, which cannot be read from a pipe: build with --format recordio"),
        (b"\x1f\x8b\x08\x00" + bytes(40), "is gzip: set CompressionType Gzip"),
        (bytes(64), "is no RecordIO"),
        (b"\x0a\x23", "ends in the midst of the record that begins at byte 0, 2 bytes into it"),
    ],
)
def test_a_stream_that_is_none(channel, tmp_path, data, message):
    (tmp_path / "other").write_bytes(data)
    channel.feed({**channel.job(0), "files": [str(tmp_path / "other")]})
    with channel.pipe() as pipe:
        rows, error = failing(pipe)
    assert not rows
    assert message in str(error)


@pytest.mark.parametrize("escaped", [False, True])
def test_objects_that_were_wrapped_again_are_recognised(channel, tmp_path, escaped):
    """RecordWrapperType RecordIO makes each whole object one record, whose payload begins with the magic word."""
    magic = bytes.fromhex("0a23d7ce")
    shard = Path(shards_of(channel.uri)[0]).read_bytes()
    if escaped:  # as dmlc-core writes it: a payload is cut at every magic word
        parts = shard.split(magic)
        flags = [1, *[2] * (len(parts) - 2), 3]
        wrapped = b"".join(
            magic + (flag << 29 | len(part)).to_bytes(4, "little") + part
            for flag, part in zip(flags, parts, strict=True)
        )
    else:
        wrapped = magic + len(shard).to_bytes(4, "little") + shard
    (tmp_path / "wrapped").write_bytes(wrapped)
    channel.feed({**channel.job(0), "files": [str(tmp_path / "wrapped")]})
    with channel.pipe() as pipe:
        _, error = failing(pipe)
    assert 'channel "train" has RecordWrapperType RecordIO' in str(error)
    assert "Set RecordWrapperType to None" in str(error)


def test_nothing_comes(channel):
    with channel.pipe(timeout_s=0.3) as pipe:
        _, error = failing(pipe, Unavailable)
    assert f"{channel.path(0)}: it did not appear for 0.3 s, after 0 bytes. Is the channel in Pipe mode" in str(error)
    (channel.data / "train").mkdir()
    channel.job(0)
    with channel.pipe(timeout_s=0.3) as pipe:
        _, error = failing(pipe, Unavailable)
    assert "no byte came for 0.3 s" in str(error)
    assert "There is a folder train: the channel is in File or FastFile mode" in str(error)


def test_a_writer_that_hangs(channel):
    channel.job(0)
    with open(channel.path(0), "r+b", buffering=0) as writer:  # this way nobody need read yet
        writer.write(Path(shards_of(channel.uri)[0]).read_bytes()[:4096])
        with channel.pipe(timeout_s=0.5) as pipe:
            _, error = failing(pipe, Unavailable)
    assert "no byte came for 0.5 s, after 4,096 bytes. Is somebody still writing?" in str(error)


def test_no_fifo(channel):
    Path(channel.path(0)).write_bytes(b"")
    with channel.pipe() as pipe:
        _, error = failing(pipe, ConfigError)
    assert "is no FIFO: is this channel in Pipe mode?" in str(error)


# ---- what the job says --------------------------------------------------------------------------------------------


def configured(channel, **told):
    config = channel.root / "input" / "config"
    config.mkdir(exist_ok=True)
    (config / "inputdataconfig.json").write_text(json.dumps({"train": told, "meta": {"TrainingInputMode": "File"}}))


def test_the_job_says_how_a_channel_comes(channel):
    configured(channel, TrainingInputMode="Pipe", S3DistributionType="FullyReplicated", RecordWrapperType="None")
    channel.feed(channel.job(0))
    with channel.pipe() as pipe:
        assert not pipe.channel.is_sharded
        assert counted(play(pipe)) == ALL
    configured(channel, S3DistributionType="ShardedByS3Key", ShuffleConfig={"Seed": 3})
    with channel.pipe() as pipe:
        assert pipe.channel.is_sharded
        assert pipe.channel.is_shuffled
    with channel.pipe(distribution="FullyReplicated", shuffled=False) as pipe:
        assert not pipe.channel.is_sharded
        assert not pipe.channel.is_shuffled


@pytest.mark.parametrize(
    ("name", "told", "message"),
    [
        (
            "train",
            {"TrainingInputMode": "FastFile"},
            r'comes in FastFile mode.*shardprep.open\(".*/input/data/train"\)',
        ),
        ("train", {"RecordWrapperType": "RecordIO"}, "has RecordWrapperType RecordIO, which makes one record of each"),
        ("test", {}, 'this job has no channel "test"; it has meta, train'),
        ("a/b", {}, "a channel is named as in InputDataConfig"),
    ],
)
def test_what_cannot_be_piped_is_refused_at_once(channel, name, told, message):
    configured(channel, **told)
    with pytest.raises(ConfigError, match=message):
        channel.pipe(name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "test"}, 'has no rows in split "test"; it has train'),
        ({"buffer_bytes": 1000}, "buffer_bytes must be at least 65,536, got 1000"),
        ({"first_fifo": -1}, "first_fifo must be at least 0"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"distribution": "Sharded"}, "distribution must be"),
        ({"batch_tokens": None}, "give batch_tokens"),
        ({"rank": 2, "world_size": 2}, r"rank must be in \[0, 2\)"),
    ],
)
def test_settings_out_of_range(channel, settings, message):
    with pytest.raises(ConfigError, match=message):
        channel.pipe(**settings)


def test_a_broken_input_data_config(channel):
    configured(channel)
    for text in ("{", "[]"):
        (channel.root / "input/config/inputdataconfig.json").write_text(text)
        with pytest.raises(ConfigError, match=r"inputdataconfig\.json"):
            channel.pipe()


def test_parquet_shards_cannot_be_piped(channel, tmp_path):
    parquet = build(tmp_path / "parquet", lengths_of(50))
    with pytest.raises(ConfigError, match=r"00000-of-00004\.parquet cannot be read from a pipe.*--format recordio"):
        channel.pipe(manifest=parquet)


def test_the_manifest_comes_as_path_uri_or_data_set(channel, tmp_path):
    meta = tmp_path / "meta"  # a second channel, with the manifest alone
    meta.mkdir()
    (meta / "manifest.json").write_bytes((Path(channel.uri) / "manifest.json").read_bytes())
    dataset = shardprep.open(channel.uri)
    for number, manifest in enumerate((meta, str(meta / "manifest.json"), f"file://{meta}", dataset)):
        channel.feed(channel.job(0, f"c{number}"))
        with channel.pipe(f"c{number}", manifest=manifest) as pipe:
            assert counted(play(pipe)) == ALL


# ---- states -------------------------------------------------------------------------------------------------------


def test_a_state_of_every_step_is_continued_exactly(channel):
    channel.feed(channel.job(0))
    with channel.pipe(accumulate=3) as pipe:
        whole, states = [], [pipe.state_dict()]
        for batch in pipe:
            whole.append(real_ids(batch))
            if batch.last_in_step:
                assert batch.state() == pipe.state_dict()
                states.append(pipe.state_dict())
            else:
                assert pipe.state_dict() == states[-1]
        states.append(pipe.state_dict())
    assert states[-1] == states[-2]  # (epoch 1, step 0) after the very last batch
    assert all(len(json.dumps(state)) < 1024 for state in states)
    for number, state in enumerate(states[:: max(1, len(states) // 6)]):
        state = json.loads(json.dumps(state))  # noqa: PLW2901
        channel.feed(channel.job(0, f"again{number}"))
        with channel.pipe(f"again{number}", accumulate=3) as pipe:
            pipe.load_state_dict(state)
            assert pipe.state_dict() == pipe.upcoming_state() == state
            rest = [real_ids(batch) for batch in pipe]
            done = len(whole) - len(rest)
            if state["epoch"] == 0:
                assert rest == whole[done:]
                assert pipe.state_dict() == states[-1]


def test_the_world_may_change(channel):
    channel.feed(channel.job(0))
    rows = Counter()
    with channel.pipe(slots=4) as pipe:
        for batch in pipe:
            rows.update(real_ids(batch))
            if batch.last_in_step and batch.round > 20:
                break
        state = pipe.state_dict()
    loaders = []
    for rank in range(2):
        channel.feed(channel.job(0, f"train_{rank}"))
        loaders.append(channel.pipe(f"train_{rank}", rank=rank, world_size=2))
        loaders[-1].load_state_dict(state)
        assert loaders[-1].plan.policy.slots == 4
    for batches in zip(*loaders, strict=True):
        assert len({(b.round, b.input_ids.shape) for b in batches}) == 1
        for batch in batches:
            rows.update(real_ids(batch))
    assert rows == ALL
    for loader in loaders:
        loader.close()


def test_what_a_resume_costs_is_said(channel, caplog):
    channel.feed(channel.job(0))
    with channel.pipe() as pipe:
        for batch in pipe:
            if batch.step == pipe.steps // 2:
                break
        state = pipe.state_dict()
    channel.feed(channel.job(0, "again"))
    with channel.pipe("again") as pipe, caplog.at_level(logging.WARNING, "shardprep.pipe"):
        pipe.load_state_dict(state)
        play(pipe)
    records = state["pipe"]["records"]
    assert (
        f"continuing epoch 0 after {records} of 1500 records: a pipe cannot seek, so they are read and dropped"
        in caplog.text
    )


def test_another_order_is_no_continuation(channel, caplog):
    files = shards_of(channel.uri)
    channel.feed(channel.job(0))
    with channel.pipe() as pipe:
        for batch in pipe:
            if batch.step == pipe.steps // 2:
                break
        state = pipe.state_dict()
    for name in ("b", "c", "d"):
        channel.feed({**channel.job(0, name), "files": files[::-1]})
    with channel.pipe("b") as pipe:
        pipe.load_state_dict(state)
        rows, error = failing(pipe, ConfigError)
        assert not rows
        assert "the records that came now are others, or in another order: is there a ShuffleConfig" in str(error)
        assert "set_epoch(1)" in str(error)
    with channel.pipe("c", shuffled=True) as pipe, caplog.at_level(logging.WARNING, "shardprep.pipe"):
        pipe.load_state_dict(state)
        rest = play(pipe)
        assert "may be trained on twice, or not at all" in caplog.text
        assert 0 < len(counted(rest)) < ROWS
    with channel.pipe("d") as pipe:
        pipe.load_state_dict(state)
        pipe.set_epoch(1)
        assert counted(play(pipe)) == ALL


def test_a_stream_that_ends_before_the_state(channel):
    files = shards_of(channel.uri)
    channel.feed(channel.job(0))
    with channel.pipe(distribution="ShardedByS3Key") as pipe:
        for batch in pipe:
            state = batch.state()
    assert state["pipe"]["records"] == ROWS or state["epoch"] == 1
    state["epoch"], state["step"] = 0, 7
    state["pipe"] = {
        **state["pipe"],
        "window": 99,
        "records": 1400,
        "window_step": 7,
        "window_round": 7,
        "prefix": "00",
    }
    channel.feed({**channel.job(0, "b"), "files": files[:1]})
    with channel.pipe("b", distribution="ShardedByS3Key") as pipe:
        pipe.load_state_dict(state)
        rows, _ = failing(pipe, ConfigError)
        assert not rows


def test_states_of_others_are_refused(channel):
    dataset = shardprep.open(channel.uri)
    loader = dataset.loader("train", batch_tokens=1000)
    with channel.pipe() as pipe, channel.pipe("other", buffer_bytes=2 * BUFFER) as other:
        state = pipe.state_dict()
        with pytest.raises(ConfigError, match="not a state of a pipe: save what its state_dict"):
            pipe.load_state_dict(loader.state_dict())
        for broken in (
            None,
            {},
            {**state, "pipe": {"window": -1}},
            {**state, "pipe": {**state["pipe"], "prefix": "x"}},
        ):
            with pytest.raises(ConfigError, match="not a state of a pipe"):
                pipe.load_state_dict(broken)
        with pytest.raises(ConfigError, match="the seed is 5 in the state and 0 here"):
            pipe.load_state_dict({**state, "seed": 5})
        with pytest.raises(ConfigError, match=f"saved with buffer_bytes={BUFFER}, and here it is {2 * BUFFER}"):
            other.load_state_dict(state)
        with pytest.raises(ConfigError, match="pipe_buffer_bytes is 65536 in the state and 'missing' here"):
            loader.load_state_dict(state)


PROGRAM = """
import json, sys, time
from pathlib import Path
import shardprep
from shardprep.reader.history import StateHistory
root, uri, states, log, hold_at = sys.argv[1:]
history = StateHistory(states)
with (
    shardprep.pipe("train", manifest=uri, root=root, batch_tokens=1000, buffer_bytes=1 << 16, accumulate=2) as pipe,
    open(log, "ab", buffering=0) as out,
):
    state = history.load()
    if state is not None:
        pipe.load_state_dict(state)
        out.write(json.dumps([state["epoch"], state["step"], None]).encode() + b"\\n")
    rows = []
    while pipe.upcoming_state()["epoch"] < 2:
        for batch in pipe:
            rows += [name for name, weight in zip(batch.ids, batch.weight) if weight]
            if batch.last_in_step:
                # Long from the step on for which the kill waits: it finds this process at work, however busy the machine is.
                hold = int(hold_at) and Path(log).read_text().count("[") >= 2 * int(hold_at)  # two brackets a line
                time.sleep(2 if hold else 0.005 if int(hold_at) else 0)
                out.write(json.dumps([batch.epoch, batch.step, rows]).encode() + b"\\n")
                history.save(1000 * batch.epoch + batch.step, batch.state())
                rows = []
"""


def test_killed_and_resumed(channel, tmp_path):
    """Two kills in different epochs; each time a new job's FIFOs begin again at 0. Every row once per epoch."""
    log = tmp_path / "log"
    log.touch()
    for run, kill_at in enumerate((8, 50, None)):
        root = tmp_path / f"run{run}"
        with channel_in(root, channel.uri) as fresh:
            fresh.feed(*(fresh.job(n) for n in range(2)))
            command = [sys.executable, "-c", PROGRAM, str(root), channel.uri, str(tmp_path / "states"), str(log)]
            process = subprocess.Popen([*command, str(kill_at or 0)])
            deadline = time.monotonic() + 300
            while kill_at and log.read_text().count("[") < 2 * kill_at:  # two brackets a line
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
            if kill_at:
                process.kill()
            assert process.wait(300) == (-signal.SIGKILL if kill_at else 0)
    kept, resumed = {}, []
    for epoch, step, rows in map(json.loads, log.read_text().splitlines()):
        if rows is None:  # what came after the state that was continued died with its process
            resumed.append(epoch)
            kept = {at: rows for at, rows in kept.items() if at < (epoch, step)}
        else:
            kept[epoch, step] = rows
    assert resumed == [0, 1]
    for epoch in range(2):
        assert Counter(name for at, rows in kept.items() if at[0] == epoch for name in rows) == ALL


# ---- processes and threads ----------------------------------------------------------------------------------------


def test_a_child_cannot_iterate(channel):
    channel.feed(channel.job(0, pause_s=0.01, piece=4000))
    with channel.pipe() as pipe:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                next(iter(pipe))
            except ConfigError as error:
                os.write(write_end, str(error).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        os.waitpid(pid, 0)
        with os.fdopen(read_end) as said:
            assert "this is a child of it: iterate there" in said.read()
        assert counted(play(pipe)) == ALL  # the parent's FIFO is its own


def test_closed_it_says_so(channel):
    pipe = channel.pipe()
    pipe.close()
    pipe.close()
    with pytest.raises(ConfigError, match='the pipe of channel "train" was closed: make a new one'):
        next(iter(pipe))


def test_an_epoch_cannot_go_on_after_the_next_was_begun(channel):
    channel.feed(channel.job(0), channel.job(1))
    with channel.pipe() as pipe:
        first = iter(pipe)
        next(first)
        assert counted(play(pipe)) == ALL
        with pytest.raises(ConfigError, match="another epoch was begun, so this one cannot go on"):
            list(first)


def test_a_script_that_fails_in_the_middle_ends_at_once(channel):
    channel.feed(channel.job(0, pause_s=0.01, piece=1000))
    code = (
        "import sys, shardprep\n"
        "pipe = shardprep.pipe('train', manifest=sys.argv[1], root=sys.argv[2], batch_tokens=1000, buffer_bytes=1 << 16)\n"
        "for batch in pipe: raise ZeroDivisionError"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, channel.uri, str(channel.root)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr.rstrip().endswith("ZeroDivisionError")
    assert process.stderr.count("Traceback") == 1


def test_a_loader_that_is_forgotten_ends_its_thread(channel):
    import gc
    import threading

    channel.job(0)
    pipe = channel.pipe()
    names = [thread.name for thread in threading.enumerate()]
    assert "shardprep-pipe-train" in names
    del pipe
    gc.collect()
    deadline = time.monotonic() + 30
    while "shardprep-pipe-train" in [thread.name for thread in threading.enumerate()]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_metrics_go_to_files(channel, tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDPREP_METRICS_DIR", str(tmp_path / "metrics"))
    channel.feed(channel.job(0))
    seen = []
    with channel.pipe(on_metrics=seen.append) as pipe:
        play(pipe)
        steps = pipe.steps
    assert seen[-1]["rows"] == ROWS
    lines = [json.loads(line) for line in (tmp_path / "metrics/train-rank-00000.jsonl").read_text().splitlines()]
    assert lines[-1]["final"]
    assert lines[-1]["steps_per_epoch"] == steps
