"""The container's recipe, by the rules of hadolint that can be checked by reading, and what `make image-context` gathers."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "pipelines" / "Dockerfile"


def steps() -> list[tuple[str, str]]:
    """Return (instruction, rest) of the recipe, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def rest_of(instruction: str) -> list[str]:
    return [rest for word, rest in steps() if word == instruction]


def test_the_base_is_pinned_to_a_version() -> None:
    defaults = dict(rest.split("=", 1) for rest in rest_of("ARG"))
    assert rest_of("FROM") == ["${BASE}"]
    assert re.fullmatch(r"python:3\.1[1-9]\.\d+-slim-[a-z]+", defaults["BASE"])  # DL3006, DL3007: a tag, and not latest


def test_the_entry_point_is_in_exec_form() -> None:
    (entry,) = rest_of("ENTRYPOINT")  # DL3025, DL4004
    assert json.loads(entry) == ["python", "/opt/program/sagemaker_processing.py"]
    assert rest_of("CMD") == []
    assert (ROOT / "pipelines" / "sagemaker_processing.py").is_file()


def test_it_does_not_run_as_root_and_bakes_nothing_into_the_platforms_folder() -> None:
    defaults = dict(rest.split("=", 1) for rest in rest_of("ARG"))
    assert rest_of("USER") == ["${RUN_AS}"]  # DL3002
    assert defaults["RUN_AS"] == "1000"
    assert all("/opt/ml" not in rest for _, rest in steps())
    assert all(path.startswith("/") for path in rest_of("WORKDIR"))  # DL3000


def test_packages_are_pinned_and_nothing_is_cached() -> None:
    (run,) = rest_of("RUN")  # DL3059
    assert "--constraint constraints.txt" in run  # DL3013
    assert "--no-cache-dir" in run  # DL3042
    assert "apt-get" not in run
    assert "sudo" not in run  # DL3004
    assert "ADD" not in [word for word, _ in steps()]  # DL3020
    assert {word for word, _ in steps()} <= {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT"}


def test_no_secret_is_in_it() -> None:
    names = " ".join([*rest_of("ARG"), *rest_of("ENV")])
    assert not re.search(r"(?i)secret|token|password|access_key|credential", names)


def copied() -> list[str]:
    return [source for rest in rest_of("COPY") for source in shlex.split(rest)[:-1]]


def test_what_is_copied_is_gathered() -> None:
    target = (ROOT / "Makefile").read_text().split("\nimage-context:")[1].split("\n\n")[0]
    for source in copied():
        assert source.strip("/").split(".")[0] in target, source
    assert "pipelines/Dockerfile" in target


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make image-context` in a copy of the project, with an environment that is there already."""
    folder = tmp_path_factory.mktemp("project")
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "NOTICE",
        "Makefile",
        "constraints.txt",
        "shardprep",
        "pipelines",
    ):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    venv = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=300)
    (venv / ".run").touch()
    done = subprocess.run(
        ["make", "image-context"], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "build" / "image-context"


@pytest.mark.slow
def test_the_context_is_complete(context: Path) -> None:
    assert (context / "Dockerfile").read_bytes() == RECIPE.read_bytes()
    for source in copied():
        assert (context / source).exists(), source
    (wheel,) = (context / "wheels").glob("shardprep-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "shardprep").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(ROOT).as_posix() in names
    for path in (ROOT / "pipelines").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.name != "Dockerfile":
            assert (context / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert not list((context / "pipelines").rglob("__pycache__"))
    for kind in ("processing", "train"):
        line = (context / f"{kind}.txt").read_text().strip()
        assert (context / line.partition("[")[0]).is_file()


@pytest.mark.slow
def test_the_wheel_installs_by_the_recipes_own_command_and_the_entry_point_runs(context: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copytree(context, program)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=300)
    python = str(venv / "bin" / "python")
    (run,) = rest_of("RUN")
    install = run.split("&&")[0].replace('"${REQUIREMENTS}"', "processing.txt")
    subprocess.run(shlex.split(install.replace("python", python, 1)), cwd=program, check=True, timeout=900)
    entry = json.loads(rest_of("ENTRYPOINT")[0])[1].replace("/opt/program", str(program / "pipelines"))
    ml_root = tmp_path / "ml"
    (ml_root / "config").mkdir(parents=True)
    (ml_root / "config" / "resourceconfig.json").write_text('{"current_host": "algo-1", "hosts": ["algo-1"]}')
    command = [
        python, entry, str(ROOT / "sample" / "documents"), str(tmp_path / "out"), "--tokenizer",
        str(ROOT / "sample" / "tokenizer.json"), "--workers", "1", "--ml-root", str(ml_root),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (ml_root / "output" / "message").read_text().startswith("found 2,000, written 2,000")
