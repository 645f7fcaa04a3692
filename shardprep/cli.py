"""The command line. Exit codes: 0 done, 1 the work failed (data, storage), 2 the call is wrong.

With --json one JSON object goes to standard output and nothing else; what a person should read goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.errors import ConfigError, ShardprepError
from shardprep.formats.reasons import FAULTS
from shardprep.prep.settings import CHOICES, Settings
from shardprep.prep.signals import Terminated, heeding_signals
from shardprep.report import compare_arguments, cost_arguments, pilot_arguments
from shardprep.report.reading import add_arguments, read_as_training, reading_text
from shardprep.version import __version__

if TYPE_CHECKING:
    from shardprep.adapters.sagemaker.job_config import BuildCall
    from shardprep.prep.build import Built

INTERRUPTED = 130  # what shells use for a command ended by Ctrl-C
TERMINATED = 143  # and by SIGTERM: spot machines and job schedulers send it

TEXT_FLAGS = {
    "text_field": ("FIELD", "field that holds the text; dotted paths reach nested fields (default: text)"),
    "id_field": ("FIELD", "field that holds the id, a string or integer (default: ids are made from the object's key)"),
    "format": (None, "format of the shards (default: parquet); recordio for SageMaker's Pipe mode"),
    "shard_size": ("SIZE", "wanted size of a shard: 128MB, or 100000tok (default: 128MB)"),
    "row_group_size": ("SIZE", "largest row group, uncompressed (default: 4MB)"),
    "bucket_edges": ("N,N,...", "length bucket edges, instead of fitted ones"),
    "tokenizer_backend": (
        None,
        "reference: Hugging Face tokenizers; fast: pip install shardprep[fast] (default: auto)",
    ),
    "eos_token": ("TEXT_OR_ID", "end token of each document (default: from the tokenizer)"),
    "pad_token": (
        "TEXT_OR_ID",
        "padding token, recorded in the manifest (default: from the tokenizer, else the end token)",
    ),
    "dedup": (None, "exact: set later copies of a text aside (default: none)"),
    "overflow": (None, "what happens to documents above --max-length"),
    "split": ("NAME=SHARE,...", "splits, e.g. train=0.9,validation=0.1 (default: all in train)"),
    "split_by": ("FIELD", "field that keeps a group in one split (default: the id)"),
    "scheduler": ("WHERE", "local, serial, or the address of a Dask scheduler, tcp://host:8786 (default: local)"),
    "memory_limit": ("SIZE", "memory of a worker, e.g. 4GB (default: an equal share of this machine)"),
    "on_bad": (None, "what a bad document does (default: set-aside)"),
    "max_bad": (
        "SHARE_OR_N",
        "stop after the scan if more were set aside, repeats left out: 1%% or 100 (default: no limit)",
    ),
    "max_object_size": ("SIZE", "largest object that is read whole (default: 256MB)"),
    "on_duplicate_id": (None, "what a repeated id does (default: keep)"),
    "staging": ("URI", "where staged rows lie until the data set is published (default: inside the output)"),
    "store": (None, "auto: obstore for S3, GCS, Azure; fsspec: fsspec for all of them (default: auto)"),
    "source_list": ("FILE", "file with one URI or path a line, instead of SOURCE"),
    "source_format": (None, "what SOURCE is, where its content does not tell (default: auto)"),
}
NUMBER_FLAGS = {
    "shards": "number of shards of each split, instead of --shard-size",
    "shards_multiple_of": "round the number of shards up to a multiple of this (default: 1)",
    "buckets": "number of length buckets to fit (default: 64)",
    "pad_multiple": "padded lengths are multiples of this (default: 8)",
    "max_length": "longest row in tokens; needs --overflow (default: no limit)",
    "seed": "order in which objects are scanned (default: 0)",
    "workers": "number of worker processes (default: one a core)",
}
SWITCHES = {
    "no_eos": "add no end token",
    "no_template": "do not apply the template of the tokenizer file (BOS, [CLS] ... [SEP])",
    "overwrite": "replace the data set that is at OUTPUT, once the new one is complete",
    "shared_filesystem": "workers of another machine see the same local paths",
    "unsafe_publish": "allow an output store that has no exclusive create",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands and flags."""
    root = argparse.ArgumentParser(
        prog="shardprep", description="Many small JSON objects in, a few balanced, length-bucketed shards out."
    )
    root.add_argument("--version", action="version", version=f"shardprep {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _build_parser(commands.add_parser("build", help="tokenize SOURCE and write shards and a manifest to OUTPUT"))
    inspect = commands.add_parser("inspect", help="show what is in a data set, in numbers and pictures")
    inspect.add_argument("dataset", metavar="DATASET")
    inspect.add_argument("--html", metavar="FILE", help="also write one self-contained page")
    _common(inspect)
    check = commands.add_parser("verify", help="reread every shard and hold it against the manifest")
    check.add_argument("dataset", metavar="DATASET")
    _common(check)
    read = commands.add_parser("read", help="iterate as training would; print rates, share of time waited, padding")
    add_arguments(read)
    _common(read)
    cost = commands.add_parser("cost", help="what a training plan costs, whether it fits, and what would make it fit")
    cost_arguments.add_arguments(cost)
    _common(cost)
    pilot = commands.add_parser(
        "pilot", help="run a training command for some steps; say what the whole run takes, and why"
    )
    pilot_arguments.add_arguments(pilot)
    _common(pilot)
    compare = commands.add_parser("compare", help="is a model no worse than another one, by results on the same rows?")
    compare_arguments.add_arguments(compare)
    _common(compare)
    return root


def _build_parser(build: argparse.ArgumentParser) -> None:
    build.add_argument(
        "source", nargs="?", metavar="SOURCE", help="prefix, folder, glob or file; a local path or any URI"
    )
    build.add_argument("output", nargs="?", metavar="OUTPUT", help="folder or URI of the data set")
    build.add_argument("--tokenizer", metavar="FILE_OR_NAME", help="tokenizer.json (path, URI, folder) or a hub name")
    build.add_argument(
        "--config", metavar="FILE", help="job.toml: every flag below has a key in it; a flag wins over the file"
    )
    build.add_argument(
        "--column", action="append", dest="columns", metavar="NAME[:TYPE]",
        help="field to pass through: string, int64, float64, bool, list<...> (repeatable; dotted paths reach nested fields)",
    )  # fmt: skip
    for name, (metavar, text) in TEXT_FLAGS.items():
        build.add_argument(_flag(name), dest=name, metavar=metavar, choices=CHOICES.get(name), help=text)
    for name, text in NUMBER_FLAGS.items():
        build.add_argument(_flag(name), dest=name, metavar="N", type=int, help=text)
    for name, text in SWITCHES.items():
        build.add_argument(_flag(name), dest=name, action="store_true", default=None, help=text)
    build.add_argument(
        "--dry-run", action="store_true", help="list, try the settings on a few objects, estimate; write nothing"
    )
    _common(build)


def _common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "--storage-option", action="append", dest="storage_options", metavar="KEY=VALUE",
        help="option of the object store, e.g. endpoint_url=..., region=..., request_payer=requester (repeatable)",
    )  # fmt: skip
    command.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show progress bars (default: on a terminal)",
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class _NoOutput(Exception):
    """Standard output takes nothing: its disk is full, for example."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    chosen = parser().parse_args(arguments)
    try:
        with heeding_signals(once=True, last=arguments is None):
            return _run(chosen)
    except KeyboardInterrupt:
        print(f"shardprep: interrupted; {_going_on(chosen)}", file=sys.stderr)
        return INTERRUPTED
    except Terminated:
        print(f"shardprep: terminated; {_going_on(chosen)}", file=sys.stderr)
        return TERMINATED
    except BrokenPipeError:  # the reader of our output went away: `shardprep inspect ... | head`
        _drop_output()
        return 1
    except _NoOutput as error:
        _drop_output()
        print(f"shardprep: cannot write to standard output: {error}", file=sys.stderr)
        return 1


def _going_on(chosen: argparse.Namespace) -> str:
    return "its command was ended as well" if chosen.command == "pilot" else "the same command continues"


def _run(chosen: argparse.Namespace) -> int:
    try:
        commands = {"build": _build, "inspect": _inspect, "verify": _verify, "read": _read}
        commands |= {"cost": _cost, "pilot": _pilot, "compare": _compare}
        return commands[chosen.command](chosen)
    except ShardprepError as error:
        print(f"shardprep: {error.message}", file=sys.stderr)
        if chosen.json:
            _print_json({"error": type(error).__name__, "message": error.message})
        return error.exit_code
    except (BrokenPipeError, _NoOutput):
        raise
    except Exception as error:  # noqa: BLE001  the trace is for us; the last line is for the person who runs it
        traceback.print_exc()
        message = f"an error that shardprep does not know ({type(error).__name__}: {error}); please report it with the lines above"
        print(f"shardprep: {message}. A data set is finished only if its manifest is there", file=sys.stderr)
        if chosen.json:
            _print_json({"error": type(error).__name__, "message": message})
        return 1


def _drop_output() -> None:
    """Let what standard output still holds go nowhere: the interpreter would try to write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _NoOutput(error.strerror) from error


