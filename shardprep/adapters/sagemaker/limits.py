"""What SageMaker would refuse in a CreateProcessingJob request, said before it is sent, all at once.

Lengths, numbers and patterns are those of the service's own model, as botocore carries it; what the model does not say comes
from the guide's page on processing containers: local paths lie below /opt/ml/processing, and each is used once.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

OPERATION = "CreateProcessingJob"
BELOW = "/opt/ml/processing/"
SHOWN_MAX = 80
HINTS = {
    "ContainerArguments": "put long settings into a job file: --config",
    "ProcessingJobName": "letters and digits, hyphens between them, 63 characters at most",
    "MaxRuntimeInSeconds": "777,600 are 9 days",
    "Environment": "put long settings into a job file: --config",
}


def problems_of(request: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a request, a line each; nothing where all is well."""
    from botocore.validate import ParamValidator

    shape = _shape()
    report = ParamValidator().validate(dict(request), shape)
    # Of numbers and lengths it knows only the least: those are said below, with the most.
    lines = report.generate_report().splitlines() if report.has_errors() else []
    problems = [line for line in lines if "valid min" not in line]
    return problems + list(_beyond(request, shape, "")) + list(_places(request))


@cache
def _shape() -> Any:
    """Return the model of the request: a file of several megabytes."""
    import botocore.session

    return botocore.session.Session().get_service_model("sagemaker").operation_model(OPERATION).input_shape


def _beyond(value: Any, shape: Any, where: str) -> Iterator[str]:
    if shape.type_name == "structure" and isinstance(value, Mapping):
        for name, part in value.items():
            if name in shape.members:
                yield from _beyond(part, shape.members[name], f"{where}.{name}" if where else name)
    elif shape.type_name == "list" and isinstance(value, list):
        yield from _outside(len(value), shape, where, f"{len(value)} of them")
        for number, part in enumerate(value):
            yield from _beyond(part, shape.member, f"{where}[{number}]")
    elif shape.type_name == "map" and isinstance(value, Mapping):
        yield from _outside(len(value), shape, where, f"{len(value)} of them")
        for name, part in value.items():
            yield from _beyond(name, shape.key, f"the name {name!r} in {where}")
            yield from _beyond(part, shape.value, f"{where}.{name}")
    elif shape.type_name == "string" and isinstance(value, str):
        yield from _outside(len(value), shape, where, f"{len(value)} characters ({_shown(value)})")
        yield from _unfit(value, shape, where)
    elif shape.type_name == "integer" and isinstance(value, int):
        yield from _outside(value, shape, where, f"{value:,}")


def _outside(number: int, shape: Any, where: str, got: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and number < least) or (most is not None and number > most):
        limits = f"at most {most:,}" if not least else f"from {least:,} to {most:,}" if most else f"at least {least:,}"
        yield f"{where}: {limits} allowed, got {got}{_hint(where)}"


def _unfit(value: str, shape: Any, where: str) -> Iterator[str]:
    pattern = shape.metadata.get("pattern")
    if (
        pattern and r"\p" not in pattern and not re.fullmatch(pattern, value, re.DOTALL)
    ):  # Java's classes are not Python's
        yield f"{where}: {_shown(value)} does not fit {pattern}{_hint(where)}"
    if shape.enum and value not in shape.enum and not where.endswith("InstanceType"):  # new types come every month
        yield f"{where}: {_shown(value)} is none of {', '.join(shape.enum)}"
    if where.endswith("InstanceType") and not re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9]+", value):
        yield f"{where}: {_shown(value)} is no instance type, such as ml.m5.4xlarge"


def _hint(where: str) -> str:
    return next((f"; {hint}" for name, hint in HINTS.items() if name in where), "")


def _shown(value: str) -> str:
    return repr(value if len(value) <= SHOWN_MAX else value[:SHOWN_MAX] + "...")


def _places(request: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with local paths and names: SageMaker answers with an empty ValidationException."""
    inputs = request.get("ProcessingInputs") or []
    outputs = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or []
    paths = [(one["InputName"], (one.get("S3Input") or {}).get("LocalPath")) for one in inputs]
    paths += [(one["OutputName"], (one.get("S3Output") or {}).get("LocalPath")) for one in outputs]
    seen: dict[str, str] = {}
    for name, path in paths:
        if path is None:
            continue
        plain = posixpath.normpath(path)
        if not plain.startswith(BELOW) or {".", ".."} & set(path.split("/")):
            yield f"{name}: the local path {path} does not lie below {BELOW}"
        for other, owner in seen.items():
            if plain == other or plain.startswith(other + "/") or other.startswith(plain + "/"):
                yield f"{name}: the local path {path} is that of {owner}, or lies inside or around it: each needs its own"
        seen[plain] = name
    for what, names in (
        ("inputs", [one["InputName"] for one in inputs]),
        ("outputs", [one["OutputName"] for one in outputs]),
    ):
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"two {what} are called {name}"
