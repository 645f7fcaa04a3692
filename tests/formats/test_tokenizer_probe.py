import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from shardprep.formats import probe
from shardprep.formats.engines import Reference
from shardprep.formats.probe import Difference, Verdict, compare, nasty_texts, verdict, verdict_key
from shardprep.formats.tokenizer import resolve

TESTS = Path(__file__).parents[1]
BYTE = (TESTS / "cases/tok/byte.json").read_bytes()
BERT = (TESTS / "tokenizers/bert_wordpiece.json").read_bytes()
GPT2 = (TESTS.parent / "sample/tokenizer.json").read_bytes()


class Wrong:
    """The reference, but one character is seen as another."""

    name = "fast:wrong"

    def __init__(self, old, new):
        self.right = Reference(BYTE.decode())
        self.old, self.new = old, new

    def encode_batch(self, texts):
        return self.right.encode_batch([text.replace(self.old, self.new) for text in texts])


@pytest.mark.parametrize(
    ("data", "backend"), [(GPT2, "fast:fastokens"), (BERT, "fast:nanotoken")], ids=["gpt2", "bert"]
)
def test_the_fast_backends_pass_the_probe(data, backend):
    found = verdict(data, resolve(data))
    assert (found.ok, found.why, found.backend) == (True, "", backend)
    assert found.seconds > 0
    assert "tokenizers" in found.versions


def test_a_tokenizer_without_fast_backend_gets_a_verdict_that_says_so():
    made = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("</s>", 0.0)], unk_id=0))
    made.add_special_tokens(["</s>"])
    data = made.to_str().encode()
    found = verdict(data, resolve(data))
    assert (found.ok, found.backend) == (False, "")
    assert "cannot take this tokenizer" in found.why


@pytest.mark.parametrize(
    "character", ["\ufeff", "\u200d", "\u0344", "\U0001f1e9", "\u3000", "\U000e0062", "\U0010fffd", "\u2028"]
)
def test_a_backend_that_confuses_one_character_is_found_out(character):
    texts = nasty_texts(resolve(BYTE))
    found = compare(Reference(BYTE.decode()), Wrong(character, "x"), texts)
    assert isinstance(found, Difference)
    assert character in found.text
    assert texts[found.index] == found.text
    assert found.reference != found.fast


def test_a_backend_that_is_wrong_in_long_documents_alone_is_found_out():
    class Chunked(Wrong):
        def encode_batch(self, texts):
            return self.right.encode_batch([t if len(t) < 100_000 else t[:-1] for t in texts])

    texts = nasty_texts(resolve(BYTE))
    found = compare(Reference(BYTE.decode()), Chunked("", ""), texts)
    assert found is not None
    assert found.index == len(texts) - 1


def test_the_texts_hold_every_assigned_kind_of_code_point_and_the_tokenizers_own_specials():
    texts = nasty_texts(resolve(BYTE))
    points = set(map(ord, "".join(texts)))
    assert points >= set(range(0xD800)) | set(range(0xE000, 0x40000)) | set(range(0xE0000, 0xE1000))
    assert not points & set(range(0xD800, 0xE000))  # no tokenizer takes a lone surrogate
    assert any("x<|pad|>y" in text for text in texts)
    assert nasty_texts(resolve(BYTE)) == texts
    assert max(map(len, texts)) >= 200_000
    assert sum(map(len, texts)) < 2_000_000  # about a second on one core


def test_a_backend_that_fails_on_the_probe_does_not_pass(monkeypatch):
    class Failing:
        name = "fast:failing"

        def encode_batch(self, texts):
            raise RuntimeError("no")

    monkeypatch.setattr(probe, "fast_engine", lambda text, reference: Failing())
    found = verdict(BYTE, resolve(BYTE))
    assert (found.ok, found.why) == (False, "fast:failing failed on the probe: RuntimeError: no")


def test_a_backend_that_differs_does_not_pass_and_the_text_is_named(monkeypatch):
    monkeypatch.setattr(probe, "fast_engine", lambda text, reference: Wrong("\u0344", "?"))
    found = verdict(BYTE, resolve(BYTE))
    assert not found.ok
    assert found.why.startswith("fast:wrong gives other ids than the reference for 'caf")
    assert found.why.isascii()


def test_the_verdict_goes_through_json_and_nothing_else_is_taken_for_one():
    found = Verdict(ok=True, why="", backend="fast:x", seconds=0.5, versions={"tokenizers": "1"})
    assert Verdict.from_json(json.loads(json.dumps(found.to_json()))) == found
    for wrong in ({}, {**found.to_json(), "more": 1}, {**found.to_json(), "ok": "yes"}):
        with pytest.raises(ValueError, match="not a verdict"):
            Verdict.from_json(wrong)


def test_a_verdict_is_for_one_tokenizer_one_set_of_versions_and_one_probe(monkeypatch):
    spec = resolve(BYTE)
    keys = {
        verdict_key(spec, {"tokenizers": "1"}),
        verdict_key(spec, {"tokenizers": "2"}),
        verdict_key(resolve(GPT2), {"tokenizers": "1"}),
    }
    monkeypatch.setattr(probe, "PROBE_VERSION", probe.PROBE_VERSION + 1)
    keys.add(verdict_key(spec, {"tokenizers": "1"}))
    assert len(keys) == 4
    assert verdict_key(spec, {"a": "1", "b": "2"}) == verdict_key(spec, {"b": "2", "a": "1"})


def test_compare_says_nothing_for_equal_engines():
    reference = Reference(BYTE.decode())
    assert compare(reference, Wrong("\ufffe\ufffe", "x"), ["a", "", "b"] * 200) is None
    assert np.array_equal(reference.encode_batch([])[1], [0])