def build_call(chosen: argparse.Namespace) -> tuple[dict[str, str | None], Settings]:
    """Return the places (source, output, tokenizer) and the settings of a `shardprep build`: its flags over its job file."""
    values = _from_file(chosen.config) if chosen.config else {}
    positional = {"source": chosen.source, "output": chosen.output, "tokenizer": chosen.tokenizer}
    places = {name: given or values.pop(name, None) for name, given in positional.items()}
    for name, place in places.items():
        values.pop(name, None)
        if place is not None and not isinstance(place, str):
            raise ConfigError(f"{name} must be a text, got {place!r}", setting=name)
    flags = {*TEXT_FLAGS, *NUMBER_FLAGS, *SWITCHES, "columns", "storage_options", "progress"}
    values |= {name: getattr(chosen, name) for name in flags if getattr(chosen, name) is not None}
    settings = Settings.of(values)
    if settings.source_list is not None and places["output"] is None:
        places["source"], places["output"] = None, places["source"]
    return places, settings


def parse_build(arguments: Sequence[str]) -> BuildCall:
    """Return what the arguments of `shardprep build` ask for: for programs that start it by other means."""
    from shardprep.adapters.sagemaker.job_config import BuildCall

    chosen = parser().parse_args(["build", *arguments])
    places, settings = build_call(chosen)
    return BuildCall(places, settings, json=chosen.json, dry_run=chosen.dry_run)


