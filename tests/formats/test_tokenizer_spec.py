import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, processors

from shardprep.core.block import offsets_of
from shardprep.errors import ConfigError, TokenizerError
from shardprep.formats.backends import load_encoder
from shardprep.formats.tokenizer import Tokenizer, TokenizerSpec, closed, frame, resolve, spec_of

TESTS = Path(__file__).parents[1]
BYTE = (TESTS / "cases/tok/byte.json").read_bytes()
BYTE_EOS = (TESTS / "cases/tok/byte-eos.json").read_bytes()
BYTE_NOEOS = (TESTS / "cases/tok/byte-noeos.json").read_bytes()
BERT = (TESTS / "tokenizers/bert_wordpiece.json").read_bytes()
GPT2 = (TESTS.parent / "sample/tokenizer.json").read_bytes()


def words(*special, ordinary=(), processor=None):
    """A tokenizer of words split at blanks: id 0 is the unknown word, then hello, world, then the added tokens."""
    vocabulary = {"[UNK]": 0, "hello": 1, "world": 2}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(special))
    made.add_tokens(list(ordinary))
    if processor is not None:
        made.post_processor = processor(made)
    return made


def file_of(made):
    return made.to_str().encode()


def encoded(data, spec, *texts, backend="reference"):
    ids, offsets = load_encoder(data, spec, backend).encode(texts)
    return [ids[a:b].tolist() for a, b in pairwise(offsets)]


# One end token per document


@pytest.mark.parametrize("data", [BYTE, BYTE_EOS], ids=["plain", "template ends in it"])
@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_c17_each_document_ends_in_exactly_one_end_token(data, backend):
    rows = encoded(data, resolve(data), "hi", "a\nb", " ", backend=backend)
    assert rows == [[104, 105, 256], [97, 10, 98, 256], [32, 256]]


def test_c17_no_end_token_stops_and_names_the_flags():
    with pytest.raises(TokenizerError, match=r"no end token.*--eos-token TEXT_OR_ID, or --no-eos"):
        resolve(BYTE_NOEOS)
    assert encoded(BYTE_NOEOS, resolve(BYTE_NOEOS, no_eos=True), "hi") == [[104, 105]]
    given_id = resolve(BYTE_NOEOS, eos_token="256")
    assert encoded(BYTE_NOEOS, given_id, "hi") == [[104, 105, 256]]
    assert given_id.vocab_size == 257
    assert "id 256 is beyond the file's 256 ids: the model needs 257 embedding rows" in given_id.notes


def test_an_end_token_that_the_template_repeats_is_there_once():
    assert closed((5, 256, 256), 256) == (5, 256)
    assert closed((), 256) == (256,)
    assert closed((102,), 256) == (102, 256)


def test_the_end_token_comes_from_the_flag_then_config_then_template_then_well_known_names():
    made = words(
        "<a>", "<b>", "</s>", "<|endoftext|>",
        processor=lambda t: processors.TemplateProcessing(single="$A <b>", special_tokens=[("<b>", 4)]),
    )  # fmt: skip
    data = file_of(made)
    config = b'{"eos_token": {"content": "<a>"}}'
    found = [
        resolve(data, config, eos_token="</s>"),
        resolve(data, config),
        resolve(data, b'{"eos_token": null}'),
    ]
    assert [(s.eos_id, s.suffix) for s in found] == [(5, (4, 5)), (3, (4, 3)), (4, (4,))]
    assert [s.notes[0].rpartition("from ")[2] for s in found] == [
        "--eos-token", "tokenizer_config.json", "the file's template",
    ]  # fmt: skip
    made.post_processor = None
    made.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    assert resolve(file_of(made)).eos_id == 6  # <|endoftext|> stands before </s> in the list


def test_a_well_known_name_counts_among_special_tokens_alone():
    data = file_of(words(ordinary=["</s>"]))  # as in Gemma's file, where it is HTML's strike tag
    with pytest.raises(TokenizerError, match="no end token"):
        resolve(data)
    assert resolve(data, eos_token="</s>").eos_id == 3


def test_the_end_of_a_turn_is_not_taken_for_the_end_of_a_document():
    with pytest.raises(TokenizerError, match="no end token"):
        resolve(file_of(words("<|im_end|>", "<|eot_id|>")))


