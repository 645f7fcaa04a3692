import os
import random
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from shardprep.errors import ConfigError, TokenizerError
from shardprep.formats import engines as engines_module
from shardprep.formats.backends import FIRST_CHECKED, ONE_IN, Encoder, _one_in_a_thousand, load_encoder
from shardprep.formats.engines import Fastokens, Nanotoken, Reference, joined
from shardprep.formats.tokenizer import TokenizerSpec, resolve, spec_of

TESTS = Path(__file__).parents[1]
BYTE = (TESTS / "cases/tok/byte.json").read_bytes()
BERT = (TESTS / "tokenizers/bert_wordpiece.json").read_bytes()
GPT2 = (TESTS.parent / "sample/tokenizer.json").read_bytes()
SPEC = resolve(BYTE)


def listed(ragged):
    ids, offsets = ragged
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


class Odd:
    """A fast engine that is right, but for texts with a mark in them."""

    name = "fast:odd"

    def __init__(self, wrong=None, panics=None, fails_batches=False):
        self.right = Reference(BYTE.decode())
        self.wrong, self.panics, self.fails_batches = wrong, panics, fails_batches
        self.calls = 0

    def encode_batch(self, texts):
        self.calls += 1
        if self.panics and any(self.panics in text for text in texts):
            raise Panic("called `Option::unwrap()` on a `None` value")
        if self.fails_batches and len(texts) > 1:
            raise ValueError("too many")
        return self.right.encode_batch([t + "!" if self.wrong and self.wrong in t else t for t in texts])


class Panic(BaseException):  # as pyo3's PanicException: `except Exception` does not see it
    pass


def encoder(engine):
    return Encoder(engine, SPEC, reference=lambda: Reference(BYTE.decode()))


# Which backend


@pytest.mark.parametrize(
    ("data", "asked", "used"),
    [
        (BYTE, "reference", "reference"),
        (BYTE, "auto", "fast:fastokens"),
        (BYTE, "fast", "fast:fastokens"),
        (BERT, "auto", "fast:nanotoken"),
        (BERT, "fast", "fast:nanotoken"),
    ],
)
def test_the_backend_is_the_one_asked_for(data, asked, used):
    made = load_encoder(data, resolve(data), asked)
    assert (made.backend, made.why) == (used, "")


def test_auto_says_why_it_takes_the_reference_and_fast_says_why_not():
    made = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("</s>", 0.0)], unk_id=0))
    made.add_special_tokens(["</s>"])
    data = made.to_str().encode()
    spec = resolve(data)
    used = load_encoder(data, spec, "auto")
    assert used.backend == "reference"
    assert "fastokens cannot take this tokenizer" in used.why
    assert "nanotoken cannot take this tokenizer" in used.why
    with pytest.raises(TokenizerError, match="--tokenizer-backend fast cannot be used: fastokens cannot take"):
        load_encoder(data, spec, "fast")


def test_a_machine_without_the_fast_packages_uses_the_reference(monkeypatch):
    for name in ("fastokens", "nanotoken", "nanotoken.nanotoken_rs"):
        monkeypatch.setitem(sys.modules, name, None)  # what an import of a missing package looks like
    used = load_encoder(BYTE, SPEC, "auto")
    assert (used.backend, used.why) == ("reference", "fast backend not installed: pip install shardprep[fast]")
    with pytest.raises(TokenizerError, match=r"pip install shardprep\[fast\]"):
        load_encoder(BYTE, SPEC, "fast")


def test_a_fast_package_that_is_too_old_is_not_used(monkeypatch):
    monkeypatch.setattr(engines_module, "FASTOKENS_FLOOR", (99,))
    assert "too old: pip install -U shardprep[fast]" in load_encoder(BYTE, SPEC, "auto").why


def test_loads_at_the_same_time_leave_the_environment_as_it_was():
    """The probe's verdict loads a tokenizer in a thread of its own while the scan loads one."""
    before = dict(os.environ)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: load_encoder(BYTE, SPEC, "fast"), range(200)))
    assert dict(os.environ) == before


