"""What a training job is told, by every launcher and spelling; nothing here needs AWS."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest

from shardprep.adapters.sagemaker import training_environment
from shardprep.adapters.sagemaker.environment import typed
from shardprep.errors import ConfigError

HOSTS = ["algo-1", "algo-10", "algo-2"]  # as texts sort them


def job(
    root,
    *,
    hosts=("algo-2", "algo-10", "algo-1"),
    current="algo-10",
    channels=None,
    hyperparameters=None,
    extra=None,
):
    """Write the files that the platform puts into every training container."""
    config = root / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    resource = {"current_host": current, "hosts": list(hosts), "network_interface_name": "eth0", **(extra or {})}
    (config / "resourceconfig.json").write_text(json.dumps(resource))
    if channels is not None:
        (config / "inputdataconfig.json").write_text(json.dumps(channels))
    if hyperparameters is not None:
        (config / "hyperparameters.json").write_text(json.dumps(hyperparameters))
    return str(root)


def told(root, environ=None):
    return training_environment(root, environ or {}, required=True)


def toolkit(**more):
    return {
        "TRAINING_JOB_NAME": "job-7",
        "SM_HOSTS": json.dumps(HOSTS),
        "SM_CURRENT_HOST": "algo-10",
        "SM_CHANNELS": json.dumps(["train-a", "manifest"]),
        "SM_CHANNEL_TRAIN-A": "/data/train-a",
        "SM_CHANNEL_MANIFEST": "/data/manifest",
        "SM_HPS": json.dumps({"lr": 1e-4, "name": "007", "layers": 3, "bf16": True}),
        "SM_MODEL_DIR": "/m",
        "SM_OUTPUT_DATA_DIR": "/o/data",
        **more,
    }


def test_bare_files(tmp_path):
    channels = {
        "train": {"TrainingInputMode": "Pipe", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"},
        "meta": {"TrainingInputMode": "FastFile"},
        "code": {"TrainingInputMode": "File"},
        "sm_drivers": {"TrainingInputMode": "File"},
        "old": {},
    }
    env = told(job(tmp_path, channels=channels, hyperparameters={"lr": "1e-4"}))
    assert env.hosts == tuple(HOSTS)
    assert (env.current_host, env.host_rank) == ("algo-10", 1)
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size, env.launcher) == (1, 3, 0, 1, "")
    assert env.channels == {name: f"{tmp_path}/input/data/{name}" for name in ("meta", "old", "train")}
    assert env.channel_modes == {"meta": "FastFile", "old": "File", "train": "Pipe"}
    assert env.hyperparameters == {"lr": 1e-4}
    assert env.checkpoint_folder == f"{tmp_path}/checkpoints"
    assert (env.model_folder, env.output_folder) == (f"{tmp_path}/model", f"{tmp_path}/output/data")
    assert env.failure_file == f"{tmp_path}/output/failure"
    assert env.job_name == ""
    assert env.channel("train") == f"{tmp_path}/input/data/train"
    with pytest.raises(ConfigError, match='no channel "test"; it has meta, old, train'):
        env.channel("test")
    assert pickle.loads(pickle.dumps(env)) == env


def test_the_toolkit_wins_over_the_files(tmp_path):
    root = job(tmp_path, current="algo-2", channels={"other": {}}, hyperparameters={"lr": "5"})
    env = told(root, toolkit())
    assert (env.current_host, env.host_rank, env.rank, env.world_size) == ("algo-10", 1, 1, 3)
    assert env.channels == {"manifest": "/data/manifest", "train-a": "/data/train-a"}
    assert env.hyperparameters == {"lr": 1e-4, "name": "007", "layers": 3, "bf16": True}
    assert (env.model_folder, env.output_folder, env.job_name) == ("/m", "/o/data", "job-7")


def test_the_drivers_of_sdk_v3(tmp_path):
    environ = {
        **toolkit(),
        "SM_CHANNELS": json.dumps(["code", "sm_drivers", "train-a"]),
        "SM_HP_LEARNING_RATE": "0.1",
        "SM_HPS": json.dumps({"learning-rate": 0.1}),
        "SM_CURRENT_HOST_RANK": "1",
        "SM_HOST_COUNT": "3",
        "SM_OUTPUT_FAILURE": "/o/failure",
        "SM_INPUT_DATA_DIR": "/elsewhere",
        "SM_INPUT_DATA_CONFIG": json.dumps({"train-a": {"TrainingInputMode": "FastFile"}}),
    }
    del environ["SM_CHANNEL_TRAIN-A"]
    env = told(str(tmp_path), environ)
    assert env.host_rank == 1
    assert env.channels == {"train-a": "/elsewhere/train-a"}
    assert env.channel_modes == {"train-a": "FastFile"}
    assert env.hyperparameters == {"learning-rate": 0.1}
    assert env.failure_file == "/o/failure"


@pytest.mark.parametrize(
    ("file", "name"),
    [(None, 3), ({"name": "3", "lr": "1e-4"}, 3), ({"name": '"3"', "lr": "0.1"}, "3")],
    ids=["no file", "not decoded", "decoded"],
)
def test_texts_in_sm_hps(tmp_path, file, name):
    """The toolkit's page shows SM_HPS with texts, and its code decodes them: each value is decoded once."""
    environ = toolkit(SM_HPS=json.dumps({"name": "3", "lr": 1e-4, "opt": "adam"}))
    env = told(job(tmp_path, hyperparameters=file), environ)
    assert env.hyperparameters == {"name": name, "lr": 1e-4, "opt": "adam"}


