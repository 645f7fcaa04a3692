"""Starting a Processing job: from flags to the CreateProcessingJob request, checked before it is sent.

Nothing is asked of AWS before all is checked; with --dry-run nothing is asked at all.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shardprep.adapters.sagemaker.job_config import BuildCall, Own, ParseBuild, needs_credentials
from shardprep.adapters.sagemaker.request import INPUTS, OUTPUTS, RUN_S, VOLUME_GB, ProcessingRequest
from shardprep.errors import ConfigError, ShardprepError, StoreError
from shardprep.storage.options import is_secret
from shardprep.storage.store import S3_SCHEMES, local_path_of, open_store

CONFIG = "config"
POLL_S = 15.0
NAME_MAX = 63
INTERRUPTED = 130  # what shells use for a program ended by SIGINT
Say = Callable[[str], None]


def launch_parser() -> argparse.ArgumentParser:
    """Return the parser of the launcher's own flags; all others go to the job."""
    parser = argparse.ArgumentParser(
        prog="launch_processing.py",
        usage="launch_processing.py --image URI --role ARN [flags below] SOURCE OUTPUT --tokenizer URI [flags of the job]",
        description="Start `shardprep build` as a SageMaker Processing job.",
        epilog="All other arguments go to the job: those of `shardprep build` and of sagemaker_processing.py.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--image", required=True, metavar="URI", help="the container image in ECR")
    add("--role", required=True, metavar="ARN", help="the role that the job runs with")
    add("--job-name", metavar="NAME", help="name of the job (default: --name-prefix and the time)")
    add("--name-prefix", default="shardprep", metavar="TEXT", help="(default: %(default)s)")
    add("--instance-type", default="ml.m5.4xlarge", metavar="TYPE", help="(default: %(default)s)")
    add("--instance-count", type=int, default=1, metavar="N", help="hosts (default: %(default)s)")
    add("--volume-gb", type=int, default=VOLUME_GB, metavar="N", help="disk of each host (default: %(default)s)")
    add("--max-runtime", type=int, default=RUN_S, metavar="SECONDS", help="(default: %(default)s, a day)")
    add(
        "--input", action="append", default=[], metavar="NAME=S3_URI[,sharded]",
        help=f"mount a prefix at {INPUTS}NAME: whole on every host, or dealt out over them (repeatable)",
    )  # fmt: skip
    add(
        "--upload", action="append", default=[], metavar="NAME=S3_URI",
        help=f"upload {OUTPUTS}NAME there when the job ends (repeatable)",
    )  # fmt: skip
    add("--config", metavar="FILE_OR_S3_URI", help="job file, mounted and given to the job; a file needs --config-to")
    add("--config-to", metavar="S3_URI", help="prefix that a job file is uploaded to, under the hash of its content")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="environment of the container (repeatable)")
    add("--tag", action="append", default=[], metavar="KEY=VALUE", help="tag of the job (repeatable)")
    add(
        "--entrypoint",
        action="append",
        default=[],
        metavar="WORD",
        help="instead of the image's (repeatable, in order)",
    )
    add("--subnet", action="append", default=[], metavar="ID", help="run in a VPC (repeatable)")
    add(
        "--security-group",
        action="append",
        default=[],
        metavar="ID",
        help="of the VPC; it must let hosts reach each other",
    )
    add(
        "--network-isolation",
        action="store_true",
        help="no network but S3 mounts: only for one host and mounted folders",
    )
    add("--encrypt-traffic", action="store_true", help="encrypt what hosts send each other")
    add("--volume-kms-key", default="", metavar="KEY")
    add("--output-kms-key", default="", metavar="KEY")
    add("--region", metavar="REGION", help="(default: that of the profile or environment)")
    add(
        "--wait",
        action="store_true",
        help="wait for the job's end, print its exit message; exit 1 if it did not complete",
    )
    add("--dry-run", action="store_true", help="print the request, send nothing")
    return parser


