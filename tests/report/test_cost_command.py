"""`shardprep cost` as people call it: the reference case, exit codes, JSON, text, page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from shardprep import cli
from shardprep.report.cost_picture import Range, range_chart
from tests.report.test_page import pictures
from tests.report.test_page import read as balanced

PLANS = Path(__file__).parents[2] / "pipelines" / "plans"
CLASS = str(PLANS / "class.toml")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["cost", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_reference_case(capsys) -> None:
    code, out, _ = run(capsys, CLASS, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["fits"] is True
    wanted = {
        "job_minutes": 31.7, "job_usd": 0.745, "person_usd": 0.895, "group_usd": 44.7, "group_one_relaunch_usd": 82.0,
        "group_two_launches_at_cap_usd": 160.2, "idle_day_usd": 33.84, "idle_week_usd": 236.9, "idle_month_usd": 1029.3,
    }  # fmt: skip
    assert {name: told[name] for name in wanted} == wanted
    assert told["exact"]["group_two_launches_at_cap_usd"] == 160.25
    assert told["exact"]["job_minutes"] == pytest.approx(1901.9 / 60, abs=1e-12)


def edited(tmp_path: Path, *pairs: tuple[str, str], plan: str = CLASS) -> str:
    text = Path(plan).read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    return str(tmp_path / "plan.toml")


def test_exit_code_1_and_what_would_make_it_fit(tmp_path, capsys) -> None:
    plan = edited(tmp_path, ("budget_usd = 200", "budget_usd = 100"))
    code, out, _ = run(capsys, plan, "--json")
    told = json.loads(out)
    assert code == 1
    assert (told["fits"], told["over"]) == (False, ["budget_usd"])
    fitting = [one for one in told["would_fit"] if one["fits"]]
    assert {"evaluation", "relaunches", "budget"} <= {one["kind"] for one in fitting}
    assert all(one["worst_group_usd"] <= 100 for one in fitting if one["kind"] != "budget")
    code, out, _ = run(capsys, plan)
    assert code == 1
    assert "THE WORST CASE DOES NOT FIT" in out
    assert "over by 60.2 USD" in out


def test_a_wrong_plan_is_exit_code_2_with_one_object(tmp_path, capsys) -> None:
    plan = edited(tmp_path, ("passes = 2", "passses = 2"))
    code, out, err = run(capsys, plan, "--json")
    assert code == 2
    assert json.loads(out)["error"] == "ConfigError"
    assert f"{plan}, line 8: passses is not known; did you mean passes?" in err
    assert len(err.splitlines()) == 1


def test_the_text_says_what_the_json_says(capsys) -> None:
    _, out, _ = run(capsys, CLASS)
    for figure in (
        "31.7 min",
        "0.745 USD",
        "0.895 USD",
        "44.7 USD",
        "82.0 USD",
        "160.2 USD",
        "33.84 USD a day",
        "1,029.30 USD a month",
    ):
        assert figure in out
    assert max(map(len, out.splitlines())) <= 132


def test_the_tutorials_plans(capsys, tmp_path) -> None:
    """Nine hundred dollars before, under three hundred after; the grid covers each way to run."""
    code, out, _ = run(capsys, str(PLANS / "finetune_before.toml"), "--json")
    assert code == 1
    assert 900 < json.loads(out)["group_usd"] < 1000
    code, out, _ = run(capsys, str(PLANS / "finetune.toml"), "--json")
    told = json.loads(out)
    assert code == 0
    assert told["worst_group_usd"] < 300
    assert len(told["what_if"]) == 2 * 2 * 2 * 2
    assert sum(cell["planned"] for cell in told["what_if"]) == 1
    code, out, _ = run(capsys, edited(tmp_path, ("use = false", "use = true"), plan=str(PLANS / "finetune.toml")))
    assert code == 0
    assert "done again after interruptions" in out
    assert "expected in a launch" in out


def test_the_page_stands_alone_and_says_it_all(tmp_path, capsys) -> None:
    plan = edited(tmp_path, ("budget_usd = 300", "budget_usd = 120"), plan=str(PLANS / "finetune.toml"))
    code, out, _ = run(capsys, plan, "--html", str(tmp_path / "page.html"))
    assert code == 1
    assert f"page: {tmp_path / 'page.html'}" in out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    parsed = balanced(page)
    assert parsed.loads == []
    assert "script" not in parsed.tags
    (picture,) = pictures(page)
    assert picture[0].tag == "title"
    assert picture[1].tag == "desc"
    assert len(picture.findall("g")) == 16
    for words in (
        "does not fit",
        "What would make it fit",
        "227.6 USD",
        "budget 120 USD",
        "spot, ml.g6.xlarge, batch 16",
    ):
        assert words in page


def test_no_page_without_the_grid_has_a_picture(tmp_path, capsys) -> None:
    assert run(capsys, CLASS, "--html", str(tmp_path / "page.html"))[0] == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    balanced(page)
    assert "<svg" not in page
    assert "The worst case fits." in page


def test_a_page_that_cannot_be_written(tmp_path, capsys) -> None:
    code, _, err = run(capsys, CLASS, "--html", str(tmp_path / "nowhere" / "page.html"))
    assert code == 2
    assert "cannot write" in err


def test_titles_are_text_not_markup(tmp_path, capsys) -> None:
    plan = edited(tmp_path, ('title = "', 'title = "<b>&'))
    run(capsys, plan, "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;" in page
    balanced(page)


@pytest.mark.parametrize("limit", [None, 50.0, 5000.0])
def test_the_picture_stays_inside_whatever_the_figures(limit) -> None:
    ranges = [
        Range("a" * 200, 10.0, 20.0, fits=True, planned=True),
        Range("b", 1e60, 1e80, fits=False, planned=False),
        Range("free", 0.0, 0.0, fits=True, planned=False),
    ]
    svg = range_chart(ranges, limit)
    picture = ET.fromstring(svg)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for element in picture.iter():
        for name in ("x", "x1", "x2"):
            assert 0 <= float(element.attrib.get(name, 0)) <= width
        for name in ("y", "y1", "y2"):
            assert 0 <= float(element.attrib.get(name, 0)) <= height
    assert max(map(len, re.findall(r">([^<]*)</text>", svg))) < 80


def test_a_job_that_never_ends_is_told_not_a_crash(tmp_path, capsys) -> None:
    plan = edited(
        tmp_path,
        ("checkpoint_minutes = 15", ""),
        ("checkpoint_write_seconds = 5", ""),
        ("max_run_minutes = 4_800", ""),
        ("use = false", "use = true"),
        ("interruptions_per_hour = 0.05", "interruptions_per_hour = 5"),
        plan=str(PLANS / "finetune.toml"),
    )
    code, out, _ = run(capsys, plan, "--html", str(tmp_path / "page.html"))
    assert code == 1
    assert "over 1e9 USD" in out
    assert "hardly ever ends" in out
    assert run(capsys, plan, "--json")[0] == 1


def test_waiting_longer_than_max_wait_is_told(tmp_path, capsys) -> None:
    spot = "[spot]\ndiscount = 0.6\ninterruptions_per_hour = 0\nmax_wait_minutes = 70\n[controller]"
    plan = edited(tmp_path, ("[controller]", spot), ("people = 50", "people = 50\nstartup_unbilled_minutes = 100"))
    _, out, _ = run(capsys, plan)
    assert "take 131.7 min, and max_wait ends a launch after 70.0 min: raise max_wait_minutes" in out
