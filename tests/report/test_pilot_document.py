"""From the lines of a metrics folder to pilot.json, its text and its page, on made-up steps whose answers are known."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from shardprep.errors import ConfigError, PilotError
from shardprep.reader.steps import CAUSES, COLUMNS
from shardprep.report.pilot import pilot_document
from shardprep.report.pilot_flops import Model
from shardprep.report.pilot_gpu import GpuUse
from shardprep.report.pilot_page import pilot_page
from shardprep.report.pilot_processes import processes_of_ps
from shardprep.report.pilot_question import Question
from shardprep.report.pilot_steps import MetricsFolder, common_steps
from shardprep.report.pilot_text import pilot_text

STEPS = 120
END_NOT_SEEN = "no end of an epoch was seen: evaluation and checkpoints between epochs come on top of the projection"
USE = GpuUse("NVIDIA A10G", 2, 0.83, 14 * 10**9, 24 * 10**9, 60)


def columns_of(seconds, waits, *, slots=4_096, useful=8_000, batches=2, cause="fetch"):
    """Return the columns of one of two ranks; a step holds 2 x slots tokens, `useful` of them real."""
    steps = len(seconds)
    columns = {name: [0.0] * steps for name in COLUMNS}
    columns |= {
        "step": [*range(steps)],
        "end": [float(x) for x in 1_000 + np.cumsum(seconds)],
        "seconds": [float(x) for x in seconds],
        "wait_seconds": [float(x) for x in waits],
        f"wait_{cause}_seconds": [float(x) for x in waits],
        "between_seconds": [float(np.mean(seconds)) * 0.4] * steps,
        "micro_batches": [batches] * steps,
        "slots": [slots] * steps,
        "square_slots": [slots * 512] * steps,
        "step_rows": [16] * steps,
        "step_tokens": [useful] * steps,
    }
    return columns


def line_of(rank, columns, *, pid=7, split="train", world=2):
    about = {"rank": rank, "world_size": world, "split": split, "pid": pid, "steps_per_epoch": 1_000}
    return json.dumps({**about, "steps": columns}) + "\n"


def cut(columns, start, stop):
    return {name: values[start:stop] for name, values in columns.items()}


@pytest.fixture
def two_ranks():
    """Return the columns of two ranks: 0.5 s a step after 10 slow ones; rank 1 waits 0.1 s, rank 0 never."""
    seconds = np.full(STEPS, 0.5) + np.random.default_rng(2).normal(0, 0.01, STEPS)
    seconds[:10] += 2
    return columns_of(seconds, np.zeros(STEPS)), columns_of(seconds, np.full(STEPS, 0.1))


@pytest.fixture
def played(two_ranks, tmp_path):
    for rank, columns in enumerate(two_ranks):
        (tmp_path / f"train-rank-{rank:05d}.jsonl").write_text(line_of(rank, columns))
    folder = MetricsFolder(str(tmp_path))
    folder.update()
    return common_steps(folder.ranks())


def test_numbers_of_two_ranks(played):
    told = pilot_document(played, Question(), started=990.0)
    assert (told["steps_left_out"], told["steps_measured"], told["settled"]) == (10, STEPS - 10, True)
    assert told["seconds_per_step"]["mean"] == pytest.approx(0.5, rel=0.01)
    assert told["steps_per_second"]["mean"] == pytest.approx(2, rel=0.01)
    assert told["steps_per_second"]["low"] == pytest.approx(2, rel=0.02)
    assert told["rows_per_second"]["mean"] == pytest.approx(32, rel=0.01)
    assert told["tokens_per_second"]["mean"] == pytest.approx(16_384, rel=0.01)
    assert told["useful_tokens_per_second"]["mean"] == pytest.approx(16_000, rel=0.01)
    assert told["padding_share"] == pytest.approx(192 / 8_192)
    assert told["wait_share_by_rank"] == pytest.approx([0, 0.2], rel=0.02)
    assert (told["wait_share"], told["wait_share_slowest"]) == pytest.approx((0.1, 0.2), rel=0.02)
    assert told["wait_seconds_by_cause"]["fetch"] == pytest.approx(0.05 * (STEPS - 10))
    assert set(told["wait_seconds_by_cause"]) == set(CAUSES)
    assert told["mean_length"] == 512
    assert told["startup_seconds"] == pytest.approx(
        10 + 10 * 2, abs=0.5
    )  # 10 s before the first step, 2 s more for ten
    assert told["step_parts"]["wait"] == pytest.approx(0.05)
    assert told["notes"] == [END_NOT_SEEN]
    assert told["between_epochs_seconds"] is None
    plan = told["projection"]
    assert (plan["basis"], plan["steps"], plan["usd"]) == ("epoch", 1_000, None)
    assert plan["seconds"]["mean"] == pytest.approx(500 + 30, rel=0.01)
    assert told["epoch"]["steps_left"] == 1_000 - STEPS
    assert told["epoch"]["seconds_left"]["mean"] == pytest.approx(880 / 2, rel=0.01)
    assert [finding["kind"] for finding in told["diagnosis"]] == ["input_bound", "stragglers", "compute_bound"]
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_all_that_can_be_asked(played):
    model = Model(1e9, trainable=1e7, layers=24, width=2_048)
    question = Question(model=model, usd_per_hour=2.82, steps=10_000, passes=3, confidence=0.9)
    told = pilot_document(played, question, use=USE, notes=("a note",))
    plan = told["projection"]
    assert (plan["basis"], plan["steps"]) == ("total_steps", 30_000)
    assert plan["usd"]["mean"] == pytest.approx(plan["hours"]["mean"] * 2.82)
    assert plan["hours"]["mean"] == pytest.approx(15_000 / 3_600, rel=0.01)
    assert plan["startup_seconds"] is None
    assert told["peak_flops"] == 70e12  # of the GPU that was seen
    per_token = 4e9 + 2e7 + 12 * 24 * 2_048 * 512
    assert told["mfu"]["mean"] == pytest.approx(16_000 * per_token / (2 * 70e12), rel=0.01)
    assert told["hfu"]["mean"] == pytest.approx(16_384 * per_token / (2 * 70e12), rel=0.01)
    assert told["mfu"]["confidence"] == 0.9
    assert told["gpu"]["utilization"] == 0.83
    assert told["notes"] == ["a note", END_NOT_SEEN]
    text = pilot_text(told)
    for words in (
        "MFU ",
        "2 x NVIDIA A10G, busy 83%",
        "14.0 of 24.0 GB",
        "30,000 steps, 3 passes",
        " USD an hour",
        "note: a note",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 132


def test_a_model_without_a_peak_says_what_is_missing(played):
    told = pilot_document(played, Question(model=Model(1e9)))
    assert told["mfu"] is None
    assert told["flops_per_token"]["model"] == 6e9
    assert told["notes"][-1] == "no utilisation of the peak: give --peak-flops or --gpu"


def test_what_comes_between_epochs_is_part_of_the_whole_run():
    seconds = np.full(STEPS, 0.5)
    columns = columns_of(seconds, np.zeros(STEPS))
    columns["epoch"] = [step // 50 for step in range(STEPS)]
    columns["end"] = [end + 7 * (step // 50) for step, end in enumerate(columns["end"])]  # 7 s of evaluation
    steps = rank_of(columns)
    steps.steps_per_epoch = 50
    told = pilot_document(common_steps([steps]), Question(passes=4))
    assert told["between_epochs_seconds"] == pytest.approx(7)
    plan = told["projection"]
    assert (plan["steps"], plan["between_epochs_seconds"]) == (200, pytest.approx(28))
    assert plan["seconds"]["mean"] == pytest.approx(200 * 0.5 + 4 * 7)
    assert "28.0 s of it between epochs" in pilot_text(told)
    (late,) = (note for note in told["notes"] if "epoch" in note)
    assert "longer than an epoch" in late


def test_against_a_pilot_of_one_rank(played):
    one = {"working_seconds_per_token": 0.3 / 4_096}
    told = pilot_document(played, Question(one_rank=one))
    (talk,) = [finding for finding in told["diagnosis"] if finding["kind"] == "communication"]
    assert talk["evidence"]["seconds_per_token"] == pytest.approx(0.45 / 4_096, rel=0.02)
    assert talk["gain_share"] == pytest.approx((1 - 0.3 / 0.45) * 0.8, rel=0.05)


def test_steps_of_different_size_show_fixed_costs():
    draw = np.random.default_rng(4)
    slots = draw.integers(500, 4_000, STEPS)
    seconds = 0.2 + slots * 1e-4 + draw.normal(0, 0.005, STEPS)
    columns = columns_of(seconds, np.zeros(STEPS)) | {"slots": slots.tolist(), "step_tokens": slots.tolist()}
    ranks = [rank_of(columns)]
    told = pilot_document(common_steps(ranks), Question())
    (small,) = [finding for finding in told["diagnosis"] if finding["kind"] == "batch_too_small"]
    assert small["evidence"]["fixed_share"] == pytest.approx(0.2 / (0.2 + 0.225), abs=0.05)
    assert small["evidence"]["fixed_share_low"] < small["evidence"]["fixed_share"]


def rank_of(columns, rank=0, world=1):
    from shardprep.report.pilot_steps import RankSteps

    steps = RankSteps("train", rank, world, steps_per_epoch=None)
    steps.extend(columns)
    return steps


def test_ranks_of_other_nodes_are_counted_as_these(two_ranks):
    told = pilot_document(common_steps([rank_of(two_ranks[0], world=2)]), Question())
    assert told["tokens_per_second"]["mean"] == pytest.approx(16_384, rel=0.01)
    assert "metrics of 1 of 2 ranks were found" in told["notes"][0]
    assert told["projection"] is None  # nobody said how long an epoch is
    assert told["epoch"] is None
    assert "whole run" not in pilot_text(told)
    assert "whole run" not in pilot_page(told)


def test_too_few_steps_are_an_error(two_ranks):
    with pytest.raises(PilotError, match="25 steps were played, 10 of them warm-up: at least 20"):
        pilot_document(common_steps([rank_of(cut(two_ranks[0], 0, 25))]), Question())
    with pytest.raises(PilotError, match="0 steps were played"):
        pilot_document(common_steps([rank_of(cut(two_ranks[0], 0, 0))]), Question())


def test_an_unsettled_pilot_and_one_longer_than_an_epoch_say_so():
    steps = rank_of(columns_of(np.linspace(3, 1, STEPS), np.zeros(STEPS)))
    steps.steps_per_epoch = 50
    notes = pilot_document(common_steps([steps]), Question())["notes"]
    assert "the speed had not settled" in notes[0]
    assert "longer than an epoch (50 steps)" in notes[2]


@pytest.mark.parametrize(
    ("numbers", "word"),
    [({"confidence": 1}, "--confidence"), ({"passes": float("inf")}, "--passes"), ({"steps": 0}, "--total-steps")],
)
def test_questions_that_cannot_be_are_refused(numbers, word):
    with pytest.raises(ConfigError, match=word):
        Question(**numbers)


def test_a_folder_is_read_on_as_it_grows_with_torn_lines_and_restarts(two_ranks, tmp_path):
    path, other = tmp_path / "train-rank-00000.jsonl", tmp_path / "train-rank-00001.jsonl"
    folder = MetricsFolder(str(tmp_path))
    folder.update()
    assert folder.ranks() == []
    whole = line_of(0, cut(two_ranks[0], 0, 30)).encode()
    path.write_bytes(whole[:100])
    folder.update()
    assert folder.ranks() == []
    path.write_bytes(whole + b'{"split": "tr')
    folder.update()
    folder.update()
    (rank,) = folder.ranks()
    assert len(rank) == 30
    other.write_text(line_of(1, cut(two_ranks[1], 0, 20)))
    path.write_bytes(whole + line_of(0, cut(two_ranks[0], 30, 50)).encode())
    folder.update()
    assert [len(rank) for rank in folder.ranks()] == [50, 20]
    assert len(common_steps(folder.ranks())) == 20  # those that both have played
    with path.open("a") as file:
        file.write(line_of(0, cut(two_ranks[0], 0, 5), pid=8))  # torchrun has started it again
    folder.update()
    assert len(folder.ranks()[0]) == 5
    (tmp_path / "notes.txt").write_text("not ours")
    folder.update()


def test_the_training_split_is_train_or_what_has_most_steps(two_ranks, tmp_path):
    folder = MetricsFolder(str(tmp_path))
    (tmp_path / "a-rank-00000.jsonl").write_text(line_of(0, cut(two_ranks[0], 0, 3), split="a"))
    (tmp_path / "b-rank-00000.jsonl").write_text(line_of(0, cut(two_ranks[0], 0, 4), split="b"))
    folder.update()
    assert [rank.split for rank in folder.ranks()] == ["b"]
    assert [rank.split for rank in folder.ranks("a")] == ["a"]
    with pytest.raises(ConfigError, match='"test"; the command read a, b'):
        folder.ranks("test")
    (tmp_path / "t-rank-00000.jsonl").write_text(line_of(0, cut(two_ranks[0], 0, 1), split="train"))
    folder.update()
    assert [rank.split for rank in folder.ranks()] == ["train"]


class Page(HTMLParser):
    """Checks that tags are closed, in order; gathers texts."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "img", "link")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag == "line"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_whole_and_says_the_diagnosis_and_every_rank(played):
    told = pilot_document(played, Question(model=Model(1e9), usd_per_hour=1.0), started=990.0, use=USE, notes=("<b>",))
    told["command"] = "torchrun train.py --name '<x>'"
    page = Page()
    page.feed(pilot_page(told))
    assert page.open == []
    text = " ".join(page.texts)
    for finding in told["diagnosis"]:
        assert finding["says"][1:] in text
        assert finding["advice"] in text
    for words in (
        "--name '<x>'",
        "Note: <b>.",
        "Rank 0",
        "Rank 1",
        "wait: fetch",
        "Waits by rank",
        "GPU utilisation",
        "warm-up",
    ):
        assert words in text
    assert not re.search(r"\b(nan|inf)\b", text)


def test_a_page_of_many_ranks_shows_the_slowest(two_ranks):
    ranks = [rank_of(two_ranks[0], rank, 12) for rank in range(12)]
    ranks[5].columns["seconds"] = [x * 2 for x in ranks[5].columns["seconds"]]
    told = pilot_document(common_steps(ranks), Question())
    text = pilot_page(told)
    assert text.count("<h3>Rank") == 8
    assert "<h3>Rank 5</h3>" in text


def test_processes_as_ps_of_macos_lists_them():
    listing = """\
    1     0 Ss   Mon Nov 30 08:00:00 2026
  501     1 S+   Mon Nov 30 09:00:00 2026
  502   501 Z    Mon Nov 30 09:00:01 2026
"""
    assert processes_of_ps(listing) == {1: (0, "Mon Nov 30 08:00:00 2026"), 501: (1, "Mon Nov 30 09:00:00 2026")}