@pytest.mark.parametrize("variable", ["SM_CHANNEL_TRAIN-A.B", "SM_CHANNEL_TRAIN_A_B"])
def test_a_channel_in_both_spellings(tmp_path, variable):
    environ = {**toolkit(), "SM_CHANNELS": '["train-a.b"]', variable: "/here"}
    assert told(str(tmp_path), environ).channels == {"train-a.b": "/here"}


@pytest.mark.parametrize("variable", ["SM_HP_BATCH-SIZE", "SM_HP_BATCH_SIZE"])
def test_a_hyperparameter_in_both_spellings(tmp_path, variable):
    root = job(tmp_path, hyperparameters={"batch-size": "16", "warm": "yes"})
    env = told(root, {variable: "32", "SM_HP_EXTRA": "[1]"})
    assert env.hyperparameters == {"batch-size": 32, "warm": "yes", "extra": [1]}


def test_channels_from_variables_alone(tmp_path):
    environ = {"SM_HOSTS": '["me"]', "SM_CURRENT_HOST": "me", "SM_CHANNEL_TRAIN": "/d", "SM_CHANNEL_CODE": "/c"}
    env = told(str(tmp_path), environ)
    assert env.channels == {"train": "/d"}
    assert env.hyperparameters == {}


TORCHRUN = {"RANK": "13", "WORLD_SIZE": "24", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        (TORCHRUN, (13, 24, 5, 8, "torchrun")),
        (MPI, (3, 6, 1, 2, "Open MPI")),
        ({**MPI, **TORCHRUN}, (13, 24, 5, 8, "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 0, 1, "torchrun")),
        ({"LOCAL_RANK": "5"}, (1, 3, 0, 1, "")),
        ({"RANK": "", "WORLD_SIZE": ""}, (1, 3, 0, 1, "")),
    ],
)
@pytest.mark.parametrize("base", ["files", "toolkit"])
def test_ranks_come_from_the_launcher_first(tmp_path, environ, ranks, base):
    environ = environ if base == "files" else {**toolkit(), **environ}
    env = told(job(tmp_path), environ)
    assert (env.rank, env.world_size, env.local_rank, env.local_world_size, env.launcher) == ranks
    assert env.host_rank == 1


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "3"}, "RANK=3 is set, but not WORLD_SIZE: set both, as torchrun does"),
        ({"WORLD_SIZE": "3"}, "WORLD_SIZE=3 is set, but not RANK"),
        ({"RANK": "x", "WORLD_SIZE": "3"}, "must be whole numbers"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, "below its world size"),
        ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "below its world size"),
        ({"SM_HPS": "{"}, "the variable SM_HPS: not JSON"),
        ({"SM_HPS": "[]"}, "the variable SM_HPS: a JSON object is expected, got list"),
        ({"SM_CHANNELS": "{}"}, "the variable SM_CHANNELS: a JSON list is expected, got dict"),
        ({"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "b"}, "'b' is not among the hosts"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, environ, message):
    with pytest.raises(ConfigError, match=message):
        told(job(tmp_path), environ)


@pytest.mark.parametrize("name", ["resourceconfig.json", "inputdataconfig.json", "hyperparameters.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"a": ', b"\xff"])
def test_a_broken_file_is_named(tmp_path, name, text):
    root = job(tmp_path, channels={}, hyperparameters={})
    path = tmp_path / "input/config" / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as error:
        told(root)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("resource", [{}, {"hosts": "algo-1"}, {"hosts": ["a"], "current_host": None}, {"hosts": [1]}])
def test_a_resource_file_that_says_nothing(tmp_path, resource):
    job(tmp_path)
    (tmp_path / "input/config/resourceconfig.json").write_text(json.dumps(resource))
    with pytest.raises(ConfigError, match=r"resourceconfig\.json: the current host"):
        told(str(tmp_path))


def test_outside_sagemaker(tmp_path):
    assert training_environment(str(tmp_path), {}) is None
    assert training_environment(str(tmp_path), TORCHRUN) is None
    with pytest.raises(ConfigError, match=r"neither SM_HOSTS .* nor is there .*/input/config/resourceconfig\.json"):
        training_environment(str(tmp_path), {}, required=True)


def test_a_fifo_tells_the_mode_where_nothing_else_does(tmp_path):
    root = job(tmp_path, channels={"train": {}, "test": {"TrainingInputMode": ""}})
    (tmp_path / "input/data").mkdir()
    os.mkfifo(tmp_path / "input/data/train_0")
    assert told(root).channel_modes == {"test": "File", "train": "Pipe"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1e-4", 1e-4),
        ("3.0", 3.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ('"adam"', "adam"),
        ('"3"', "3"),
        ("adam", "adam"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("True", "True"),
        ("NaN", "NaN"),
        ("[NaN]", "[NaN]"),
        ("Infinity", "Infinity"),
        ("1e999", "1e999"),
        ("", ""),
        (" 3 ", 3),
        ("s3://bucket/a", "s3://bucket/a"),
        ("é", "é"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_types_of_hyperparameters(text, value):
    found = typed(text)
    assert found == value
    assert type(found) is type(value)


def test_a_training_script_imports_none_of_the_preparation():
    code = (
        "import sys; from shardprep.adapters.sagemaker import training_environment, GracefulStop, Checkpoints; "
        "training_environment('/nowhere', {}); "
        "bad = {'dask', 'distributed', 'torch', 'boto3', 'tokenizers'} & set(sys.modules); "
        "bad |= {m for m in sys.modules if m.startswith('shardprep.prep')}; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
