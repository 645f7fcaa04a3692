"""docs/sagemaker.md: policies are JSON, and the SDK's snippets fit the SDKs of both lines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "sagemaker.md").read_text(encoding="utf-8")
# Each call of a name that was imported, and processor.run, has to take the keywords that the snippet gives.
CHECK = """
import ast, inspect, sys
tree = ast.parse(sys.stdin.read())
names = {}
exec(compile(ast.Module([n for n in tree.body if isinstance(n, ast.ImportFrom)], []), "snippet", "exec"), names)
checked = 0
for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
    keywords = [k.arg for k in call.keywords]
    if isinstance(call.func, ast.Name) and call.func.id in names:
        target = names[call.func.id]
        fields = getattr(target, "model_fields", None)
        assert not set(keywords) - set(fields if fields else inspect.signature(target).parameters), (call.func.id, keywords)
        checked += 1
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "run":
        inspect.signature(names["Processor"].run).bind(None, **dict.fromkeys(keywords))
        checked += 1
print(checked)
"""


def snippets() -> dict[int, str]:
    found = re.findall(r"^```python\n(from sagemaker\..*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return {3 if "sagemaker.core" in text else 2: text for text in found if "Processor" in text}


def test_the_policies_are_json_and_name_no_wildcard_action() -> None:
    policies = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
    statements = [one for policy in policies if "Statement" in policy for one in policy["Statement"]]
    assert len(statements) >= 10
    for one in statements:
        actions = [one["Action"]] if isinstance(one["Action"], str) else one["Action"]
        assert not any("*" in action for action in actions), one
        # Actions that AWS lets name no resource.
        assert one.get("Resource", "") != "*" or actions == ["ecr:GetAuthorizationToken"] or "Condition" in one, one


@pytest.mark.slow
@pytest.mark.parametrize(("line", "package"), [(2, "sagemaker>=2.200,<3"), (3, "sagemaker-core>=2")])
def test_the_snippets_fit_the_sdk(line: int, package: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=300)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True, timeout=1800)
    done = subprocess.run(
        [python, "-c", CHECK],
        input=snippets()[line],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 2
