"""The CreateProcessingJob request: the service's own model takes it, and what it would refuse is said before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.validate import ParamValidator

from shardprep.adapters.sagemaker.launching import launch
from shardprep.adapters.sagemaker.limits import problems_of
from shardprep.adapters.sagemaker.request import ProcessingRequest
from shardprep.cli import parse_build
from shardprep.errors import ConfigError
from shardprep.storage.store import open_store
from tests.servers import Moto, set_environment

ROOT = Path(__file__).parents[2]
IMAGE, ROLE = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/shardprep:1", "arn:aws:iam::123456789012:role/shardprep"
NEEDED = ("--image", IMAGE, "--role", ROLE)
BUILD = ("s3://bucket/raw/", "s3://bucket/shards/", "--tokenizer", "s3://bucket/tokenizer.json", "--id-field", "id")
UPLOADED = "/opt/ml/processing/output/out"
PLAIN = ProcessingRequest(name="job-1", image=IMAGE, role=ROLE, arguments=BUILD)


def valid(request: dict[str, Any]) -> bool:
    shape = (
        botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateProcessingJob").input_shape
    )
    report = ParamValidator().validate(request, shape)
    assert not report.has_errors(), report.generate_report()
    return True


def printed(capsys: pytest.CaptureFixture[str], *flags: str, build: tuple[str, ...] = BUILD) -> dict[str, Any]:
    assert launch([*NEEDED, *flags, *build, "--dry-run"], parse_build) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def refused(capsys: pytest.CaptureFixture[str], *flags: str, build: tuple[str, ...] = BUILD) -> str:
    assert launch([*NEEDED, *flags, *build, "--dry-run"], parse_build) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_the_least_that_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    request = printed(capsys)
    assert valid(request)
    name = request.pop("ProcessingJobName")
    assert name.startswith("shardprep-20")
    assert request == {
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.4xlarge", "VolumeSizeInGB": 30}
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 86_400},
        "AppSpecification": {"ImageUri": IMAGE, "ContainerArguments": list(BUILD)},
        "RoleArn": ROLE,
    }


def test_all_that_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (
        "--job-name", "my-job", "--instance-type", "ml.c6i.8xlarge", "--instance-count", "3", "--volume-gb", "200",
        "--max-runtime", "7200", "--input", "raw=s3://bucket/raw/,sharded", "--input", "tok=s3://bucket/tok/",
        "--upload", "report=s3://bucket/report/", "--config", "s3://bucket/jobs/job.toml", "--env", "A=b=c", "--tag", "team=ml",
        "--entrypoint", "python", "--entrypoint", "/opt/program/sagemaker_processing.py", "--subnet", "subnet-1",
        "--security-group", "sg-1", "--encrypt-traffic", "--volume-kms-key", "k1", "--output-kms-key", "k2",
    )  # fmt: skip
    build = (
        "/opt/ml/processing/input/raw",
        "s3://bucket/out",
        "--tokenizer",
        "/opt/ml/processing/input/tok",
        "--min-hosts",
        "2",
    )
    request = printed(capsys, *flags, build=build)
    assert valid(request)
    assert request["ProcessingJobName"] == "my-job"
    assert [one["S3Input"]["S3DataDistributionType"] for one in request["ProcessingInputs"]] == [
        "ShardedByS3Key", "FullyReplicated", "FullyReplicated",
    ]  # fmt: skip
    paths = [one["S3Input"]["LocalPath"] for one in request["ProcessingInputs"]]
    assert paths == [f"/opt/ml/processing/input/{name}" for name in ("raw", "tok", "config")]
    output = request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]
    assert output == {
        "S3Uri": "s3://bucket/report/",
        "LocalPath": "/opt/ml/processing/output/report",
        "S3UploadMode": "EndOfJob",
    }
    assert request["AppSpecification"]["ContainerArguments"][-2:] == [
        "--config",
        "/opt/ml/processing/input/config/job.toml",
    ]
    assert "--min-hosts" in request["AppSpecification"]["ContainerArguments"]
    assert request["Environment"] == {"A": "b=c"}
    assert request["NetworkConfig"]["EnableInterContainerTrafficEncryption"] is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a" * 64}, "ProcessingJobName: from 1 to 63 allowed, got 64"),
        ({"name": "under_score"}, "ProcessingJobName: 'under_score' does not fit"),
        ({"name": "-a"}, "ProcessingJobName: '-a' does not fit"),
        ({"name": ""}, "ProcessingJobName: from 1 to 63 allowed, got 0"),
        ({"max_runtime_s": 0}, "MaxRuntimeInSeconds: from 1 to 777,600 allowed, got 0"),
        ({"max_runtime_s": 777_601}, "MaxRuntimeInSeconds: from 1 to 777,600 allowed, got 777,601"),
        ({"instance_count": 101}, "InstanceCount: from 1 to 100 allowed, got 101"),
        ({"instance_type": "m5.large"}, "'m5.large' is no instance type, such as ml.m5.4xlarge"),
        ({"volume_gb": 0}, "VolumeSizeInGB: from 1 to 16,384 allowed, got 0"),
        ({"arguments": ("x",) * 101}, "ContainerArguments: from 1 to 100 allowed, got 101 of them; put long settings"),
        ({"arguments": ("x" * 257,)}, r"ContainerArguments\[0\]: at most 256 allowed, got 257 characters"),
        ({"entrypoint": ("x" * 257,)}, r"ContainerEntrypoint\[0\]: at most 256 allowed"),
        ({"role": "arn:aws:iam::1:role/short-account"}, "RoleArn: .* does not fit"),
        ({"image": "x" * 256}, "ImageUri: at most 255 allowed"),
        ({"environment": {"9A": "x"}}, "the name '9A' in Environment: '9A' does not fit"),
        ({"environment": {"A": "x" * 257}}, "Environment.A: at most 256 allowed"),
        ({"environment": {f"A{n}": "" for n in range(101)}}, "Environment: at most 100 allowed, got 101 of them"),
        ({"inputs": {"a": ("bucket/raw", "FullyReplicated")}}, "S3Uri: 'bucket/raw' does not fit"),
        ({"inputs": {"a": ("s3://b/r", "Everywhere")}}, "S3DataDistributionType: 'Everywhere' is none of FullyReplicated"),
        ({"inputs": {f"a{n}": ("s3://b/r", "FullyReplicated") for n in range(11)}}, "ProcessingInputs: at most 10 allowed"),
        ({"inputs": {"a/../../b": ("s3://b/r", "FullyReplicated")}}, "does not lie below /opt/ml/processing/"),
        ({"tags": {"": "x"}}, r"Tags\[0\].Key: from 1 to 128 allowed, got 0"),
    ],
)  # fmt: skip
def test_every_limit_is_checked_before_the_call(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(PLAIN, **change).request()


@pytest.mark.parametrize("name", ["a", "A-1", "a--b", "a" * 63])
def test_names_that_are_allowed(name: str) -> None:
    assert valid(replace(PLAIN, name=name).request())


def test_numbers_at_the_limits_are_allowed() -> None:
    assert valid(
        replace(
            PLAIN, max_runtime_s=777_600, instance_count=100, volume_gb=16_384, arguments=("x" * 256,) * 100
        ).request()
    )
    assert valid(replace(PLAIN, instance_type="ml.m99i-flex.large").request())


@pytest.mark.parametrize(
    "inner", ["/opt/ml/processing/input/raw", "/opt/ml/processing/input/raw/", "/opt/ml/processing/input/raw/deep"]
)
def test_every_input_needs_a_local_path_of_its_own(inner: str) -> None:
    request = replace(
        PLAIN, inputs={"raw": ("s3://b/r", "FullyReplicated"), "two": ("s3://b/s", "FullyReplicated")}
    ).unchecked()
    request["ProcessingInputs"][1]["S3Input"]["LocalPath"] = inner
    assert any("is that of raw, or lies inside or around it" in line for line in problems_of(request))
    request["ProcessingInputs"][1]["InputName"] = "raw"
    assert any("are called raw" in line for line in problems_of(request))


@pytest.mark.parametrize(
    ("flags", "build", "words"),
    [
        ((), (*BUILD, "--max-length", "8"), "--max-length needs --overflow"),
        ((), ("s3://bucket/raw/", "--tokenizer", "s3://b/t.json"), "no OUTPUT"),
        ((), (*BUILD, "--min-hosts", "0"), "--min-hosts must be at least 1"),
        ((), ("/data/raw", *BUILD[1:]), "the source /data/raw is no place in the container"),
        ((), (*BUILD[:3], "./tokenizer.json"), "the tokenizer ./tokenizer.json is no place in the container"),
        ((), (BUILD[0], "shards", *BUILD[2:]), "the output shards is no place in the container"),
        (("--upload", "out=s3://b/o", "--instance-count", "2"), (BUILD[0], UPLOADED, *BUILD[2:]), "local to a host"),
        (("--network-isolation",), BUILD, "leaves no way to S3"),
        (("--input", "a=s3://b/r", "--input", "a=s3://b/s"), BUILD, "--input a is given twice"),
        (("--upload", "a=s3://b/r", "--upload", "a=s3://b/s"), BUILD, "--upload a is given twice"),
        (("--env", "A=1", "--env", "A=2"), BUILD, "--env A is given twice"),
        (("--tag", "A=1", "--tag", "A=2"), BUILD, "--tag A is given twice"),
        (("--input", "config=s3://b/r", "--config", "s3://b/j.toml"), BUILD, "--config is mounted as the input config"),
        (("--config", "s3://b/jobs/"), BUILD, "--config must name a job file, got the folder s3://b/jobs/"),
        (("--input", "a/b=s3://b/r", "--input", "a//b=s3://b/s"), BUILD, "is that of a/b, or lies inside or around it"),
        (("--input", ".=s3://b/r"), BUILD, "does not lie below /opt/ml/processing/"),
        (("--input", "raw=s3://b/r,dealt"), BUILD, "after the comma stands sharded"),
        (("--input", "s3://b/r"), BUILD, "is NAME=VALUE"),
        (("--config", "no-such.toml", "--config-to", "s3://b/c"), BUILD, "cannot read no-such.toml"),
        (("--job-name", "a_b", "--max-runtime", "0"), BUILD, "ProcessingJobName: 'a_b' does not fit"),
    ],
)  # fmt: skip
def test_a_job_that_could_not_work_is_refused(
    flags: tuple[str, ...], build: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, *flags, build=build)


def test_an_input_and_an_output_may_have_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert valid(printed(capsys, "--input", "raw=s3://b/r", "--upload", "raw=s3://b/s"))


def test_mounted_places_are_places(capsys: pytest.CaptureFixture[str]) -> None:
    build = (
        "/opt/ml/processing/input/raw/2024/*.json",
        "/opt/ml/processing/output/out/set",
        "--tokenizer",
        "org/model",
    )
    flags = ("--input", "raw=s3://b/r", "--upload", "out=s3://b/o")
    assert valid(printed(capsys, *flags, build=build))


def test_a_job_file_needs_a_place_in_s3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.toml"
    path.write_text('id-field = "id"\n')
    assert "give --config-to" in refused(capsys, "--config", str(path))
    request = printed(capsys, "--config", str(path), "--config-to", "s3://bucket/jobs/")
    uri = request["ProcessingInputs"][0]["S3Input"]["S3Uri"]
    assert uri.startswith("s3://bucket/jobs/")
    assert (
        request["AppSpecification"]["ContainerArguments"][-1]
        == f"/opt/ml/processing/input/config/{uri.rpartition('/')[2]}"
    )
    path.write_text("no-such-setting = 1\n")
    assert "unknown setting" in refused(capsys, "--config", str(path), "--config-to", "s3://bucket/jobs/")


def test_a_secret_in_the_environment_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([*NEEDED, "--env", "HF_TOKEN=x", *BUILD, "--dry-run"], parse_build) == 0
    assert "HF_TOKEN looks like a secret" in capsys.readouterr().err


def test_the_program_prints_the_request_and_asks_nobody() -> None:
    program = ROOT / "pipelines" / "launch_processing.py"
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, str(program), *NEEDED, *BUILD, "--dry-run"], env=quiet, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert valid(json.loads(done.stdout))


def test_a_job_is_started_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text('id-field = "id"\n')
    with Moto() as server:
        set_environment(monkeypatch, server.endpoint)
        s3 = botocore.session.Session().create_client("s3")
        s3.create_bucket(Bucket="jobs")
        s3.close()
        flags = ("--job-name", "job-1", "--config", str(path), "--config-to", "s3://jobs/here", "--wait")
        assert launch([*NEEDED, *flags, *BUILD], parse_build) == 0
        said = capsys.readouterr().err
        assert "uploaded the job file to s3://jobs/here/" in said
        assert "started job-1" in said
        assert "job-1: Completed" in said
        (page,) = open_store("s3://jobs").list()
        assert open_store("s3://jobs").get(page.keys[0].as_py()) == path.read_bytes()
        client = botocore.session.Session().create_client("sagemaker")
        told = client.describe_processing_job(ProcessingJobName="job-1")
        client.close()
        assert told["AppSpecification"]["ContainerArguments"][:4] == list(BUILD[:4])


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "the job job-2 goes on without being waited for"),
        (EndpointConnectionError(endpoint_url="x"), 1, "the job job-2 was started, but SageMaker does not say how it is"),
    ],
)  # fmt: skip
def test_a_waiting_that_ends_early_is_not_a_job_that_was_refused(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Service:
        def create_processing_job(self, **_: Any) -> None:
            pass

        def describe_processing_job(self, **_: Any) -> None:
            raise error

    monkeypatch.setattr("botocore.session.Session.create_client", lambda *_, **__: Service())
    assert launch([*NEEDED, "--job-name", "job-2", "--wait", *BUILD], parse_build) == code
    assert words in capsys.readouterr().err


def test_a_job_that_aws_refuses_is_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    assert launch([*NEEDED, *BUILD], parse_build) == 1
    assert "SageMaker did not take the job" in capsys.readouterr().err