@pytest.mark.parametrize(
    ("flag", "id_"),
    [("</s>", 4), ("4", 4), ("7", 3), ("hello", 1), ("900", 900)],
    ids=["text", "id", "added token spelt like a number", "ordinary token", "id beyond the file"],
)
def test_a_flag_names_a_token_by_text_or_id(flag, id_):
    spec = resolve(file_of(words("7", "</s>")), eos_token=flag)
    assert (spec.eos_id, spec.suffix) == (id_, (id_,))
    assert spec.vocab_size == max(5, id_ + 1)


def test_a_number_that_is_also_an_ordinary_word_is_an_id():
    assert resolve(BERT, eos_token="102").suffix == (102,)  # BERT has the word "102", which is id 9402


@pytest.mark.parametrize("flags", [{"eos_token": "<nope>"}, {"pad_token": "<nope>"}, {"eos_token": str(2**31)}])
def test_a_flag_that_names_no_token_is_a_wrong_call(flags):
    with pytest.raises(ConfigError, match=r"no such token\. Its special tokens: '</s>'|ids are int32"):
        resolve(file_of(words("</s>")), **flags)


def test_eos_token_and_no_eos_exclude_each_other():
    with pytest.raises(ConfigError, match="exclude each other"):
        resolve(BYTE, eos_token="256", no_eos=True)


@pytest.mark.parametrize("config", [b"{", b"[]", b'{"eos_token": "<gone>"}'])
def test_a_config_that_cannot_be_right_stops_the_job(config):
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        resolve(BYTE, config)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b"hello\nworld\n"])
def test_a_file_that_is_no_tokenizer_json_says_what_is_needed(data):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        resolve(data)


# Template


def test_bert_puts_cls_before_and_sep_after():
    spec = resolve(BERT)
    assert (spec.prefix, spec.suffix, spec.eos_id, spec.pad_id) == ((101,), (102,), 102, 0)
    assert encoded(BERT, spec, "hello world") == [[101, 7592, 2088, 102]]
    assert encoded(BERT, resolve(BERT, no_template=True), "hello world") == [[7592, 2088, 102]]
    assert encoded(BERT, resolve(BERT, no_template=True, no_eos=True), "hello world") == [[7592, 2088]]


def test_no_eos_leaves_the_template_and_says_so():
    spec = resolve(BERT, no_eos=True)
    assert (spec.suffix, spec.eos_id) == ((102,), None)
    assert any("still puts '[SEP]' (102) after each text" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("processor", "prefix", "suffix"),
    [
        (lambda t: processors.BertProcessing(("</s>", 4), ("<s>", 3)), (3,), (4,)),
        (lambda t: processors.RobertaProcessing(("</s>", 4), ("<s>", 3)), (3,), (4,)),
        (lambda t: processors.ByteLevel(), (), (4,)),
        (
            lambda t: processors.Sequence(
                [
                    processors.ByteLevel(trim_offsets=False),
                    processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", 3)]),
                ]
            ),
            (3, 3),
            (4,),
        ),
        (
            lambda t: processors.TemplateProcessing(single="$A </s> <s>", special_tokens=[("<s>", 3), ("</s>", 4)]),
            (),
            (4, 3, 4),
        ),
    ],
    ids=["bert", "roberta", "byte level", "sequence", "something after the end token"],
)
def test_every_kind_of_template_is_applied(processor, prefix, suffix):
    data = file_of(words("<s>", "</s>", processor=processor))
    spec = resolve(data, b'{"eos_token": "</s>"}')
    assert (spec.prefix, spec.suffix) == (prefix, suffix)
    assert encoded(data, spec, "hello world", "") == [[*prefix, 1, 2, *suffix], [*prefix, *suffix]]


def test_a_template_that_says_the_text_twice_is_refused():
    twice = processors.TemplateProcessing(single="$A </s> $A", special_tokens=[("</s>", 3)])
    made = words("</s>", processor=lambda t: twice)
    with pytest.raises(TokenizerError, match="--no-template"):
        resolve(file_of(made))
    assert resolve(file_of(made), no_template=True).suffix == (3,)


@pytest.mark.parametrize("backend", ["reference", "fast"])
@pytest.mark.parametrize(
    "change", [lambda d: d + b" " * 5_000_000, lambda d: b"\xef\xbb\xbf" + d], ids=["blanks", "mark"]
)
def test_blanks_after_the_file_and_a_byte_order_mark_before_it_change_nothing(change, backend):
    data = change(BYTE)
    assert encoded(data, resolve(data), "hi", backend=backend) == [[104, 105, 256]]


