"""What a host knows of its job before it starts: the flags of its own, and what the platform's files say of the output.

`config/processingjobconfig.json` mirrors the CreateProcessingJob request. It may hold secrets in its environment map: nothing
of it is printed but single paths and modes, and keys that are not known or not there are no error.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shardprep.adapters.sagemaker.hosts import ML_ROOT
from shardprep.errors import ConfigError
from shardprep.prep.settings import Settings
from shardprep.storage.store import S3_SCHEMES, local_path_of

PORT, SCHEDULER_PORT = 8785, 8786
START_DEADLINE_S = 600.0
CREDENTIALS_DEADLINE_S = 60.0
Places = dict[str, str | None]


@dataclass(frozen=True)
class BuildCall:
    """A `shardprep build` as its command line says it: places, settings, and how it prints."""

    places: Places
    settings: Settings
    json: bool = False
    dry_run: bool = False


ParseBuild = Callable[[list[str]], BuildCall]


def own_parser() -> argparse.ArgumentParser:
    """Return the parser of the entry point's own flags; all others are those of `shardprep build`."""
    parser = argparse.ArgumentParser(
        prog="sagemaker_processing.py",
        usage="sagemaker_processing.py SOURCE OUTPUT --tokenizer FILE_OR_NAME [flags of `shardprep build`] [flags below]",
        description="`shardprep build` on the hosts of a SageMaker Processing job.",
        epilog="All other arguments are those of `shardprep build`; --workers and --memory-limit are for each host.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--min-hosts", type=int, metavar="N", help="go on with N hosts when the others do not come (default: all)"
    )
    parser.add_argument("--allow-fewer-hosts", action="store_true", help="the same as --min-hosts 1")
    parser.add_argument(
        "--start-deadline", type=float, default=START_DEADLINE_S, metavar="SECONDS",
        help="how long hosts wait for each other (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--credentials-deadline", type=float, default=CREDENTIALS_DEADLINE_S, metavar="SECONDS",
        help="how long a host waits for the credentials of its role (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--port", type=int, default=PORT, help="where the head meets the others (default: %(default)s)")
    parser.add_argument(
        "--scheduler-port",
        type=int,
        default=SCHEDULER_PORT,
        help="of the Dask scheduler; 0: any (default: %(default)s)",
    )
    parser.add_argument(
        "--scratch", metavar="FOLDER", help="for temporary files (default: the system's folder for them)"
    )
    parser.add_argument("--ml-root", default=ML_ROOT, metavar="FOLDER", help="instead of %(default)s, for tests")
    return parser


def ml_root_of(arguments: Sequence[str]) -> str:
    """Return the ML folder that the arguments name, also where others of them are wrong."""
    given = ML_ROOT
    for before, word in zip(["", *arguments], arguments, strict=False):
        if before == "--ml-root":
            given = word
        elif word.startswith("--ml-root="):
            given = word.partition("=")[2]
    return os.path.abspath(given)


@dataclass(frozen=True)
class Own:
    """The entry point's own settings; times in seconds."""

    min_hosts: int | None
    start_deadline_s: float
    credentials_deadline_s: float
    port: int
    scheduler_port: int
    scratch: str
    ml_root: str

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> tuple[Own, list[str]]:
        """Return the own settings, and the arguments that are left for `shardprep build`."""
        chosen, rest = own_parser().parse_known_args(arguments)
        fewest = 1 if chosen.allow_fewer_hosts else chosen.min_hosts
        if fewest is not None and fewest < 1:
            raise ConfigError(f"--min-hosts must be at least 1, got {fewest}")
        if chosen.start_deadline <= 0:
            raise ConfigError(f"--start-deadline must be more than 0 seconds, got {chosen.start_deadline:g}")
        own = cls(
            min_hosts=fewest,
            start_deadline_s=chosen.start_deadline,
            credentials_deadline_s=chosen.credentials_deadline,
            port=chosen.port,
            scheduler_port=chosen.scheduler_port,
            scratch=os.path.abspath(chosen.scratch or tempfile.gettempdir()),
            ml_root=os.path.abspath(chosen.ml_root),
        )
        return own, rest


