"""The CreateProcessingJob request, in boto3's shape, which the releases of the SageMaker SDK do not touch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardprep.adapters.sagemaker.limits import BELOW, problems_of
from shardprep.errors import ConfigError

INPUTS, OUTPUTS = BELOW + "input/", BELOW + "output/"
VOLUME_GB, RUN_S = 30, 86_400  # what the SageMaker SDK takes, too


@dataclass(frozen=True)
class ProcessingRequest:
    """A Processing job as it is asked for; `request` gives the CreateProcessingJob call, raising ConfigError where it cannot be.

    inputs    name -> (S3 URI, "FullyReplicated" or "ShardedByS3Key"): mounted at /opt/ml/processing/input/NAME
    outputs   name -> S3 URI, uploaded at the job's end from /opt/ml/processing/output/NAME
    arguments those of pipelines/sagemaker_processing.py
    """

    name: str
    image: str
    role: str
    arguments: tuple[str, ...]
    instance_type: str = "ml.m5.4xlarge"
    instance_count: int = 1
    volume_gb: int = VOLUME_GB
    max_runtime_s: int = RUN_S
    inputs: dict[str, tuple[str, str]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    network_isolation: bool = False
    encrypt_traffic: bool = False
    volume_kms_key: str = ""
    output_kms_key: str = ""

    def request(self) -> dict[str, Any]:
        """Return the request as boto3 takes it. Raises ConfigError that says all that SageMaker would refuse."""
        request = self.unchecked()
        problems = problems_of(request)
        if problems:
            raise ConfigError("SageMaker would refuse this job:\n" + "\n".join(problems), problems=problems)
        return request

    def unchecked(self) -> dict[str, Any]:
        """Return the request, whatever is wrong with it."""
        cluster = {
            "InstanceCount": self.instance_count,
            "InstanceType": self.instance_type,
            "VolumeSizeInGB": self.volume_gb,
        }
        if self.volume_kms_key:
            cluster["VolumeKmsKeyId"] = self.volume_kms_key
        app: dict[str, Any] = {"ImageUri": self.image}
        if self.entrypoint:
            app["ContainerEntrypoint"] = list(self.entrypoint)
        if self.arguments:
            app["ContainerArguments"] = list(self.arguments)
        request: dict[str, Any] = {
            "ProcessingJobName": self.name,
            "ProcessingResources": {"ClusterConfig": cluster},
            "StoppingCondition": {"MaxRuntimeInSeconds": self.max_runtime_s},
            "AppSpecification": app,
            "RoleArn": self.role,
        }
        if self.inputs:
            request["ProcessingInputs"] = [_input(name, uri, how) for name, (uri, how) in self.inputs.items()]
        if self.outputs:
            outputs: dict[str, Any] = {"Outputs": [_output(name, uri) for name, uri in self.outputs.items()]}
            if self.output_kms_key:
                outputs["KmsKeyId"] = self.output_kms_key
            request["ProcessingOutputConfig"] = outputs
        if self.environment:
            request["Environment"] = dict(self.environment)
        if self.tags:
            request["Tags"] = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        network = self._network()
        return {**request, "NetworkConfig": network} if network else request

    def _network(self) -> dict[str, Any]:
        network: dict[str, Any] = {}
        if self.encrypt_traffic:
            network["EnableInterContainerTrafficEncryption"] = True
        if self.network_isolation:
            network["EnableNetworkIsolation"] = True
        if self.subnets or self.security_groups:
            network["VpcConfig"] = {"SecurityGroupIds": list(self.security_groups), "Subnets": list(self.subnets)}
        return network


def _input(name: str, uri: str, distribution: str) -> dict[str, Any]:
    s3 = {
        "S3Uri": uri,
        "LocalPath": INPUTS + name,
        "S3DataType": "S3Prefix",
        "S3InputMode": "File",
        "S3DataDistributionType": distribution,
    }
    return {"InputName": name, "S3Input": s3}


def _output(name: str, uri: str) -> dict[str, Any]:
    s3 = {"S3Uri": uri, "LocalPath": OUTPUTS + name, "S3UploadMode": "EndOfJob"}
    return {"OutputName": name, "S3Output": s3}
