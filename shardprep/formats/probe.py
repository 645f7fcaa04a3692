"""Whether a fast backend gives the reference's ids: nasty texts, built by code, compared id by id.

The kinds of text are those on which tokenizers have differed: emoji and joiners, scripts without blanks, right to
left, composed and decomposed letters, odd blanks and digits, controls, special tokens' own spellings, every code
point, long runs, and a long document (which a backend may cut to work on in parallel).
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardprep.errors import TokenizerError
from shardprep.formats.engines import Engine, Ragged, Reference, Unusable, fast_engine, versions
from shardprep.formats.tokenizer import TokenizerSpec
from shardprep.formats.tokenizer_file import decoded, plain_text

__all__ = ["PROBE_VERSION", "Difference", "Verdict", "compare", "nasty_texts", "verdict", "verdict_key"]

PROBE_VERSION = 1  # counts changes of the texts: an older verdict does not stand for them
BATCH = 256
LONG_CHARS = 200_000
SWEEP_STEP = 512  # code points in one text of the sweep,
WORD_STEP = 32  # and in one word of it: WordPiece gives one unknown token for words above 100 characters


@dataclass(frozen=True)
class Difference:
    """The first text whose ids differ, its number, and the ids of both."""

    index: int
    text: str
    reference: tuple[int, ...]
    fast: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """What the probe found.

    ok        the fast backend gave the reference's ids for every text
    why       else: what was different, or why there is no fast backend
    backend   name of the fast backend, "" where there is none
    seconds   that the probe took, loading included
    versions  of the packages that were compared
    """

    ok: bool
    why: str
    backend: str
    seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {**vars(self), "versions": dict(self.versions)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_json` wrote. Raises ValueError for anything else."""
        if set(value) != set(cls.__dataclass_fields__) or not isinstance(value["ok"], bool):
            raise ValueError("not a verdict")
        return cls(**value)


def verdict(data: bytes, spec: TokenizerSpec) -> Verdict:
    """Compare the fast backend with the reference for the tokenizer.json in `data`; never raises for a difference."""
    start = time.perf_counter()
    text = plain_text(decoded(data), spec.literal, sampling=spec.sampling)
    reference = Reference(text)

    def told(ok: bool, why: str, backend: str) -> Verdict:
        return Verdict(ok, why, backend, round(time.perf_counter() - start, 3), versions())

    try:
        fast = fast_engine(text, lambda: reference)
    except Unusable as error:
        return told(ok=False, why=str(error), backend="")
    try:
        found = compare(reference, fast, nasty_texts(spec))
    except TokenizerError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic in Rust is a BaseException, and a verdict too
        return told(
            ok=False, why=f"{fast.name} failed on the probe: {type(error).__name__}: {error}", backend=fast.name
        )
    if found is None:
        return told(ok=True, why="", backend=fast.name)
    shown = found.text if len(found.text) <= 40 else found.text[:40] + "..."
    why = f"{fast.name} gives other ids than the reference for {shown!a} (text {found.index} of the built-in probe)"
    return told(ok=False, why=why, backend=fast.name)


def verdict_key(spec: TokenizerSpec, installed: Mapping[str, str]) -> str:
    """Return the name under which a verdict is kept: sha256 hex of the tokenizer, the versions and the probe's own."""
    known = [PROBE_VERSION, spec.fingerprint, list(spec.literal), spec.sampling, sorted(installed.items())]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def compare(reference: Engine, fast: Engine, texts: Sequence[str]) -> Difference | None:
    """Return the first difference between two engines over the texts, None where there is none."""
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        right, mine = reference.encode_batch(part), fast.encode_batch(part)
        if np.array_equal(right[0], mine[0]) and np.array_equal(right[1], mine[1]):
            continue
        for i, text in enumerate(part):
            theirs, ours = _row(right, i), _row(mine, i)
            if theirs != ours:
                return Difference(start + i, text, theirs, ours)
    return None


def _row(rows: Ragged, index: int) -> tuple[int, ...]:
    ids, offsets = rows
    return tuple(ids[offsets[index] : offsets[index + 1]].tolist())


def nasty_texts(spec: TokenizerSpec) -> list[str]:
    """Return the texts of the probe, the same in every run; those about special tokens are this tokenizer's."""
    short = [*_SHORT, *_specials(spec.special), *_fuzz()]
    return [*short, *_runs(), *_sweep(), _long(short)]