def launch(arguments: Sequence[str], parse_build: ParseBuild) -> int:
    """Start a Processing job, or print its request; return the exit code: 0, 1 refused by AWS, 2 a wrong call."""
    chosen, rest = launch_parser().parse_known_args(arguments)
    try:
        wanted, upload = _wanted(chosen, rest)
        request = wanted.request()
        _check_build(rest, chosen, parse_build)
        for name in wanted.environment:
            if is_secret(name):
                _say(
                    f"warning: {name} looks like a secret, and DescribeProcessingJob shows the environment to many: use the role"
                )
        if chosen.dry_run:
            sys.stdout.write(json.dumps(request, indent=2) + "\n")
            return 0
        if upload is not None:
            _put(*upload)
        return _start(request, chosen)
    except ShardprepError as error:
        _say(f"launch_processing: {error.message}")
        return error.exit_code


def _wanted(chosen: argparse.Namespace, rest: list[str]) -> tuple[ProcessingRequest, tuple[str, bytes] | None]:
    """Return what is asked for, and the job file that has to be uploaded first: (URI, bytes)."""
    inputs = {}
    for text in chosen.input:
        name, uri = _pair(text, "--input")
        uri, _, how = uri.partition(",")
        if how not in ("", "sharded"):
            raise ConfigError(f"--input {text}: after the comma stands sharded, or nothing, got {how!r}")
        if name in inputs:
            raise ConfigError(f"--input {name} is given twice")
        inputs[name] = (uri, "ShardedByS3Key" if how else "FullyReplicated")
    upload, given = None, list(rest)
    if chosen.config:
        uri, upload = _config_place(chosen)
        if CONFIG in inputs:
            raise ConfigError(f"--config is mounted as the input {CONFIG}: give the --input of that name another one")
        if uri.endswith("/"):
            raise ConfigError(f"--config must name a job file, got the folder {uri}")
        inputs[CONFIG] = (uri, "FullyReplicated")
        given += ["--config", f"{INPUTS}{CONFIG}/{uri.rpartition('/')[2]}"]
    wanted = ProcessingRequest(
        name=chosen.job_name or _name(chosen.name_prefix),
        image=chosen.image,
        role=chosen.role,
        arguments=tuple(given),
        instance_type=chosen.instance_type,
        instance_count=chosen.instance_count,
        volume_gb=chosen.volume_gb,
        max_runtime_s=chosen.max_runtime,
        inputs=inputs,
        outputs=_pairs(chosen.upload, "--upload"),
        environment=_pairs(chosen.env, "--env"),
        tags=_pairs(chosen.tag, "--tag"),
        entrypoint=tuple(chosen.entrypoint),
        subnets=tuple(chosen.subnet),
        security_groups=tuple(chosen.security_group),
        network_isolation=chosen.network_isolation,
        encrypt_traffic=chosen.encrypt_traffic,
        volume_kms_key=chosen.volume_kms_key,
        output_kms_key=chosen.output_kms_key,
    )
    return wanted, upload


def _name(prefix: str) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{prefix[: NAME_MAX - len(stamp) - 1].rstrip('-')}-{stamp}"


