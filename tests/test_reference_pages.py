"""The pages that list things list all of them: flags, reasons, manifest keys, keys of the job file."""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

import pytest

from shardprep.adapters.sagemaker.job_config import own_parser
from shardprep.adapters.sagemaker.launching import launch_parser
from shardprep.cli import parser
from shardprep.core.content import Generation, Ledger, ShardInfo, SplitInfo
from shardprep.core.histogram import histogram_of
from shardprep.formats.reasons import Reason
from shardprep.formats.tokenizer import END_TOKENS
from shardprep.prep.settings import Settings
from shardprep.storage.retry import POLICY

ROOT = Path(__file__).parent.parent
NOT_IN_A_JOB_FILE = {"help", "config", "dry_run", "json", "no_progress"}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def commands() -> dict[str, argparse.ArgumentParser]:
    action = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return action.choices


def flags_of(command: argparse.ArgumentParser) -> set[str]:
    return {flag for action in command._actions for flag in action.option_strings if flag.startswith("--")}


@pytest.mark.parametrize("name", ["build", "inspect", "verify", "read", "pilot", "cost", "compare"])
def test_every_flag_is_in_the_command_line_page(name) -> None:
    listed = set(re.findall(r"`(--[a-z-]+)", page("cli.md")))
    assert flags_of(commands()[name]) - {"--help"} <= listed


def test_the_command_line_page_lists_no_flag_that_is_not_there() -> None:
    known = set().union(*map(flags_of, commands().values())) | {"--version"}
    known |= flags_of(own_parser()) | flags_of(launch_parser())
    for program in (ROOT / "pipelines").glob("train*.py"):
        known |= set(re.findall(r'"(--[a-z][a-z-]+)"', program.read_text(encoding="utf-8")))
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        ours = re.sub(r"^\$ torchrun .*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        ours = re.sub(r"^```bash\n.*?^```$", "", ours, flags=re.MULTILINE | re.DOTALL)  # other programs'
        assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", ours)) <= known, path.name


@pytest.mark.parametrize("programs_parser", [own_parser, launch_parser])
def test_every_flag_of_the_sagemaker_programs_is_in_their_page(programs_parser) -> None:
    listed = set(re.findall(r"`(--[a-z-]+)", page("sagemaker.md")))
    assert flags_of(programs_parser()) - {"--help"} <= listed


def test_every_command_is_in_the_command_line_page() -> None:
    assert {f"shardprep {name}" for name in commands()} <= set(
        re.findall(r"^(shardprep \w+)", page("cli.md"), re.MULTILINE)
    )


def test_the_reasons_page_has_one_rule_for_each_reason() -> None:
    section = page("documents.md").split("## Reasons")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| \S", section, re.MULTILINE)
    assert sorted(rows) == sorted(str(reason) for reason in Reason)


def test_the_end_tokens_are_listed_in_their_order() -> None:
    section = page("tokenizers.md").split("well-known names")[1].split("What ends a turn")[0]
    assert tuple(re.findall(r"`([^`]+)`", section)) == END_TOKENS


def test_every_key_of_the_manifest_is_described() -> None:
    histogram = histogram_of([3])
    shard = ShardInfo("n", "train", 1, 3, 9, "", 8, "")
    split = SplitInfo("train", histogram, 1, 3, (shard,))
    ledger = Ledger(1, 1, {}, 1, 3)
    keys = set(shard.document()) | set(split.document()) | set(Generation((split,)).document()) | set(ledger.document())
    described = set(re.findall(r"`(\w+)`", page("manifest.md"))) | set(re.findall(r"\[\]\.(\w+)", page("manifest.md")))
    assert keys <= described


def test_the_top_level_keys_of_a_manifest_are_described(tmp_path) -> None:
    import json

    import shardprep

    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    shardprep.build(source, tmp_path / "out", tokenizer=ROOT / "sample/tokenizer.json", scheduler="serial")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    described = set(re.findall(r"`(\w+)`", page("manifest.md")))
    assert set(manifest) | set(manifest["tokenizer"]) | set(manifest["buckets"]) | set(manifest["ledger"]) <= described


def test_the_job_file_has_every_key_and_can_be_used_as_it_is() -> None:
    text = (ROOT / "pipelines/job.toml").read_text(encoding="utf-8")
    assert set(tomllib.loads(text)) == {"text-field"}
    everything = tomllib.loads(re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE))
    keys = {key.replace("-", "_") for key in everything}
    flags = {flag[2:].replace("-", "_") for flag in flags_of(commands()["build"])} - NOT_IN_A_JOB_FILE
    assert keys == flags | {"source", "output"}


@pytest.mark.parametrize("name", ["job.toml", "sample.toml"])
def test_each_key_of_a_job_file_is_understood(name) -> None:
    text = (ROOT / "pipelines" / name).read_text(encoding="utf-8")
    values = tomllib.loads(re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE))
    for key in ("source", "output", "tokenizer"):
        values.pop(key, None)
    needs = {"overflow": {"max-length": 8}, "max-length": {"overflow": "split"}}
    for key, value in values.items():
        Settings.of({key: value, **needs.get(key, {})})


def test_the_numbers_of_the_retry_policy_are_those_of_the_jobs_page() -> None:
    assert f"up to {POLICY.attempts} attempts or {POLICY.deadline_s:.0f} seconds" in page("jobs.md")