def _build(chosen: argparse.Namespace) -> int:
    places, settings = build_call(chosen)
    if chosen.dry_run:
        return _dry_run(chosen, places, settings)
    if places["output"] is None:
        raise ConfigError("no OUTPUT: shardprep build SOURCE OUTPUT --tokenizer FILE_OR_NAME")
    from shardprep.api import build_dataset

    say = lambda line: print(line, file=sys.stderr)  # noqa: E731
    built = build_dataset(places["source"], places["output"], places["tokenizer"], settings, say=say)
    if chosen.json:
        _print_json(built.summary())
    else:
        _print(_closing(built, say))
    return 0


def _from_file(path: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}; a job file is TOML in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    return {key.replace("-", "_"): value for key, value in values.items()}


def _closing(built: Built, say: Any) -> str:
    """Return the last line: what was made, where, and what was set aside."""
    for note in (*built.notes, *built.manifest.warnings):
        say(f"warning: {note}")
    numbers = built.summary()
    aside = sum(numbers["set_aside"].values())
    what = (
        f"{numbers['written']:,} documents ({numbers['tokens']:,} tokens) in {numbers['shards']:,} shards at {built.uri}; "
        + (
            f"{aside:,} set aside ({built.reasons}), see {built.manifest.plan}/rejects/"
            if aside
            else "nothing set aside"
        )
    )
    if built.fresh:
        return f"built {what}; {built.seconds:.1f} s"
    missed = not FAULTS.isdisjoint(numbers["set_aside"])
    return f"already built: {what}" + ("; --overwrite tries again what could not be read then" if missed else "")


