"""The docs cannot rot: every python and console block of README.md and docs/ is run, in order, page by page.

A page's blocks share one folder, which holds the sample; python blocks with no console block between them share one
interpreter. In a console block a line that begins with "$ " is a command; the lines after it are its output, compared
when there are any; "..." stands for anything. A block after `<!-- not run: reason -->` is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
NOT_RUN = re.compile(r"<!-- not run: \S[^\n]*-->\s*\Z")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Snippet:
    language: str
    body: str
    line: int


def snippets_of(text: str) -> list[Snippet]:
    found = []
    for match in FENCE.finditer(text):
        if match["language"] in ("python", "console") and not NOT_RUN.search(text[: match.start()]):
            body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
            found.append(Snippet(match["language"], body, text.count("\n", 0, match.start()) + 2))
    return found


def commands_of(body: str) -> list[tuple[str, str]]:
    """Return (command, expected output) pairs; a command goes on while its line ends in a backslash."""
    pairs: list[tuple[str, str]] = []
    going_on = False
    for line in body.splitlines():
        if going_on:
            pairs[-1] = (pairs[-1][0] + "\n" + line, "")
        elif line.startswith("$ "):
            pairs.append((line[2:], ""))
        else:
            pairs[-1] = (pairs[-1][0], pairs[-1][1] + line + "\n")
        going_on = pairs[-1][0].endswith("\\") and not pairs[-1][1]
    return pairs


def fits(expected: str, got: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, got.strip(), re.DOTALL) is not None


def run_console(body: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, expected in commands_of(body):
        done = run(["bash", "-c", command], folder, PATH=path)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"$ {command}\nexit {done.returncode}:\n{said}"
        assert not expected or fits(expected, said), f"$ {command}\nthe page says:\n{expected}\nbut it printed:\n{said}"


def run_python(snippets: list[Snippet], folder: Path) -> None:
    """Run the snippets as a script, since they may start workers, which need a `__main__` of their own."""
    script = folder / f"from_line_{snippets[0].line}.py"
    script.write_text("\n".join(snippet.body for snippet in snippets))
    done = run([sys.executable, str(script)], folder)
    assert done.returncode == 0, f"{script.read_text()}\n{done.stderr}"


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    # One thread each: several on few cores wait for each other at full speed.
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
    )


@pytest.mark.parametrize("page", [p for p in PAGES if snippets_of(p.read_text())], ids=lambda p: p.name)
def test_the_snippets_of_a_page_run(page: Path, tmp_path: Path) -> None:
    for name in ("sample", "pipelines"):
        (tmp_path / name).symlink_to(ROOT / name)
    for language, run_of_snippets in groupby(snippets_of(page.read_text()), key=lambda snippet: snippet.language):
        if language == "python":
            run_python(list(run_of_snippets), tmp_path)
        else:
            for snippet in run_of_snippets:
                run_console(snippet.body, tmp_path)


def test_a_block_is_found_run_or_left_out() -> None:
    left_out = "<!-- not run: needs a bucket -->\n```console\n$ false\n```\n```text\nx\n```\n"
    text = f"a\n\n```console\n$ echo one\none\n```\n\n{left_out}"
    assert snippets_of(text) == [Snippet("console", "$ echo one\none\n", 4)]


def test_a_wrong_line_of_output_is_seen(tmp_path: Path) -> None:
    run_console("$ printf 'a\\nb\\nc\\n'\na\n...\nc\n", tmp_path)
    with pytest.raises(AssertionError, match="but it printed"):
        run_console("$ printf 'a\\nb\\n'\na\nc\n", tmp_path)
    with pytest.raises(AssertionError, match="exit 3"):
        run_console("$ exit 3\n", tmp_path)