# Padding, truncation, sampling


def test_truncation_and_padding_of_the_file_are_switched_off_and_reported():
    spec = resolve(BERT)
    assert "the file's truncation to 128 tokens is switched off" in spec.notes
    assert "the file's padding is switched off" in spec.notes
    for backend in ("reference", "fast"):
        assert [len(row) for row in encoded(BERT, spec, "hello " * 500, "", backend=backend)] == [502, 2]


def test_the_padding_token_comes_from_flag_then_config_then_file_then_end_token():
    made = words("</s>", "<a>", "<b>", "<c>")
    made.enable_padding(pad_id=6, pad_token="<c>")
    data = file_of(made)
    assert resolve(data, b'{"pad_token": "<b>"}', pad_token="<a>").pad_id == 4
    assert resolve(data, b'{"pad_token": "<b>"}').pad_id == 5
    assert resolve(data, b'{"pad_token": "<gone>"}').pad_id == 6
    made.no_padding()
    assert resolve(file_of(made)).pad_id == 3
    assert resolve(file_of(made), no_eos=True).pad_id is None
    assert "padding token '</s>' (3), from the end token" in resolve(file_of(made)).notes


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_random_sampling_of_ids_is_switched_off(backend):
    file = json.loads(GPT2)
    file["model"]["dropout"] = 0.5
    data = json.dumps(file).encode()
    spec = resolve(data)
    assert "the file's random sampling of ids (dropout) is switched off" in spec.notes
    text = "internationalization of tokenizers " * 20
    assert encoded(data, spec, text, backend=backend) == encoded(GPT2, resolve(GPT2), text)


# Special tokens inside texts


def specials_in_texts(data, spec, backend):
    names = list(spec.special)
    rows = encoded(data, spec, *[f"x{name} {name}y {name}" for name in names], *names, backend=backend)
    start, stop = len(spec.prefix), len(spec.suffix)
    for row, name in zip(rows, names + names, strict=True):
        assert spec.special[name] not in row[start : len(row) - stop], name


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("data", [BYTE, GPT2], ids=["byte", "gpt2"])
def test_special_tokens_in_a_text_are_text(data, backend):
    specials_in_texts(data, resolve(data), backend)


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_special_tokens_in_a_text_are_text_for_bert_too_but_for_the_unknown_one(backend):
    spec = resolve(BERT)
    rows = encoded(BERT, spec, "a [CLS] b [SEP]", "[MASK][PAD]", "plain", backend=backend)
    assert rows[0] == [101, 1037, 1031, 18856, 2015, 1033, 1038, 1031, 19802, 1033, 102]
    assert not {0, 100, 103} & set(rows[1])
    assert len(rows[2]) == 3


@pytest.mark.parametrize(
    "kind", ["words at blanks", "unigram"], ids=["a word of the vocabulary", "a piece of the vocabulary"]
)
def test_special_tokens_that_the_model_itself_would_find_in_a_text_are_text(kind):
    if kind == "unigram":
        pieces = [("<unk>", 0.0), ("</s>", 0.0), *[(c, -2.0) for c in "</s>ab"], ("ab", -1.0), (" ", -2.0)]
        made = tokenizers.Tokenizer(models.Unigram(list(dict(pieces).items()), unk_id=0))
        made.add_special_tokens(["<unk>", "</s>"])
    else:
        made = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1, "ab": 2}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        made.add_special_tokens(["</s>"])
    data = file_of(made)
    literal = tokenizers.Tokenizer.from_str(data.decode())
    literal.encode_special_tokens = True
    assert 1 in literal.encode("ab </s>").ids  # the file as it is does not keep the promise
    spec = resolve(data)
    assert "</s>" in spec.literal
    [row] = encoded(data, spec, "ab </s>")
    assert row[-1] == 1
    assert 1 not in row[:-1]
    assert row[0] == literal.encode("ab").ids[0]


def test_a_special_token_that_the_model_is_built_on_stays_a_word_and_is_reported():
    made = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "abb": 3}, [("a", "b"), ("ab", "b")]))
    made.add_special_tokens(["ab"])
    data = file_of(made)
    spec = resolve(data, eos_token="ab")
    assert encoded(data, spec, "abb", "ab") == [[3, 2], [2, 2]]
    assert spec.literal == ()
    assert "'ab' in a text gives the token's own id: the model has it as an ordinary word" in spec.notes