def test_a_thread_count_that_the_user_has_set_is_still_there_afterwards(monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    load_encoder(BYTE, SPEC, "fast")
    assert os.environ["RAYON_NUM_THREADS"] == "3"
    assert "FASTOKENS_BPE_THREADS" not in os.environ


def test_a_wordpiece_special_token_that_is_looked_for_in_normalized_text_keeps_the_reference():
    data = BERT.replace(b'"normalized":false', b'"normalized":true').replace(
        b'"normalized": false', b'"normalized": true'
    )
    used = load_encoder(data, resolve(data), "auto")
    assert used.backend == "reference"
    assert "special token" in used.why


def test_an_unknown_backend_is_a_wrong_call():
    with pytest.raises(ConfigError, match="must be one of auto, reference, fast, got 'quick'"):
        load_encoder(BYTE, SPEC, "quick")


# The same ids


def mixed_texts():
    rng = random.Random(5)
    words = [
        "the",
        "naïve",
        "日本語",
        "\U0001f600",
        "don't",
        "  ",
        "\n\n",
        "1234",
        "[CLS]",
        "<|endoftext|>",
        "é",
        "x" * 300,
    ]
    return ["", " ", *[" ".join(rng.choices(words, k=rng.randint(1, 80))) for _ in range(200)]]


@pytest.mark.parametrize("data", [BYTE, GPT2, BERT], ids=["byte", "gpt2", "bert"])
def test_fast_and_reference_give_the_same_rows(data):
    spec = resolve(data)
    fast, reference = load_encoder(data, spec, "fast"), load_encoder(data, spec, "reference")
    texts = mixed_texts()
    assert listed(fast.encode(texts)) == listed(reference.encode(texts))
    assert fast.encode([])[1].tolist() == [0]
    ids, offsets = fast.encode(texts[:1])
    assert (ids.dtype, offsets.dtype) == (np.int32, np.int64)
    assert ids.flags.writeable


def test_the_reference_cuts_large_batches_and_keeps_their_order():
    texts = ["a" * 700_000, "b", "c" * 700_000, "d"]
    assert [row[0] for row in listed(Reference(BYTE.decode()).encode_batch(texts))] == list(b"abcd")


# Checks against the reference


def test_the_first_documents_of_a_process_are_all_checked():
    made = encoder(Odd(wrong="?"))
    made.encode(["a"] * (FIRST_CHECKED - 1))
    assert made.checked == FIRST_CHECKED - 1
    with pytest.raises(TokenizerError, match="different ids from token 2 on") as caught:
        made.encode(["b?"])
    assert caught.value.fields == {"index": 0, "kind": "difference", "backend": "fast:odd", "first": True, "token": 2}
    assert "--tokenizer-backend reference" in str(caught.value)


def test_one_document_in_a_thousand_is_checked_afterwards_and_the_choice_never_varies():
    texts = [f"document {i} {i * i}" for i in range(20_000)]
    made = encoder(Odd())
    for start in range(0, len(texts), 500):
        made.encode(texts[start : start + 500])
    assert 5 <= made.checked - FIRST_CHECKED <= 45  # 20 are expected
    ids, offsets = Reference(BYTE.decode()).encode_batch(texts)
    chosen = _one_in_a_thousand(ids, offsets)
    halves = []
    for part in (texts[:7_000], texts[7_000:]):
        halves += _one_in_a_thousand(*Reference(BYTE.decode()).encode_batch(part)).tolist()
    assert chosen.tolist() == halves


def test_a_difference_later_on_stops_with_the_place_in_the_batch():
    texts = [f"document {i}" for i in range(3_000)]
    ids, offsets = Reference(BYTE.decode()).encode_batch([text + "!" for text in texts])
    target = int(np.flatnonzero(_one_in_a_thousand(ids, offsets))[0])
    made = encoder(Odd(wrong=texts[target]))
    made.encode(["x"] * FIRST_CHECKED)
    with pytest.raises(TokenizerError) as caught:
        made.encode(texts[target - 3 : target + 3])
    assert (caught.value.fields["index"], caught.value.fields["first"]) == (3, False)


def test_the_share_that_is_checked_is_as_stated():
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 40, 200_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(0, 50_000, offsets[-1]).astype(np.int32)
    assert 0.8 < _one_in_a_thousand(ids, offsets).mean() * ONE_IN < 1.2
    assert not _one_in_a_thousand(np.empty(0, np.int32), np.zeros(4, np.int64)).any()


# One document cannot end the job


def test_a_panic_of_the_fast_backend_sends_that_document_to_the_reference():
    made = encoder(Odd(panics="poison"))
    assert listed(made.encode(["a", "poison", "b"])) == [[97, 256], [*b"poison", 256], [98, 256]]
    assert made.rescued == 1


def test_a_batch_that_fails_is_tried_again_document_by_document():
    made = encoder(Odd(fails_batches=True))
    assert listed(made.encode(["a", "b"])) == [[97, 256], [98, 256]]
    assert made.rescued == 0


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_a_document_that_no_backend_can_encode_is_named_by_its_place(backend):
    made = load_encoder(BYTE, SPEC, backend)
    with pytest.raises(TokenizerError, match="cannot encode a document") as caught:
        made.encode(["a", "cut \ud83d in half"])
    assert (caught.value.fields["index"], caught.value.fields["kind"]) == (1, "document")
    assert listed(made.encode(["a"])) == [[97, 256]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_ends_the_process_is_not_taken_for_a_bad_document(error):
    class Ending(Odd):
        def encode_batch(self, texts):
            raise error

    with pytest.raises(error):
        encoder(Ending()).encode(["a"])


# A tokenizer object


class Fixed:
    fingerprint, vocab_size, eos_id = "f", 10, 9

    def __init__(self, ids, offsets):
        self.ids, self.offsets = ids, offsets

    def encode_batch(self, texts):
        return np.asarray(self.ids), np.asarray(self.offsets)


def test_a_tokenizer_object_has_no_choice_of_backends_and_gets_its_end_token():
    made = Fixed(np.array([1, 2, 3], np.uint16), np.array([0, 1, 3], np.int32))
    for backend in ("auto", "fast"):
        used = load_encoder(made, spec_of(made), backend)
        assert (used.backend, listed(used.encode(["a", "b"]))) == ("custom", [[1, 9], [2, 3, 9]])
        assert used.encode(["a", "b"])[0].dtype == np.int32


@pytest.mark.parametrize(
    ("ids", "offsets", "reason"),
    [
        ([1], [0, 1], "offsets"),
        ([1, 2], [0, 2, 1], "offsets"),
        ([1, 2], [1, 1, 2], "offsets"),
        ([1, 2], [0.0, 1.0, 2.0], "offsets"),
        ([[1, 2]], [0, 1, 2], "offsets"),
        ([1, 10], [0, 1, 2], "ids must be integers from 0 to 9"),
        ([1, -1], [0, 1, 2], "ids must be integers from 0 to 9"),
        ([1.0, 2.0], [0, 1, 2], "ids must be integers from 0 to 9"),
    ],
)
def test_what_a_tokenizer_object_returns_is_checked(ids, offsets, reason):
    made = Fixed(ids, offsets)
    with pytest.raises(TokenizerError, match=f"tokenizer Fixed: .*{reason}"):
        load_encoder(made, spec_of(made)).encode(["a", "b"])


def test_joined_rows():
    assert [part.tolist() for part in joined([])] == [[], [0]]
    assert [part.tolist() for part in joined([np.array([1, 2], np.int32), np.empty(0, np.int32)])] == [
        [1, 2],
        [0, 2, 2],
    ]


# Time, threads, processes


@pytest.mark.parametrize(
    "unit", ["a", " ", "ab", "\n", "的一是不了在人有我他"], ids=["a", "blank", "ab", "newline", "CJK"]
)
@pytest.mark.parametrize("engine", ["reference", "fast"])
@pytest.mark.parametrize("data", [GPT2, BERT], ids=["gpt2", "bert"])
def test_long_runs_take_near_linear_time(data, engine, unit, engines):
    def seconds(length):
        start = time.process_time()
        engines[data, engine].encode_batch([(unit * length)[:length]])
        return time.process_time() - start

    short, long = 20_000, 160_000
    once = min(seconds(short) for _ in range(3))
    # 8 times the text: 8 times the time where it is linear, 64 times where it is quadratic
    assert min(seconds(long) for _ in range(2)) < 24 * max(once, 0.001)


@pytest.fixture(scope="module")
def engines():
    gpt2, bert = Reference(GPT2.decode()), Reference(BERT.decode())
    return {
        (GPT2, "reference"): gpt2,
        (GPT2, "fast"): Fastokens(GPT2.decode()),
        (BERT, "reference"): bert,
        (BERT, "fast"): Nanotoken(BERT.decode(), lambda: bert),
    }


def run_alone(program):
    environment = {k: v for k, v in os.environ.items() if k not in {"TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"}}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_a_worker_uses_one_thread_and_leaves_the_environment_alone(backend):
    out, _ = run_alone(f"""
        import os
        from pathlib import Path
        from shardprep.formats.backends import load_encoder
        from shardprep.formats.tokenizer import resolve
        def threads():
            return sum("token" in Path(f"/proc/self/task/{{t}}/comm").read_text() for t in os.listdir("/proc/self/task"))
        data = Path("sample/tokenizer.json").read_bytes()
        before, spec = len(os.listdir("/proc/self/task")), resolve(data)
        made = load_encoder(data, spec, "{backend}")
        made.encode(["word " * 60_000, *[f"text {{i}}" for i in range(2_000)]])
        print(threads(), len(os.listdir("/proc/self/task")) - before <= 2, os.environ.get("RAYON_NUM_THREADS"))
    """)
    assert out == "0 True None"


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("tokenizer", ["sample/tokenizer.json", "tests/tokenizers/bert_wordpiece.json"])
@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_c18_a_process_that_tokenized_may_fork_and_its_child_tokenize(backend, tokenizer):
    out, errors = run_alone(f"""
        import os
        from pathlib import Path
        from shardprep.formats.backends import load_encoder
        from shardprep.formats.tokenizer import resolve
        data = Path("{tokenizer}").read_bytes()
        made = load_encoder(data, resolve(data), "{backend}")
        texts = ["word " * 20_000, *["some text"] * 300]
        here = made.encode(texts)[0].sum()
        child = os.fork()
        if child == 0:
            os._exit(0 if made.encode(texts)[0].sum() == here else 3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert out == "0"
    assert "forked" not in errors  # the warning that tokenizers prints where its threads were in use


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("engine", "megabytes"), [("Fastokens", 80), ("Reference", 8)])
def test_memory_stays_flat_over_words_never_seen_before(engine, megabytes):
    out, _ = run_alone(f"""
        from pathlib import Path
        import numpy as np
        from shardprep.formats.engines import {engine}
        made = {engine}(Path("sample/tokenizer.json").read_text())
        rng = np.random.default_rng(1)
        def new_words():
            letters = rng.choice(np.frombuffer(b"bcdfghjklmnpqrstaeiou", np.uint8), 1_000_000)
            letters[rng.integers(0, len(letters), len(letters) // 9)] = 32
            letters[::20_000] = 10
            return letters.tobytes().decode().split("\\n")
        def resident():
            for _ in range({megabytes}):
                made.encode_batch(new_words())
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
        first = resident()
        print(round(resident() - first))
    """)
    assert int(out) < 20  # MB


def test_the_spec_is_all_that_an_encoder_needs_beside_the_bytes():
    spec = TokenizerSpec.from_json(resolve(BERT).to_json())
    assert listed(load_encoder(BERT, spec).encode(["hello world"])) == [[101, 7592, 2088, 102]]
