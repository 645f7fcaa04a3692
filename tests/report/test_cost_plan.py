"""Plans as people type them: what is wrong is named with file, line, key, what was got and what is allowed."""

from __future__ import annotations

import json
import re
from datetime import date
from fractions import Fraction as F
from pathlib import Path

import pytest

from shardprep.errors import ConfigError, ManifestError
from shardprep.report.cost import bill_of
from shardprep.report.cost_choices import CHOICES
from shardprep.report.cost_json import DECIMALS
from shardprep.report.cost_plan import TABLES, TOP, read_plan
from shardprep.report.cost_prices import bundled_prices_path, read_prices

TODAY = date(2026, 11, 30)
GOOD = """
rows = 1_000
passes = 2
instance = "ml.g5.xlarge"

[rates]
seconds_per_row = 1.5
"""


def read(folder: Path, text: str, today: date = TODAY):
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return read_plan(str(path), options={}, today=today)


def problem(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return caught.value.message


def test_a_small_plan_is_enough(tmp_path) -> None:
    file = read(tmp_path, GOOD)
    assert file.title == "plan.toml"
    assert bill_of(file.plan).expected.group_usd == 1000 * 2 * F("1.5") * F("1.41") / 3600
    assert "worst case takes the rates as exact" in file.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("passes = 2", "passess = 2", 3, "passess is not known; did you mean passes?"),
        ("passes = 2", "colour = 2\npasses = 2", 3, "colour is not known; known are title, data"),
        ("passes = 2", 'passes = "2"', 3, 'passes must be a number above 0, got "2"'),
        ("passes = 2", "passes = 0", 3, "passes must be a number above 0, got 0"),
        ("passes = 2", "passes = -1.5", 3, "passes must be a number above 0, got -1.5"),
        ("passes = 2", "passes = nan", 3, "passes must be a number above 0, got NaN"),
        ("passes = 2", "passes = inf", 3, "passes must be a number above 0, got Infinity"),
        ("passes = 2", "passes = true", 3, "passes must be a number above 0, got true"),
        ("passes = 2", "passes = 1e-9999999", 3, "got 1E-9999999; numbers are from 1e-30 to 1e+15 in size"),
        ("passes = 2", "passes = 1e9999999", 3, "got 1E+9999999; numbers are from 1e-30 to 1e+15 in size"),
        ("passes = 2", "passes = 1e400", 3, "passes must be a number above 0"),
        ("passes = 2", "passes = [2]", 3, "passes must be a number above 0, got [2]"),
        ("rows = 1_000", "rows = 2.5", 2, "rows must be a whole number, 1 or more, got 2.5"),
        ("rows = 1_000", 'rows = 1_000\ndata = "shards"', 2, "rows is in the manifest of data too"),
        ("rows = 1_000", 'rows = 1_000\nsplit = "train"', 3, "split needs data"),
        ("rows = 1_000", "rows = 1_000\ntokens = 5\ntokens_per_row = 5", 4, "give tokens or tokens_per_row"),
        ('"ml.g5.xlarge"', '"ml.p5.48xlarge"', 4, 'no price of "ml.p5.48xlarge": add a line'),
        ('"ml.g5.xlarge"', '"ml.p5.48xlarge"', 4, bundled_prices_path()),
        ("seconds_per_row", "second_per_row", 7, "rates.second_per_row is not known; did you mean seconds_per_row?"),
        ("seconds_per_row = 1.5", "seconds_per_row = 1.5\nrows_per_second = 2", 8, "seconds_per_row and rows_per_second are given"),
        ("seconds_per_row = 1.5", "slower = 0.2", 6, "no rate is given"),
        ("seconds_per_row = 1.5", "tokens_per_second = 9", 7, "rates.tokens_per_second needs tokens or tokens_per_row"),
        ("passes = 2", "passes = 2\nexpected_relaunches = 1", 4, "must not be more than relaunches (0)"),
        ("passes = 2", "passes = 2\ndeadline_days = 1\ndeadline_hours = 24", 4, "give deadline_hours or deadline_days, not both"),
        ("passes = 2", "passes = 2\nstartup_billed_minutes = 9\nmax_run_minutes = 5", 5, "max_run_minutes must be more than"),
        ("passes = 2", "passes = 2\ncheckpoint_write_seconds = 9", 4, "needs checkpoint_minutes"),
        ("passes = 2", "passes = 2\nwhat_if = 3", 4, "what_if is not known"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, old, new, line, says) -> None:
    message = problem(tmp_path, GOOD.replace(old, new))
    assert says in message
    where = f"{tmp_path / 'plan.toml'}" + (f", line {line}: " if line else "")
    assert where in message


@pytest.mark.parametrize(
    ("added", "line", "says"),
    [
        (
            "[spot]|discount = 60|interruptions_per_hour = 0",
            9,
            "spot.discount must be a share from 0 to below 1, such as 0.6",
        ),
        ("[spot]|discount = 60|interruptions_per_hour = 0", 9, "for 60 %, got 60"),
        ("[spot]|discount = 0.6", 8, "spot.interruptions_per_hour is missing"),
        ('[spot]|use = "yes"', 9, 'spot.use must be true or false, got "yes"'),
        ("[spott]|discount = 0.6", 8, "[spott] is not known; known are [evaluation]"),
        ('[controller]|instance = "ml.t3.medium"', 8, "controller.hours is missing"),
        ("[controller]|hours = 3", 8, "no instance"),
        ("[controller]|usd_per_hour = 1|hours = 3|worst_hours = 2", 11, "must not be less than controller.hours"),
        ("[[what_if.instances]]|speed = 2", 8, "no instance"),
        ("[[what_if.batches]]|batch = 8", 8, "needs either speed"),
        ("[[what_if.batches]]|speed = 2", 8, "what_if.batches[0].batch is missing"),
        (
            '[[what_if.methods]]|method = "a"|speed = 1|[[what_if.methods]]|sped = 2',
            12,
            "what_if.methods[1].sped is not known",
        ),
        ("[[what_if.machines]]|speed = 2", None, "what_if.machines is not known"),
        ("[what_if]|batches = 3", 9, "what_if.batches must be tables"),
    ],
)
def test_what_is_wrong_in_tables_is_named(tmp_path, added, line, says) -> None:
    message = problem(tmp_path, GOOD + added.replace("|", "\n"))
    assert says in message
    assert f"{tmp_path / 'plan.toml'}" + (f", line {line}: " if line else "") in message


def test_all_is_said_at_once(tmp_path) -> None:
    message = problem(tmp_path, 'rows = "many"\npasses = 0\nbudget = 5\n')
    assert message.count("plan.toml, line") == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rows = 1,000", "is not TOML"),
        (f"rows = {'1' * 5_000}", "is not TOML"),  # Python's own limit on digits
        (f"rows = {'[' * 5_000}", "is not TOML"),
        ("passes = 1\npasses = 2", "is not TOML"),
        ("passes = 1\n", "nothing says how much data there is"),
        ("passes = 1\n", "no instance"),
        ("passes = 1\n", "no rate is given"),
        ("rows = 5\n", "passes is missing"),
        ("rates = 5\n", "rates must be a text in quotes, got 5"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(tmp_path, text, says) -> None:
    assert says in problem(tmp_path, text)


def test_files_that_cannot_be_read_are_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the plan .*nowhere\.toml"):
        read_plan(str(tmp_path / "nowhere.toml"), options={}, today=TODAY)
    (tmp_path / "bytes.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 9"):
        read_plan(str(tmp_path / "bytes.toml"), options={}, today=TODAY)
    assert "cannot read the price file" in problem(tmp_path, 'prices = "p.toml"\n' + GOOD)
    assert "cannot read the pilot's rates" in problem(
        tmp_path, GOOD.replace("[rates]\nseconds_per_row = 1.5", "").replace("rows", 'rates = "p.json"\nrows')
    )
    with pytest.raises(ManifestError, match="no finished data set"):
        read(tmp_path, GOOD.replace("rows = 1_000", 'data = "."'))


def test_the_page_lists_every_key_and_figure() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
    tables = {**TABLES, **CHOICES}
    for key in [*TOP, *(key for table in tables.values() for key in table), *tables]:
        assert re.search(rf"\b{key}\b", page), key
    for figure, decimals in DECIMALS.items():
        assert (
            figure.startswith("worst_")
            or figure == "interruptions"
            or re.search(rf"`{figure}` ?\({decimals}\)|`{figure}`", page)
        ), figure


# ---- prices ------------------------------------------------------------------------------------------------------------


def test_the_bundled_prices_are_the_seed_figures() -> None:
    prices = read_prices(None)
    assert prices.day == date(2026, 10, 16)
    assert prices.usd_per_hour == {"ml.g5.xlarge": F("1.41"), "ml.g6.xlarge": F("1.13"), "ml.t3.medium": F("0.05")}


@pytest.mark.parametrize(
    ("today", "warns"),
    [
        (date(2026, 10, 16), None),
        (date(2027, 1, 16), None),
        (date(2027, 1, 17), "93 days ago"),
        (date(2026, 10, 1), "not yet"),
    ],
)
def test_old_prices_are_told(tmp_path, today, warns) -> None:
    told = [line for line in read(tmp_path, GOOD, today).warnings if line.startswith("prices are of")]
    assert bool(told) == bool(warns)
    assert not warns or warns in told[0]


def test_a_plan_may_have_its_own_prices(tmp_path) -> None:
    (tmp_path / "mine.toml").write_text('date = 2026-11-01\n[usd_per_hour]\n"my.box" = 0.5\n')
    text = 'prices = "mine.toml"\n' + GOOD
    assert read(tmp_path, text.replace("ml.g5.xlarge", "my.box")).plan.machine.usd_per_hour == F("0.5")
    assert f"to {tmp_path / 'mine.toml'}" in problem(tmp_path, text)
    typed = GOOD.replace('instance = "ml.g5.xlarge"', "usd_per_hour = 2.75\ninstances = 2")
    assert read(tmp_path, typed).plan.usd_per_hour == F("5.5")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[usd_per_hour]\n"a" = 1', "date must be the day of the prices"),
        ('date = "2026-10-16"\n[usd_per_hour]\n"a" = 1', "without quotes, got '2026-10-16'"),
        ("date = 2026-10-16", "there are no prices"),
        (
            'date = 2026-10-16\n[usd_per_hour]\n"a.b" = "1.41"',
            'line 3: usd_per_hour.a.b must be a number, 0 or more, got "1.41"',
        ),
        ('date = 2026-10-16\n[usd_per_hour]\n"a" = -1', "must be a number, 0 or more, got -1"),
        ('date = 2026-10-16\ncurrency = "EUR"\n[usd_per_hour]\n"a" = 1', "line 2: currency is not known"),
    ],
)
def test_a_bad_price_file_is_told(tmp_path, text, says) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_prices(str(tmp_path / "p.toml"))
    assert says in caught.value.message