@pytest.mark.parametrize("backend", ["reference", "fast"])
def test_an_end_token_that_the_file_calls_ordinary_is_text_inside_texts(backend):
    made = tokenizers.Tokenizer.from_str(BYTE_NOEOS.decode())
    made.add_tokens(["<end>", "<word>"])
    data = file_of(made)
    spec = resolve(data, eos_token="<end>")
    assert encoded(data, spec, "a<end>", "<word>", backend=backend) == [[97, *b"<end>", 256], [257, 256]]
    assert any("2 added tokens that the file calls not special" in note for note in spec.notes)


def test_an_end_token_that_is_an_ordinary_token_stays_one_in_texts():
    spec = resolve(BYTE, eos_token="10")
    assert encoded(BYTE, spec, "a\n", "b") == [[97, 10, 10], [98, 10]]
    assert any("is an ordinary one: it may stand inside texts too" in note for note in spec.notes)


# The value itself


def test_the_spec_goes_through_json_unchanged():
    for spec in (resolve(BERT), resolve(GPT2), resolve(BYTE_NOEOS, eos_token="256")):
        assert TokenizerSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_fingerprint_and_vocabulary_size():
    spec = resolve(GPT2)
    assert spec.fingerprint == hashlib.sha256(GPT2).hexdigest()
    assert spec.vocab_size == 50257
    holes = words("</s>")
    holes.add_special_tokens([AddedToken("<far>")])
    assert resolve(file_of(holes)).vocab_size == 5


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6),
    st.lists(st.integers(10, 19), max_size=3),
    st.lists(st.integers(20, 29), max_size=3),
)
def test_frame_puts_prefix_and_suffix_around_each_row(rows, prefix, suffix):
    ids = np.array([i for row in rows for i in row], dtype=np.int32)
    framed, offsets = frame(ids, offsets_of(np.array([len(r) for r in rows], dtype=np.int64)), prefix, suffix)
    found = [framed[a:b].tolist() for a, b in pairwise(offsets)]
    assert found == [[*prefix, *row, *suffix] for row in rows]
    assert (framed.dtype, offsets.dtype) == (np.int32, np.int64)


# A tokenizer object


class Bytes:
    fingerprint = hashlib.sha256(b"bytes").hexdigest()
    vocab_size = 257
    eos_id = 256

    def encode_batch(self, texts):
        rows = [np.frombuffer(text.encode(), np.uint8) for text in texts]
        return np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)])


class Bare(Bytes):
    eos_id = None


def test_a_tokenizer_object_brings_its_end_token_or_gets_one_by_id():
    assert isinstance(Bytes(), Tokenizer)
    assert (spec_of(Bytes()).suffix, spec_of(Bytes()).pad_id) == ((256,), 256)
    assert spec_of(Bytes(), no_eos=True).suffix == ()
    spec = spec_of(Bare(), eos_token="300", pad_token="301")
    assert (spec.suffix, spec.pad_id, spec.vocab_size) == ((300,), 301, 302)
    assert encoded(Bare(), spec, "hi", "") == [[104, 105, 300], [300]]


def test_a_tokenizer_object_without_end_token_stops_the_job():
    with pytest.raises(TokenizerError, match="Bare has no end token: give it an attribute eos_id, or --eos-token ID"):
        spec_of(Bare())
    with pytest.raises(ConfigError, match="takes an id here"):
        spec_of(Bare(), eos_token="</s>")
    with pytest.raises(ConfigError, match="exclude each other"):
        spec_of(Bytes(), eos_token="1", no_eos=True)


@pytest.mark.parametrize("size", [0, -1, 2**31, 1.5, True, None])
def test_a_tokenizer_object_with_an_impossible_vocabulary_is_refused(size):
    odd = Bytes()
    odd.vocab_size = size
    with pytest.raises(TokenizerError, match="vocab_size must be"):
        spec_of(odd)


def test_a_tokenizer_object_without_fingerprint_is_refused():
    odd = Bytes()
    odd.fingerprint = ""
    with pytest.raises(TokenizerError, match="fingerprint"):
        spec_of(odd)
