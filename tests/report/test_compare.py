"""`shardprep compare`: pairing, what is refused and by which words, verdicts, what a person and a script read."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardprep.errors import ConfigError, SourceError
from shardprep.report.compare import compare
from shardprep.report.compare_rows import RowResults
from tests.invariants import assert_for_a_person


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def losses(n=200, shift=0.0, seed=0, scatter=0.05, **more):
    """Return rows of one evaluation; the same seed means the same baseline, scatter and shift move the candidate."""
    base = np.random.default_rng(seed).gamma(8, 0.3, n)
    if shift or scatter:
        base = base + np.random.default_rng(seed + 1).normal(shift, scatter, n)
    return [{"id": f"d{i}", "loss": float(base[i]), **{k: v[i] for k, v in more.items()}} for i in range(n)]


def answers(n, only_baseline, only_candidate):
    """Return two lists of rows with this many discordant ones, all others right in both."""
    first = [i >= only_candidate for i in range(n)]
    second = [not only_candidate <= i < only_candidate + only_baseline for i in range(n)]
    return ([{"id": i, "correct": c} for i, c in enumerate(rows)] for rows in (first, second))


@pytest.fixture
def files(tmp_path):
    """Write rows of baseline and candidate; return both paths."""

    def make(baseline, candidate):
        return write(tmp_path / "baseline.jsonl", baseline), write(tmp_path / "candidate.jsonl", candidate)

    return make


# What is compared


def test_pairs_are_by_id_not_by_place(files):
    rows = losses()
    base, cand = files(losses(scatter=0), rows)
    order = np.random.default_rng(0).permutation(len(rows))
    found = compare(base, cand, delta=0.01)
    shuffled = files(losses(scatter=0), [rows[i] for i in order])
    assert compare(*shuffled, delta=0.01).interval == found.interval
    shuffled = files([losses(scatter=0)[i] for i in order], rows)  # no other resamples: their order is that of the ids
    assert compare(*shuffled, delta=0.01).interval == found.interval
    assert found.rows == 200
    difference = np.mean([r["loss"] for r in rows]) - np.mean([r["loss"] for r in losses(scatter=0)])
    assert found.interval.estimate == pytest.approx(difference)


def test_jsonl_parquet_and_parts_are_the_same(files, tmp_path):
    base, cand = files(losses(scatter=0), losses())
    parts = tmp_path / "parts"
    for rank, part in enumerate(np.array_split(np.arange(200), 3)):
        results = RowResults()
        rows = losses()
        results.add([f"d{i}" for i in part], loss=np.array([rows[i]["loss"] for i in part]))
        results.write(parts / f"rows-{rank:05d}-of-00003.{'parquet' if rank == 1 else 'jsonl'}")
    pq.write_table(pa.Table.from_pylist(losses()), tmp_path / "candidate.parquet")
    found = compare(base, cand, delta=0.01).interval
    for other in (tmp_path / "candidate.parquet", parts, f"{parts}/"):
        assert compare(base, str(other), delta=0.01).interval == found


def test_loss_is_weighted_by_tokens_unless_told_otherwise(files):
    tokens = [10 + 7 * (i % 50) for i in range(200)]
    first, second = losses(scatter=0, tokens=tokens), losses(tokens=tokens)
    base, cand = files(first, second)
    found = compare(base, cand, delta=0.01)
    weighted = sum((b["loss"] - a["loss"]) * a["tokens"] for a, b in zip(first, second, strict=True)) / sum(tokens)
    assert found.interval.estimate == pytest.approx(weighted)
    assert found.summary()["weight"] == "tokens"
    plain = compare(base, cand, delta=0.01, weight="none")
    assert plain.summary()["weight"] is None
    assert plain.interval.estimate == pytest.approx(
        np.mean([b["loss"] - a["loss"] for a, b in zip(first, second, strict=True)])
    )


def test_filler_rows_are_left_out_whatever_they_hold(files):
    real = [{**row, "weight": 1} for row in losses()]
    filler = [{"id": "d0", "weight": 0, "loss": 99.0}, {"id": "d0", "weight": 0, "loss": None}]
    base, cand = files([{**row, "weight": 1} for row in losses(scatter=0)], [*real[:100], *filler, *real[100:]])
    found = compare(base, cand, delta=0.01)
    assert found.rows == 200
    assert found.left_out == {"filler": 2}


def test_integer_ids_are_decimal_text(files):
    base, cand = files(
        [{"id": i, "loss": i} for i in range(20)], [{"id": str(i), "loss": i + 0.1 * (i % 3)} for i in range(20)]
    )
    assert compare(base, cand, delta=1).rows == 20


def test_pieces_of_a_document_are_paired_and_drawn_together(files):
    rows = [[{"id": f"d{i // 4}", "piece": i % 4, "loss": 2 + s * math.sin(i)} for i in range(80)] for s in (0.0, 0.1)]
    found = compare(*files(*rows), delta=0.01).summary()
    assert (found["rows"], found["by"], found["groups"]) == (80, "id", 20)


def test_groups_that_share_their_fate_make_the_interval_wider(files):
    rng = np.random.default_rng(3)
    shared = rng.normal(0, 0.1, 40)
    base = [{"id": i, "loss": 2.0, "user": f"u{i % 40}"} for i in range(800)]
    cand = [{"id": i, "loss": 2.0 + shared[i % 40] + rng.normal(0, 0.01), "user": f"u{i % 40}"} for i in range(800)]
    paths = files(base, cand)
    rows, groups = compare(*paths, delta=0.01).interval, compare(*paths, delta=0.01, by="user").interval
    assert groups.units == 40
    assert (groups.high - groups.low) / (rows.high - rows.low) == pytest.approx(math.sqrt(20), rel=0.2)


def test_accuracy_of_groups_is_drawn_by_groups(files):
    base, cand = answers(400, 40, 20)
    paths = files([{**r, "user": r["id"] % 50} for r in base], list(cand))
    found = compare(*paths, metric="accuracy", delta="5pp", by="user")
    assert found.only_right is None
    assert "bootstrap" in found.interval.method
    assert found.summary()["mcnemar"] is None


def test_token_accuracy_is_a_mean_weighted_by_tokens(files):
    rng = np.random.default_rng(0)
    rows = [[{"id": i, "accuracy": float(a), "tokens": 10 + i} for i, a in enumerate(rng.random(50))] for _ in range(2)]
    found = compare(*files(*rows), delta=0.3)
    assert (found.metric, found.mode, found.sample.weight) == ("accuracy", "max", "tokens")
    assert not found.unit.share


# Verdicts


def test_no_worse_worse_and_cannot_tell(files, run_compare):
    base, cand = files(losses(2_000, scatter=0), losses(2_000, shift=0.003))
    code, out, err = run_compare(base, cand, "--delta", 0.01)
    assert (code, err) == (0, "")
    assert "verdict     no worse than 0.01: the bad end of the interval, +0.00" in out
    code, out, _ = run_compare(base, cand, "--delta", 0.004, "--json")
    told = json.loads(out)
    assert (code, told["verdict"]) == (0, "cannot tell")
    assert told["rows_needed"] > 2_000
    assert f"needs about {told['rows_needed']:,} rows" in told["sentence"]
    base, cand = files(losses(2_000, scatter=0), losses(2_000, shift=0.05))
    code, out, _ = run_compare(base, cand, "--delta", 0.01)
    assert code == 0
    assert "verdict     worse, by more than 0.01: even the good end of the interval is +0.04" in out


@pytest.mark.parametrize(("shift", "code"), [(-0.02, 0), (0.01, 1), (0.1, 1)])
def test_a_pipeline_may_demand_no_worse(files, run_compare, shift, code):
    base, cand = files(losses(scatter=0), losses(shift=shift))
    assert run_compare(base, cand, "--delta", 0.01, "--fail-unless-no-worse")[0] == code
    assert run_compare(base, cand, "--delta", 0.01)[0] == 0


def test_accuracy_has_the_exact_test_and_points(files, run_compare):
    base, cand = files(*answers(1_000, 30, 12))
    code, out, _ = run_compare(base, cand, "--metric", "accuracy", "--delta", "5pp")
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if line[0] != " ")
    assert lines["baseline"].startswith("98.80%")
    assert lines["difference"].startswith("-1.8 pp, 95% interval [-3.")
    assert lines["McNemar"] == "30 rows only the baseline has right, 12 only the candidate; exact p = 0.00792"
    assert lines["verdict"].startswith("no worse than 5 pp")
    told = json.loads(run_compare(base, cand, "--delta", 0.02, "--json")[1])  # correct is the only metric there
    assert told["mcnemar"] == {"only_baseline": 30, "only_candidate": 12, "p": pytest.approx(0.00792, abs=1e-5)}
    assert told["verdict"] == "cannot tell"
    assert told["against_zero"] == "worse"
    assert "that it is worse than the baseline is shown" in told["sentence"]


def test_a_better_candidate_is_said_to_be_better(files):
    base, cand = files(losses(scatter=0), losses(shift=-0.1))
    found = compare(base, cand, delta=0)
    assert found.verdict.answer == "no worse"
    assert "better than the baseline, by 0.09" in found.sentence()


def test_the_same_results_twice_are_no_worse_and_a_doubt(files):
    base, cand = files(losses(scatter=0), losses(scatter=0))
    found = compare(base, cand, delta=0)
    assert found.verdict.answer == "no worse"
    assert any("two files of one model" in note for note in found.notes())


def test_too_few_rows_have_no_verdict(files, run_compare):
    base, cand = files(losses(8, scatter=0), losses(8))
    code, out, _ = run_compare(base, cand, "--delta", 100)
    assert code == 0
    assert "no interval" in out
    assert "cannot tell yet: 8 rows are too few for an interval; needs about 100 rows at least" in out
    told = json.loads(run_compare(base, cand, "--delta", 100, "--json")[1])
    assert (told["difference"]["low"], told["difference"]["high"]) == (None, None)
    assert told["rows_needed"] == 100
    out = run_compare(*files(losses(1, scatter=0), losses(1)), "--delta", 100)[1]
    assert "cannot tell yet: 1 row is too few" in out
    one_differs = losses(scatter=0)
    one_differs[5]["loss"] += 1
    out = " ".join(run_compare(*files(losses(scatter=0), one_differs), "--delta", 100)[1].split())
    assert "cannot tell yet: too few of the 200 rows differ" in out
    assert "needs about 400 rows at least" in out
    rows = [row | {"grp": i % 3} for i, row in enumerate(losses())]
    base, cand = files([row | {"grp": i % 3} for i, row in enumerate(losses(scatter=0))], rows)
    assert "cannot tell yet: 3 groups are too few" in run_compare(base, cand, "--delta", 100, "--by", "grp")[1]


def test_one_row_with_all_the_weight_has_no_verdict(files):
    tokens = [10**9] + [1] * 199
    found = compare(*files(losses(scatter=0, tokens=tokens), losses(tokens=tokens)), delta=0.05)
    assert found.verdict.answer == "cannot tell"
    assert "nearly all the weight" in found.sentence()


@pytest.mark.parametrize("discordant", [(0, 0), (1, 0), (2, 2), (3, 1)])
@pytest.mark.parametrize("rows", [1, 5, 40, 300])
def test_rows_that_are_needed_are_more_than_there_are(files, rows, discordant):
    if sum(discordant) > rows:
        discordant = (1, 0)
    found = compare(*files(*answers(rows, *discordant)), delta="1pp")
    if found.verdict.answer == "cannot tell" and found.verdict.rows_needed is not None:
        assert found.verdict.rows_needed > rows
        assert f"needs about {found.verdict.rows_needed:,} rows" in found.sentence()
    if discordant == (0, 0):
        assert found.verdict.rows_needed is not None


def test_a_difference_of_delta_itself_says_what_equal_models_would_need(files):
    found = compare(*files(*answers(300, 9, 6)), delta="1pp")
    assert found.verdict.rows_needed is None
    assert f"about {found.verdict.rows_needed_if_equal:,} if there is none" in found.sentence()


def test_equal_losses_of_0_and_1_are_no_shares(files):
    rows = [{"id": i, "loss": float(i % 2)} for i in range(50)]
    found = compare(*files(rows, rows), delta=0.01)
    assert found.verdict.answer == "no worse"
    assert found.only_right is None


def test_a_higher_metric_without_a_known_name_needs_its_mode(files, run_compare):
    base, cand = files(
        [{"id": i, "score": i % 7} for i in range(60)], [{"id": i, "score": i % 7 + i % 2} for i in range(60)]
    )
    code, _, err = run_compare(base, cand, "--metric", "score", "--delta", 0.1)
    assert code == 2
    assert "--mode min or --mode max" in err
    assert "no worse" in run_compare(base, cand, "--metric", "score", "--delta", 0.1, "--mode", "max")[1]
    assert "worse, by more than 0.1" in run_compare(base, cand, "--metric", "score", "--delta", 0.1, "--mode", "min")[1]


def test_every_answer_says_what_one_run_cannot_tell(files, run_compare):
    base, cand = files(losses(scatter=0), losses())
    assert "says nothing about another seed" in " ".join(run_compare(base, cand, "--delta", 1)[1].split())
    assert json.loads(run_compare(base, cand, "--delta", 1, "--json")[1])["notes"]


def test_the_same_call_prints_the_same(files, run_compare):
    base, cand = files(losses(scatter=0), losses())
    assert run_compare(base, cand, "--delta", 0.1) == run_compare(base, cand, "--delta", 0.1)
    others = [
        run_compare(base, cand, "--delta", 0.1, "--seed", seed) for seed in (1, 2, 3)
    ]  # ends may be Student's t in one
    assert any(other != run_compare(base, cand, "--delta", 0.1) for other in others)


@pytest.mark.parametrize("value", ["1e300", "-1e308", "1" + 400 * "0"])
def test_values_that_no_result_has_are_refused(files, value):
    rows = losses()
    rows[3] = f'{{"id": "d3", "loss": {value}}}'
    with pytest.raises(SourceError, match=r"1 row has no finite number.* in loss: .*candidate\.jsonl line 4 "):
        compare(*files(losses(scatter=0), rows), delta=0.1)


def test_filler_alone_is_told(files):
    rows = losses(weight=[0] * 200)
    with pytest.raises(SourceError, match=r"baseline\.jsonl: all rows have weight 0"):
        compare(*files(rows, rows), delta=0.1)


# Sets that differ


def test_missing_extra_and_repeated_ids_are_named(files, run_compare):
    rows = losses()
    base, cand = files([*losses(scatter=0), {"id": "d7", "loss": 1.0}], [*rows[3:], {"id": "new", "loss": 1.0}])
    code, out, err = run_compare(base, cand, "--delta", 0.1)
    assert (code, out) == (1, "")
    assert_for_a_person(err)
    assert "3 ids are in " in err
    assert "(d0, d1, d2)" in err
    assert "candidate.jsonl alone (new)" in err
    assert "1 id is more than once in " in err
    assert "(d7)" in err
    assert "--common" in err
    told = json.loads(run_compare(base, cand, "--delta", 0.1, "--common", "--json")[1])
    assert told["rows"] == 196
    assert told["left_out"] == {"only_baseline": 3, "only_candidate": 1, "repeated_baseline": 1}
    assert any("5 ids were left out" in note for note in told["notes"])


def test_sets_without_a_common_id_are_different_sets(files, run_compare):
    base, cand = files(losses(), [{"id": f"x{i}", "loss": 1.0} for i in range(10)])
    code, _, err = run_compare(base, cand, "--delta", 1, "--common")
    assert code == 1
    assert "evaluations of different sets" in err


def test_other_tokens_for_the_same_row_are_another_evaluation(files, run_compare):
    base, cand = files(losses(scatter=0, tokens=[512] * 200), losses(tokens=[512] * 199 + [256]))
    code, _, err = run_compare(base, cand, "--delta", 1)
    assert code == 1
    assert "tokens differs in 1 of 200 rows, such as 512 at" in err
    assert "candidate.jsonl line 200" in err
    assert run_compare(base, cand, "--delta", 1, "--weight", "none")[0] == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "2.0"])
def test_a_row_without_a_finite_number_is_named_not_left_out(files, run_compare, value):
    rows = losses()
    rows[4]["loss"] = value
    base, cand = files(losses(scatter=0), rows)
    code, _, err = run_compare(base, cand, "--delta", 1)
    assert code == 1
    assert_for_a_person(err)
    assert "candidate.jsonl: 1 row has no finite number in loss: " in err
    assert "candidate.jsonl line 5 (" in err


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{", "line 3: not JSON"),
        ("[1]", "line 3: not a JSON object"),
        ('{"loss": 1.0}', 'line 3: "id" must be'),
        ('{"id": 1.5, "loss": 1}', 'line 3: "id" must be'),
        ('{"id": true, "loss": 1}', 'line 3: "id" must be'),
    ],
)
def test_a_broken_line_is_named(files, run_compare, line, word):
    rows = losses()
    base, cand = files(losses(scatter=0), [*rows[:2], line, *rows[2:]])
    code, _, err = run_compare(base, cand, "--delta", 1)
    assert code == 1
    assert_for_a_person(err)
    assert word in err


def test_blank_lines_a_byte_order_mark_and_windows_ends_do_no_harm(tmp_path):
    text = "".join(json.dumps(row) + "\r\n\r\n" for row in losses())
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert compare(str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl"), delta=0).rows == 200


def test_files_that_are_not_there_not_whole_or_empty(tmp_path, run_compare):
    good = write(tmp_path / "good.jsonl", losses())
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "folder").mkdir()
    for name, word in (
        ("missing.jsonl", "no such file"),
        ("empty.jsonl", "no rows in it"),
        ("cut.parquet", "not a whole Parquet file"),
        ("folder", "no results there"),
    ):
        code, _, err = run_compare(good, tmp_path / name, "--delta", 1)
        assert code == 1
        assert_for_a_person(err)
        assert name in err
        assert word in err


def test_parts_must_be_one_whole_set(tmp_path, run_compare):
    good = write(tmp_path / "good.jsonl", losses())
    parts = tmp_path / "parts"
    parts.mkdir()
    for name in ("rows-00000-of-00002.jsonl", "rows-00001-of-00002.jsonl", "rows-00002-of-00003.jsonl"):
        write(parts / name, losses(10))
    assert "not one whole set of parts" in run_compare(good, parts, "--delta", 1)[2]
    (parts / "rows-00002-of-00003.jsonl").unlink()
    (parts / "rows-00001-of-00002.jsonl").unlink()
    code, _, err = run_compare(good, parts, "--delta", 1)
    assert code == 1
    assert "A rank did not finish" in err


def test_results_behind_a_uri(s3_root, s3_env, files):
    from shardprep.storage.store import open_store

    base, cand = files(losses(scatter=0), losses())
    store = open_store(s3_root)
    for key, path in (("base.jsonl", base), ("cand/rows-00000-of-00001.jsonl", cand)):
        with open(path, "rb") as file:
            store.put(key, file.read())
    found = compare(f"{s3_root}/base.jsonl", f"{s3_root}/cand", delta=0.01)
    assert found.interval == compare(base, cand, delta=0.01).interval


def test_a_pipe_can_be_read(files):
    base, cand = files(losses(scatter=0), losses())
    command = f"{sys.executable} -m shardprep compare {base} <(cat {cand}) --delta 0.1 --json"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout)["rows"] == 200


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (-0.05, "better than the baseline, by 0.0"),
        (0.05, "worse than the baseline, by 0.0"),
        (0.0, "no worse than 0.0"),
    ],
)
def test_without_a_delta_it_says_what_the_rows_show_and_gives_no_verdict(files, run_compare, shift, said):
    base, cand = files(losses(scatter=0), losses(shift=shift))
    code, out, _ = run_compare(base, cand, "--json")
    told = json.loads(out)
    assert (code, told["verdict"], told["delta"], told["rows_needed"]) == (0, "no delta", None, None)
    assert said in told["sentence"]
    assert "--delta" in told["sentence"]
    _, text, _ = run_compare(base, cand)
    assert said in " ".join(text.split())
    bad = told["difference"]["high"]
    assert json.loads(run_compare(base, cand, "--json", "--delta", max(bad, 0) + 1e-9)[1])["verdict"] == "no worse"


def test_without_a_delta_too_few_rows_are_too_few(files, run_compare):
    _, out, _ = run_compare(*files(losses(3, scatter=0), losses(3)))
    assert "cannot tell yet: 3 rows are too few" in " ".join(out.split())


# Wrong calls


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--fail-unless-no-worse"], "needs --delta"),
        (["--delta", "1%"], "per cent of what?"),
        (["--delta=-0.1"], "a number of at least 0"),
        (["--delta", "nan"], "a number of at least 0"),
        (["--delta", "much"], "a number of at least 0"),
        (["--delta", "1pp"], "no share of rows"),
        (["--delta", 1, "--confidence", 95], "between 0.5 and 0.999"),
        (["--delta", 1, "--metric", "bleu"], 'no column "bleu"'),
        (["--delta", 1, "--metric", "perplexity"], "compare the loss"),
        (["--delta", 1, "--mode", "max"], "that name means that minimal is better"),
        (["--delta", 1, "--weight", "size"], 'no column "size"'),
        (["--delta", 1, "--by", "user"], "no such column"),
        (["--delta", 1, "--seed", -1], "--seed must be"),
        (["--delta", 1, "--min-steps", 3], "needs --curves"),
        (["--curves", "--delta", 1], "does not go with --curves"),
    ],
)
def test_a_wrong_call_is_exit_2_and_says_what(files, run_compare, flags, word):
    base, cand = files(losses(scatter=0), losses())
    code, out, err = run_compare(base, cand, *flags)
    assert (code, out) == (2, "")
    assert_for_a_person(err)
    assert word in err


def test_a_share_with_a_delta_of_one_is_a_slip(files, run_compare):
    base, cand = files(*answers(100, 5, 5))
    code, _, err = run_compare(base, cand, "--delta", 1)
    assert code == 2
    assert "did you mean 1pp?" in err


def test_two_metrics_need_a_choice_and_correct_must_be_yes_or_no(files):
    base, cand = files(losses(correct=[True] * 200), losses(correct=[False] * 200))
    with pytest.raises(ConfigError, match="say with --metric what to compare: both files have correct, loss"):
        compare(base, cand, delta=1)
    base, cand = files([{"id": i, "correct": 0.5} for i in range(20)], [{"id": i, "correct": 1} for i in range(20)])
    with pytest.raises(SourceError, match="must be true or false in every row"):
        compare(base, cand, delta=0.1)


def test_groups_and_weights_must_be_there_and_make_sense(files):
    base, cand = files([{**r, "user": None} for r in losses()], losses())
    with pytest.raises(SourceError, match="line 1: no user"):
        compare(base, cand, delta=1, by="user")
    base, cand = files(losses(size=[-1.0] * 200), losses(size=[-1.0] * 200))
    with pytest.raises(SourceError, match="size is -1, below 0"):
        compare(base, cand, delta=1, weight="size")
    base, cand = files(losses(size=[0] * 200), losses(size=[0] * 200))
    with pytest.raises(SourceError, match="all rows have size 0"):
        compare(base, cand, delta=1, weight="size")
    with pytest.raises(SourceError, match='need an "id"'):
        compare(*files([{"loss": 1.0}], [{"loss": 1.0}]), delta=1)


# The writer


def test_the_writer_takes_tensors_leaves_filler_out_and_refuses_uneven_columns(tmp_path):
    import torch

    results = RowResults()
    results.add(
        ["a", "b"], weight=torch.tensor([1.0, 0.0]), loss=torch.tensor([1.5, 2.5], dtype=torch.bfloat16), tokens=[3, 4]
    )
    results.add(["c"], weight=np.ones(1, np.float32), loss=np.array([math.nan]), tokens=np.array([5]))
    assert len(results) == 2
    for name in ("out/rows.jsonl", "out/rows.parquet"):
        results.write(tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "out/rows.jsonl").read_text().splitlines()]
    assert lines == [
        {"id": "a", "weight": 1.0, "loss": 1.5, "tokens": 3},
        {"id": "c", "weight": 1.0, "loss": None, "tokens": 5},
    ]
    assert pq.read_table(tmp_path / "out/rows.parquet").column("tokens").to_pylist() == [3, 5]
    with pytest.raises(ConfigError, match="loss has 1 values for 2 rows"):
        results.add(["d", "e"], weight=[1, 1], loss=[1.0], tokens=[1, 1])
    with pytest.raises(ConfigError, match="in the batches before"):
        results.add(["d"], loss=[1.0])
    RowResults().write(tmp_path / "none.parquet")
    RowResults().write(tmp_path / "none.jsonl")


def test_ten_thousand_rows_take_little_time(tmp_path):
    """The bar is 2 s on a quiet machine, the start of the process included; here with room for a busy one."""
    rng = np.random.default_rng(0)
    for name in ("base", "cand"):
        results = RowResults()
        results.add([f"d{i}" for i in range(10_000)], loss=rng.gamma(8, 0.3, 10_000), tokens=np.full(10_000, 9))
        results.write(tmp_path / f"{name}.jsonl")
    command = [sys.executable, "-m", "shardprep", "compare", "base.jsonl", "cand.jsonl", "--delta", "0.1"]
    began = os.times().children_user + os.times().children_system
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    assert os.times().children_user + os.times().children_system - began < 8