# ---- data and rates ------------------------------------------------------------------------------------------------------


def test_rows_and_tokens_come_from_a_manifest(tmp_path, natural) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "manifest.json").write_bytes(natural.to_bytes())
    text = GOOD.replace("rows = 1_000", 'data = "shards"')
    plan = read(tmp_path, text).plan
    assert (plan.unit, plan.units) == ("rows", 2700)
    tokens = sum(
        info.tokens for generation in natural.generations for info in generation.splits if info.name == "validation"
    )
    by_tokens = text.replace("passes", 'split = "validation"\npasses').replace(
        "seconds_per_row = 1.5", "tokens_per_second = 500"
    )
    file = read(tmp_path, by_tokens)
    assert (file.plan.unit, file.plan.units) == ("tokens", tokens)
    assert f"300 rows and {tokens:,} tokens: split validation" in file.notes[0]
    assert "has no split test; it has train, validation" in problem(
        tmp_path, text.replace("passes", 'split = "test"\npasses')
    )


def pilot(folder: Path, name: str = "pilot.json", **changes) -> None:
    rate = {"mean": 2000.0, "low": 1600.0, "high": 2400.0, "confidence": 0.95}
    values = {
        "version": 1, "world_size": 2, "useful_tokens_per_second": rate, "tokens_per_second": {**rate, "mean": 2500.0},
        "rows_per_second": {"mean": 2.5, "low": 2.0, "high": 3.0, "confidence": 0.95}, **changes,
    }  # fmt: skip
    (folder / name).write_text(json.dumps(values))


