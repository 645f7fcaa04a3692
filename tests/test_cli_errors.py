"""An error that nobody foresaw: a trace for us, a last line that promises nothing it cannot know, exit 1."""

from __future__ import annotations

import json

import pytest

from shardprep import cli


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_unknown_error(flags, capsys, monkeypatch):
    def fails(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "_inspect", fails)
    assert cli.main(["inspect", "somewhere", *flags]) == 1
    out, err = capsys.readouterr()
    assert "RuntimeError: a bug" in err.splitlines()[-1]
    assert "Nothing was published" not in err
    assert not flags or json.loads(out)["error"] == "RuntimeError"