_SHORT = (
    "",
    " ",
    "a",
    "\ufeffbom",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\U0001f44d\U0001f3fd\u2764\ufe0f\U0001f1e9\U0001f1ea\U0001f1eb 1\ufe0f\u20e3 \u263a\ufe0e",
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u3002\uff21\uff22\uff23\uff11\uff12",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u30ab\u30bf\u30ab\u30ca\uff76\uff9e\u30fc",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab\u1100\u116e\u11a8 \u314e\u314f\u3134",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0640\u0640 \u0661\u0662\u0663",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u202eabc\u202c \u200f\u200e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0915\u094d\u0937",
    "caf\u00e9 cafe\u0301 \u00c5 A\u030a \u212b \ufb01 \u1e9b\u0323 \u0344 \u2126 \u00df \u0130 \u0131 \u03c3\u03c2",
    "Z\u0351\u036b\u0343\u036a\u0302A\u0334\u0335\u031c\u0330\u0354L\u0328\u0347\u0348G\u0321\u0353O\u031b\u0322",
    "\u0300\u0301start with marks \u200b\u200c\u200d\u2060\u00ad soft",
    "\x00\x01\x02\x07\x08\x0b\x0c\x0e\x1b\x7f\x80\x85\x9f end",
    "\ue000\uf8ff\U000f0000\U0010fffd\ufffd\uffff\ufdd0",
    "1 12 123 1234 12345 1,234.56 0x1F 1e-9 \u0967\u0968\u0969 \u2160\u2161 \u00b2\u00b3\u00bd",
    "\U0001d7d8\U0001d7d9 \u3007",
    "a\u00a0b\u2003c\u2009d\u3000e\u1680f\u2028g\u2029h\u202fi\u205fj\u180ek",
    "  two   three    four\t\ttabs \n\n lines \r\n crlf \r cr\n \n  \n   x \t\n",
    "trailing   ",
    "\n",
    "\n\n\n",
    " \n \n",
    "x\n\n\n\ny\r\n\r\nz",
    "I'm you're he's WE'LL they'D don't 'tis rock'n'roll o'clock 'S 'll ''ve \u2019s it\u2019ll 'M\u017f",
    "HelloWORLD helloWorld XMLHttpRequest snake_case __init__ kebab-case a.b.c C++ C# f(x)=x**2;",
    "https://example.com/a?b=c&d=%20#e user@host.org C:\\dir\\file.txt ~/.x /usr/bin <a href='x'>&amp;</a>",
    "def f(a: int) -> str:\n    return f'{a!r:>10}'  # comment\n\tif x:\n\t\tpass\n",
    '{"k": [1, 2.5, null, "\\u00e9"], "z": {}}\n```py\n$x^2$ \\frac{1}{2}\n```',
    "...!!!???,,,;;;:::---___***###$$$%%%^^^&&&((()))[[[]]]{{{}}}<<<>>>///\\\\\\|||~~~```",
    "\u2026\u2014\u2013\u00ab\u00bb",
    "antidisestablishmentarianism Donaudampfschifffahrtsgesellschaftskapit\u00e4n",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "\u01c5 \u01c8 \u02b0 \u00aa \u16ee \u2180 \u24b6 \u1d2c \u0903 \u20dd \u0488",
    "\U00010400\U00010428 \U00020000\U0002a6d6 \U00012000 \U0001f11a \U0001d54f \U000e0100",
    "\u2581under\u2581line \u0120g \u010a <0x0A> <0xE2><0x96><0x81> ##ing [unused1] \u0110",
)


def _specials(special: Mapping[str, int]) -> Iterator[str]:
    for name in list(special)[:300]:
        yield from (
            name,
            f"x{name}y",
            f" {name} \n{name}{name}",
            name[:-1],
            name.lower(),
            f"{name[:1]}\u200b{name[1:]}",
        )
    yield "".join(list(special)[:50])
    yield "<|endoftext|> <|im_end|></s><s>[CLS][SEP][MASK]<pad><unk><mask> <|fim_prefix|><think></think><tool_call>"


def _fuzz() -> Iterator[str]:
    """Yield random mixtures: the generator's stream is part of the probe, since Mersenne twister is fixed for ever."""
    rng = random.Random(20240229)  # noqa: S311 - not for secrets
    pieces = [
        *" \n\t\r'\"-_.,!?0123456789aAzZ\u00e9\u00df\u4e2d\u0301\u200d\u00a0\u3000\U0001f600",
        *(
            "the",
            " and",
            "ING",
            "'s",
            "  ",
            "\n\n",
            "12",
            "e\u0301",
            "\u0915\u094d",
            "\uac00",
            "\u0644\u0627",
            "::",
            "=>",
        ),
    ]
    for _ in range(400):
        yield "".join(rng.choices(pieces, k=rng.randint(1, 40)))
    ranges = ((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE80))
    more = (
        (0x1100, 0x1200),
        (0x2000, 0x2100),
        (0x3040, 0x3100),
        (0x4E00, 0x9FFF),
        (0xAC00, 0xD7A4),
        (0x1F300, 0x1FB00),
    )
    for _ in range(300):
        low, high = rng.choice(ranges + more)
        yield "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 30)))


def _runs() -> Iterator[str]:
    for unit in (
        "a",
        " ",
        "\n",
        "\t",
        "=",
        "0",
        "ab",
        "\u4e2d",
        "\U0001f600",
        "e\u0301",
        "\u0301",
        "\r\n",
        " a",
        "A",
        "-",
    ):
        for length in (2, 3, 7, 64, 257, 3000):
            yield (unit * length)[:length]


def _sweep() -> Iterator[str]:
    """Yield every code point between letters and between blanks; surrogates are none."""
    points = [p for p in range(0x110000) if not 0xD800 <= p <= 0xDFFF and not _unassigned(p)]
    for start in range(0, len(points), SWEEP_STEP):
        part = [chr(p) for p in points[start : start + SWEEP_STEP]]
        words = ("a" + "a".join(part[k : k + WORD_STEP]) + "a" for k in range(0, len(part), WORD_STEP))
        yield " ".join((*words, *part))


def _unassigned(point: int) -> bool:
    """Say whether a point lies in planes 4 to 13, all unassigned; or in private use planes, of which edges are kept."""
    return 0x40000 <= point < 0xE0000 or (0xE1000 <= point < 0x10FF00 and point % 251 != 0)


def _long(short: Sequence[str]) -> str:
    """Return one long document of all the short texts, in random order, with prose between."""
    rng = random.Random(7)  # noqa: S311 - not for secrets
    prose = "The quick brown fox, aged 12, jumps over 3 lazy dogs; it's \u00fcber-sch\u00f6n!\n"
    parts: list[str] = []
    chars = 0
    while chars < LONG_CHARS:
        parts.append(rng.choice(short) + rng.choice((" ", "\n", "", prose)))
        chars += len(parts[-1])
    return "".join(parts)