TABLED = '[rates]\npilot = "pilot.json"\nevaluation_rows_per_second = 4\nslower = 0.5\n[evaluation]\nrows_after = 8'
PILOTED = 'rows = 1_000\npasses = 2\ninstance = "ml.g5.xlarge"\nrates = "pilot.json"\n'


def test_rates_come_from_a_pilot(tmp_path) -> None:
    pilot(tmp_path)
    plan = read(tmp_path, PILOTED).plan
    assert (plan.unit, plan.training.unit_s, plan.training.slow_s) == ("rows", F(2, 5), F(1, 2))
    plan = read(tmp_path, "tokens_per_row = 800\n" + PILOTED).plan
    assert (plan.unit, plan.training.unit_s, plan.training.slow_s) == ("tokens", F(1, 2000), F(1, 1600))
    bill = bill_of(plan)
    assert bill.expected.launch_s == 800 * 1000 * 2 / F(2000)
    assert bill.worst.launch_s == 800 * 1000 * 2 / F(1600)  # the low end of the interval


def test_a_pilot_in_the_table_goes_with_an_evaluation_rate(tmp_path) -> None:
    pilot(tmp_path)
    text = PILOTED.replace('rates = "pilot.json"', TABLED)  # fmt: skip
    plan = read(tmp_path, text).plan
    assert bill_of(plan).seconds.evaluation == 2
    assert plan.training.slow_s == F(1, 2) * F(3, 2)
    both = text.replace("slower = 0.5", "rows_per_second = 2")
    assert "rates.rows_per_second is measured by the pilot too" in problem(tmp_path, both)


