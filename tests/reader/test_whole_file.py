"""Files that are whole or not there, with and without nameless temporary files, on full disks too."""

from __future__ import annotations

import errno
import os

import pytest

from shardprep.errors import Full, StoreError
from shardprep.reader.whole_file import write_whole


@pytest.fixture(params=["as here", "no O_TMPFILE", "refused by the file system", "no /proc"])
def system(request, monkeypatch):
    """Systems with and without files that have no name."""
    real_open, real_link = os.open, os.link
    if request.param == "no O_TMPFILE":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    if request.param == "refused by the file system":

        def refuse(path, flags, *rest, **more):
            if os.path.isdir(path) and flags & os.O_WRONLY:
                raise OSError(errno.EOPNOTSUPP, "no nameless files here", path)
            return real_open(path, flags, *rest, **more)

        monkeypatch.setattr(os, "open", refuse)
    if request.param == "no /proc":

        def no_proc(source, target, **more):
            return real_link(str(source).replace("/proc/", "/no-proc/"), target, **more)

        monkeypatch.setattr(os, "link", no_proc)


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_whole_and_nothing_else_stays(tmp_path, durable):
    path = str(tmp_path / "a.json")
    for data in (b"first", b"", b"x" * 200_000):
        write_whole(path, data, durable=durable)
        with open(path, "rb") as file:
            assert file.read() == data
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_name_without_a_folder_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_whole("a.json", b"x", durable=True)
    assert (tmp_path / "a.json").read_bytes() == b"x"


@pytest.mark.usefixtures("system")
def test_a_full_disk_is_named_and_the_older_file_stays(tmp_path, monkeypatch):
    path = str(tmp_path / "a.json")
    write_whole(path, b"old", durable=True)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Full, match=r"a\.json: no space left to write it") as error:
        write_whole(path, b"new", durable=True)
    assert error.value.fields == {"uri": path}
    monkeypatch.undo()
    with open(path, "rb") as file:
        assert file.read() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"missing/a\.json: it cannot be written \(No such file or directory\)"):
        write_whole(str(tmp_path / "missing" / "a.json"), b"x", durable=False)