def _pair(text: str, flag: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{flag} is NAME=VALUE, got {text!r}")
    return name, value


def _pairs(texts: list[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, value = _pair(text, flag)
        if name in found:
            raise ConfigError(f"{flag} {name} is given twice")
        found[name] = value
    return found


def _config_place(chosen: argparse.Namespace) -> tuple[str, tuple[str, bytes] | None]:
    if local_path_of(chosen.config) is None:
        return str(chosen.config), None
    try:
        data = Path(chosen.config).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {chosen.config}: {error.strerror}") from error
    if not chosen.config_to:
        raise ConfigError(
            f"the job file {chosen.config} has to be in S3: give --config-to s3://bucket/prefix, or its s3:// URI"
        )
    uri = f"{chosen.config_to.rstrip('/')}/{hashlib.sha256(data).hexdigest()[:12]}.toml"
    return uri, (uri, data)


def _check_build(rest: list[str], chosen: argparse.Namespace, parse_build: ParseBuild) -> None:
    """Raise ConfigError where the job would find its own arguments wrong, or its places could not work there."""
    _, build = Own.parse(rest)
    is_local_file = chosen.config and local_path_of(chosen.config) is not None
    call = parse_build([*build, "--config", chosen.config] if is_local_file else build)
    in_file = chosen.config and not is_local_file  # what it says is not known here
    if not call.places["output"] and not in_file:
        raise ConfigError("no OUTPUT: launch_processing.py ... SOURCE OUTPUT --tokenizer URI")
    mounted = [INPUTS + text.partition("=")[0] for text in chosen.input]
    uploaded = [OUTPUTS + text.partition("=")[0] for text in chosen.upload]
    for what, place, known in (
        ("source", call.places["source"], mounted),
        ("tokenizer", _tokenizer_file(call), mounted),
        ("output", call.places["output"], uploaded),
    ):
        path = None if place is None else local_path_of(place)
        if path is None or call.settings.shared_filesystem or any((path + "/").startswith(one + "/") for one in known):
            continue
        flag = "--upload" if what == "output" else "--input"
        raise ConfigError(
            f"the {what} {place} is no place in the container: give an s3:// URI, or a folder below one of {flag}"
        )
    path = None if call.places["output"] is None else local_path_of(call.places["output"])
    if path is not None and chosen.instance_count > 1 and not call.settings.shared_filesystem:
        raise ConfigError(
            f"the output {path} is local to a host, and there are {chosen.instance_count}: give an s3:// URI"
        )
    if chosen.network_isolation and (chosen.instance_count > 1 or needs_credentials(call)):
        raise ConfigError(
            "--network-isolation leaves no way to S3 or to other hosts: mount all, upload the output, use one host"
        )


def _tokenizer_file(call: BuildCall) -> str | None:
    """Return the tokenizer where it can only be a file's path; a name may be one of the hub's."""
    name = call.places["tokenizer"]
    is_path = name is not None and (name.startswith(("/", ".")) or name.endswith(".json"))
    return name if is_path else None


def _put(uri: str, data: bytes) -> None:
    if uri.split("://", 1)[0] not in S3_SCHEMES:
        raise ConfigError(f"--config-to must be an s3:// URI, got {uri}")
    root, _, key = uri.rpartition("/")
    open_store(root).put(key, data)
    _say(f"uploaded the job file to {uri}")


def _start(request: dict[str, Any], chosen: argparse.Namespace) -> int:
    import botocore.session
    from botocore.exceptions import BotoCoreError, ClientError

    name = request["ProcessingJobName"]
    try:
        client: Any = botocore.session.Session().create_client("sagemaker", region_name=chosen.region)
        client.create_processing_job(**request)
        _say(f"started {name}; its log: CloudWatch, group /aws/sagemaker/ProcessingJobs, streams {name}/...")
    except (BotoCoreError, ClientError) as error:
        raise StoreError(f"SageMaker did not take the job {name}: {error}") from error
    if not chosen.wait:
        return 0
    try:
        return _waited(client, name)
    except (BotoCoreError, ClientError) as error:
        raise StoreError(f"the job {name} was started, but SageMaker does not say how it is: {error}") from error
    except KeyboardInterrupt:
        _say(f"the job {name} goes on without being waited for; StopProcessingJob ends it")
        return INTERRUPTED


def _waited(client: Any, name: str, sleep: Callable[[float], None] = time.sleep) -> int:
    last = ""
    while True:
        told = client.describe_processing_job(ProcessingJobName=name)
        status = told["ProcessingJobStatus"]
        if status != last:
            _say(f"{name}: {status}")
            last = status
        if status in ("Completed", "Failed", "Stopped"):
            _say(str(told.get("ExitMessage") or told.get("FailureReason") or "no exit message"))
            return 0 if status == "Completed" else 1
        sleep(POLL_S)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
