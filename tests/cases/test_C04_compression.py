import gzip

import zstandard

from tests.cases.command import build, refused
from tests.cases.inputs import HERE, docs_1000, line, write
from tests.invariants import assert_places


def test_compression_is_told_by_content(tmp_path):
    dataset = build(HERE / "C04", tmp_path / "out")
    assert {"g1", "g2", "g3a", "g3b"} <= dataset.ids
    if "g4" not in dataset.ids:
        assert_places(dataset, {"g4.json.gz": [None]})
    assert dataset.ledger["objects"]["without_documents"] == 0


def test_members_frames_and_zstd(tmp_path):
    members = gzip.compress(line("m1", "one")) + gzip.compress(line("m2", "two"))
    write(tmp_path / "in/members.jsonl", members)
    frames = zstandard.compress(line("z1", "one")) + zstandard.compress(line("z2", "two"))
    write(tmp_path / "in/frames.json", frames)
    write(tmp_path / "in/padded.gz", gzip.compress(line("p1", "one")) + bytes(512))
    assert build(tmp_path / "in", tmp_path / "out").ids == {"m1", "m2", "z1", "z2", "p1"}


def test_a_damaged_or_foreign_file_is_set_aside_as_a_whole_and_by_name(tmp_path):
    whole = gzip.compress(docs_1000())
    write(tmp_path / "in/cut.jsonl.gz", whole[: len(whole) // 2])
    write(tmp_path / "in/tail.gz", gzip.compress(line("t", "x")) + b"rubbish")
    write(tmp_path / "in/bz.json", b"BZh91AY&SY" + bytes(20))
    write(tmp_path / "in/zip.json", b"PK\x03\x04" + bytes(20))
    write(tmp_path / "in/good.json", ("g", "good"))
    dataset = build(tmp_path / "in", tmp_path / "out")
    assert dataset.ids == {"g"}
    assert_places(dataset, {name: [None] for name in ("cut.jsonl.gz", "tail.gz", "bz.json", "zip.json")})
    assert dataset.reasons == {"bad_compression": 2, "unsupported_format": 2}
    assert "Traceback" not in refused(tmp_path / "in", tmp_path / "strict", "--on-bad", "fail")


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused_without_eating_the_memory(tmp_path):
    write(tmp_path / "in/bomb.gz", gzip.compress(bytes(64 << 20)))
    write(tmp_path / "in/good.json", ("g", "good"))
    dataset = build(tmp_path / "in", tmp_path / "out", "--max-object-size", "1MB")
    assert dataset.reasons == {"too_large": 1}
    assert_places(dataset, {"bomb.gz": [None]})


def test_a_compressed_file_larger_than_a_task_is_read_whole(tmp_path):
    import random

    rng = random.Random(1)
    lines = [line(f"n{i}", rng.randbytes(600).hex()) for i in range(3000)]
    data = gzip.compress(b"".join(lines), 1)
    assert len(data) > 2 << 20
    write(tmp_path / "in/large.bin", data)
    assert len(build(tmp_path / "in", tmp_path / "out").ids) == 3000
