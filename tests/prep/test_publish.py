"""An output store that cannot create exclusively is refused before anything is read, unless it is allowed."""

from __future__ import annotations

import uuid
from typing import ClassVar

import fsspec
import pytest

from shardprep.errors import StoreError
from shardprep.prep.publish import Output
from shardprep.prep.settings import Settings


class _Plain(fsspec.get_filesystem_class("memory")):
    """A file system in memory under a scheme that is not known to create exclusively."""

    protocol = "plain"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]


@pytest.fixture
def plain_output():
    fsspec.register_implementation("plain", _Plain, clobber=True)
    return f"plain://{uuid.uuid4().hex}"


def test_refused_at_the_start(plain_output):
    with pytest.raises(StoreError, match="--unsafe-publish"):
        Output.open(plain_output, Settings())


def test_allowed_when_told(plain_output):
    settings = Settings(unsafe_publish=True)
    output = Output.open(plain_output, settings)
    output.publish(b"{}", settings)
    assert output.store.get("manifest.json") == b"{}"