def check_local_places(call: BuildCall, own: Own, hosts: int) -> None:
    """Raise ConfigError for local places that cannot work in a Processing job, with what to do instead."""
    settings = call.settings
    for what, place in (("output", call.places["output"]), ("staging folder", settings.staging)):
        path = None if place is None else local_path_of(place)
        if path is None:
            continue
        if hosts > 1 and not settings.shared_filesystem and settings.scheduler != "serial":
            raise ConfigError(
                f"the {what} {place} is a local folder, and each of the {hosts} hosts would write into its own: give an s3:// "
                "URI, run on one host, or give --shared-filesystem where it is one folder for all (FSx, NFS)"
            )
        for folder, mode in _uploads(own.ml_root):
            if mode == "Continuous" and _is_below(os.path.abspath(path), folder):
                raise ConfigError(
                    f"the {what} {place} is uploaded while it is written (S3UploadMode Continuous), so that the manifest may be "
                    "in S3 before its shards: set S3UploadMode to EndOfJob, or give an s3:// URI as the output"
                )
    for folder, _ in _uploads(own.ml_root):
        if _is_below(own.scratch, folder):
            raise ConfigError(f"the folder for temporary files {own.scratch} would be uploaded: give another --scratch")


def check_list(source_list: str) -> None:
    """Raise ConfigError where a list file on this host names local files, which other hosts may not have."""
    path = local_path_of(source_list)
    if path is None:
        return
    try:
        lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read the list {source_list}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if entry and not entry.startswith("#") and local_path_of(entry) is not None:
            raise ConfigError(
                f"line {number} of {source_list} names the local file {entry}, which other hosts may not have: name s3:// URIs, "
                "give the folder as SOURCE, or --shared-filesystem where it is one folder for all (FSx, NFS)"
            )


def _uploads(ml_root: str) -> Iterator[tuple[str, str]]:
    """Yield (folder, upload mode) of the job's outputs."""
    try:
        value: Any = json.loads(Path(ml_root, "config/processingjobconfig.json").read_bytes())
        outputs = list((value.get("ProcessingOutputConfig") or {}).get("Outputs") or [])
    except (OSError, ValueError, AttributeError, TypeError):
        return
    for output in outputs:
        s3 = output.get("S3Output") if isinstance(output, dict) else None
        if isinstance(s3, dict) and isinstance(s3.get("LocalPath"), str):
            folder = s3["LocalPath"]
            if folder.startswith(ML_ROOT + "/"):
                folder = os.path.join(ml_root, folder.removeprefix(ML_ROOT + "/"))
            yield os.path.abspath(folder), str(s3.get("S3UploadMode") or "EndOfJob")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def needs_credentials(call: BuildCall) -> bool:
    """Say whether the build reaches S3 with credentials."""
    options = dict(call.settings.storage_options)
    if any(options.get(name, "").lower() in ("true", "1", "yes", "on") for name in ("anon", "skip_signature")):
        return False
    places = (*call.places.values(), call.settings.staging, call.settings.source_list)
    return any(place is not None and place.split("://", 1)[0] in S3_SCHEMES for place in places)


def job_file(places: Places, settings: Settings) -> str:
    """Return a job file (TOML) of these places and settings, for a build of its own process."""
    values: dict[str, Any] = {name: place for name, place in places.items() if place is not None}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is None or value == field.default:
            continue
        if field.name == "storage_options":
            value = [f"{key}={text}" for key, text in value]
        values[field.name] = list(value) if isinstance(value, tuple) else value
    # JSON's strings are TOML's, but for the one control character that JSON leaves as it is.
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return "".join(line.replace("\x7f", "\\u007f") + "\n" for line in lines)
