"""SageMaker: what a Processing job and a training job look like from inside their containers, and how one is started.

    hosts, processing, message, ...   a build on the hosts of a Processing job: pipelines/sagemaker_processing.py
    launching                         the request that starts one: pipelines/launch_processing.py
    environment, checkpoints, stopping   the training job: its hosts, channels, saved reader states and its end

Names are imported when they are first asked for: a training script needs none of the preparation.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    # the Processing job
    "Hosts": "hosts",
    "find_hosts": "hosts",
    "ProcessingRequest": "request",
    # the training job
    "Checkpoints": "checkpoints",
    "GracefulStop": "stopping",
    "SaveEvery": "stopping",
    "TrainingEnvironment": "environment",
    "any_rank": "stopping",
    "training_environment": "environment",
}
__all__ = [
    "GracefulStop",
    "Hosts",
    "ProcessingRequest",
    "TrainingEnvironment",
    "find_hosts",
    "training_environment",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