def _dry_run(chosen: argparse.Namespace, places: dict[str, Any], settings: Settings) -> int:
    from shardprep.prep.dryrun import dry_run

    estimate = dry_run(places["source"], places["output"], places["tokenizer"], settings)
    if chosen.json:
        _print_json(estimate.summary())
    else:
        _print(estimate.text())
    return 0


def _options(chosen: argparse.Namespace) -> dict[str, str]:
    return dict(Settings.of({"storage_options": chosen.storage_options or ()}).storage_options)


def _inspect(chosen: argparse.Namespace) -> int:
    from shardprep.report.summary import summary_json, summary_text
    from shardprep.storage.dataset import open_dataset

    _, manifest = open_dataset(chosen.dataset, options=_options(chosen))
    if chosen.html:
        from shardprep.report.page import html_page

        try:
            Path(chosen.html).write_text(html_page(manifest), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {chosen.html}: {error.strerror}") from error
    if chosen.json:
        _print_json(summary_json(manifest))
    else:
        _print(summary_text(manifest))
        if chosen.html:
            _print(f"\npage: {chosen.html}")
    return 0


def _verify(chosen: argparse.Namespace) -> int:
    from shardprep.prep.verify import verify

    outcome = verify(chosen.dataset, options=_options(chosen), progress=chosen.progress)
    if chosen.json:
        _print_json(outcome.summary())
        return 0 if outcome.ok else 1
    for line in outcome.warnings:
        print(f"warning: {line}", file=sys.stderr)
    for line in outcome.problems:
        print(f"wrong: {line}", file=sys.stderr)
    if outcome.ok:
        numbers = f"{outcome.rows:,} rows, {outcome.tokens:,} tokens"
        _print(f"verified {outcome.shards:,} shards: {numbers}, all as the manifest says")
        return 0
    _print(f"{len(outcome.problems)} things are wrong in {chosen.dataset}")
    return 1


def _read(chosen: argparse.Namespace) -> int:
    told = read_as_training(chosen, _options(chosen))
    if chosen.json:
        _print_json(told)
    else:
        _print(reading_text(told))
    return 0


def _pilot(chosen: argparse.Namespace) -> int:
    from shardprep.report.pilot_run import pilot_of
    from shardprep.report.pilot_text import pilot_text

    told = pilot_of(chosen, _options(chosen))
    if chosen.json:
        _print_json(told)
    else:
        files = "".join(f"\n{name}: {path}" for name, path in (("result", chosen.out), ("page", chosen.html)) if path)
        _print(pilot_text(told) + (f"\n{files}" if files else ""))
    return 0


def _cost(chosen: argparse.Namespace) -> int:
    from shardprep.report.costing import cost_as_told

    costing = cost_as_told(chosen, _options(chosen))
    if chosen.json:
        _print_json(costing.json())
    else:
        _print(costing.text() + (f"\n\npage: {chosen.html}" if chosen.html else ""))
    return 0 if costing.bill.fits else 1


def _compare(chosen: argparse.Namespace) -> int:
    summary, text, code = compare_arguments.compare_from(chosen, _options(chosen))
    if chosen.json:
        _print_json(summary)
    else:
        _print(text)
    return code


def _print_json(value: dict[str, Any]) -> None:
    _print(json.dumps(value, ensure_ascii=False, indent=2))


if __name__ == "__main__":
    sys.exit(main())