def test_evaluation_without_a_rate_counts_as_training_and_says_so(tmp_path) -> None:
    file = read(tmp_path, GOOD + "[evaluation]\nrows_before = 10\n")
    assert bill_of(file.plan).seconds.evaluation == 15
    assert "an evaluated row counts as much as a trained one, 1.5 s" in file.notes[0]
    text = GOOD.replace("rows = 1_000", "tokens = 500").replace("seconds_per_row", "tokens_per_second")
    assert "evaluated rows need rates.evaluation_seconds_per_row" in problem(
        tmp_path, text + "[evaluation]\nrows_after = 1\n"
    )


def test_other_ranks_than_the_pilots_are_scaled_with_a_warning(tmp_path) -> None:
    pilot(tmp_path)
    file = read(tmp_path, "world_size = 4\n" + PILOTED)
    assert file.plan.training.unit_s == F(1, 5)
    assert "measured on 2 ranks, 4 are planned" in file.warnings[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "no pilot file of version 1, got 2"),
        ({"rows_per_second": None}, "rows_per_second must have a mean and a low end above 0, got None"),
        ({"rows_per_second": {"mean": 2.0}}, "rows_per_second must have a mean and a low end above 0"),
        ({"rows_per_second": {"mean": 2.0, "low": 0.0}}, "above 0"),
    ],
)
def test_a_bad_pilot_file_is_told(tmp_path, changes, says) -> None:
    pilot(tmp_path, **changes)
    message = problem(tmp_path, PILOTED)
    assert says in message
    assert "pilot.json" in message


def test_a_pilot_file_that_is_no_json(tmp_path) -> None:
    (tmp_path / "pilot.json").write_text("{")
    assert "is not JSON" in problem(tmp_path, PILOTED)
    (tmp_path / "pilot.json").write_text("[1]")
    assert "got 'list'" in problem(tmp_path, PILOTED)


def test_a_speed_may_be_measured_by_another_pilot(tmp_path) -> None:
    pilot(tmp_path)
    pilot(tmp_path, "other.json", rows_per_second={"mean": 5.0, "low": 4.0})
    text = PILOTED + '[[what_if.instances]]\ninstance = "ml.g6.xlarge"\nrates = "other.json"\n'
    (choice,) = read(tmp_path, text).what_if.instances
    assert (choice.speed, choice.measured) == (2, True)


def test_spot_needs_a_wait_that_is_long_enough(tmp_path) -> None:
    spot = "[spot]\ndiscount = 0.6\ninterruptions_per_hour = 0.1\nmax_wait_minutes = 60\n"
    assert "needs max_run_minutes" in problem(tmp_path, GOOD + spot)
    longer = GOOD.replace("passes", "max_run_minutes = 90\npasses")
    assert "must be at least max_run_minutes" in problem(tmp_path, longer + spot)
    file = read(tmp_path, longer.replace("90", "60") + spot)
    assert file.plan.on_spot
    assert any("begins the job again" in line for line in file.warnings)
    assert not read(tmp_path, longer + spot.replace("60", "90") + "use = false\n").plan.on_spot
