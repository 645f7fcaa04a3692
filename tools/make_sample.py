#!/usr/bin/env python3
"""Make sample/documents again: about 2,000 small JSON documents of public-domain English text.

    apt-get update && python3 tools/make_sample.py sample/documents --cache /tmp/sample-cache

Nobody needs this to use the sample: the documents are in the repository. It is here so that anyone can see
where each byte comes from. Needs Debian 12 on x86-64 (`apt-get download`, `dpkg-deb`; nothing is installed) and
only the standard library. The same package versions give the same bytes: no clock, no random numbers.

Sources, all in the public domain (sample/NOTICE has the words of each package):
    kjv     the King James Bible, one document per chapter           (packages bible-kjv, bible-kjv-text 4.38)
    jargon  the Jargon File 4.4.7, chapters and a choice of entries   (package jargon-text 4.4.7)
    sqlite  a choice of SQLite's manual pages                         (package sqlite3-doc 3.40.1)
"""

import argparse
import gzip
import hashlib
import html
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("bible-kjv", "bible-kjv-text", "jargon-text", "sqlite3-doc")
LABELS = {"kjv": 0, "jargon": 1, "sqlite": 2}
JARGON_ENTRIES = 690  # with 1,189 + 23 + 98 documents of the other kinds: 2,000
SQLITE_PAGES = 98
# The Jargon File is of its time. A sample that everybody runs does without its coarse entries.
COARSE = re.compile(
    r"\b(fuck|shit|bitch|whore|cunt|cock|dick\b|penis|vagina|sex|porn|nazi|hitler|rape|queer|gay\b|lesbian|gypsy|slut|"
    r"masturbat|retard|screw|suck|crap|ass\b|tits\b|negro|jew\b|pimp|orgasm|erotic|phall|pee\b|piss|fart|turd|wank|"
    r"bastard|bugger|homosexual|condom|drug|suicid)",
    re.IGNORECASE,
)
BOOKS = """Ge Genesis|Exo Exodus|Lev Leviticus|Num Numbers|Deu Deuteronomy|Josh Joshua|Jdgs Judges|Ruth Ruth
1Sm 1 Samuel|2Sm 2 Samuel|1Ki 1 Kings|2Ki 2 Kings|1Chr 1 Chronicles|2Chr 2 Chronicles|Ezra Ezra|Neh Nehemiah
Est Esther|Job Job|Psa Psalm|Prv Proverbs|Eccl Ecclesiastes|SSol Song of Solomon|Isa Isaiah|Jer Jeremiah
Lam Lamentations|Eze Ezekiel|Dan Daniel|Hos Hosea|Joel Joel|Amos Amos|Obad Obadiah|Jonah Jonah|Mic Micah
Nahum Nahum|Hab Habakkuk|Zep Zephaniah|Hag Haggai|Zec Zechariah|Mal Malachi|Mat Matthew|Mark Mark|Luke Luke
John John|Acts Acts|Rom Romans|1Cor 1 Corinthians|2Cor 2 Corinthians|Gal Galatians|Eph Ephesians
Phi Philippians|Col Colossians|1Th 1 Thessalonians|2Th 2 Thessalonians|1Tim 1 Timothy|2Tim 2 Timothy
Titus Titus|Phmn Philemon|Heb Hebrews|Jas James|1Pet 1 Peter|2Pet 2 Peter|1Jn 1 John|2Jn 2 John|3Jn 3 John
Jude Jude|Rev Revelation"""


def unpacked(package: str, cache: Path) -> Path:
    """Return the folder that holds a Debian package's files, fetched once."""
    folder = cache / package
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-q", package], cwd=cache, check=True, capture_output=True)
        (deb,) = cache.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", str(deb), str(folder)], check=True)
    return folder


def slug(title: str) -> str:
    """Return a title as a file name: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def chosen(documents: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """Return count documents, picked by the hash of their titles and kept in their order: a fair, fixed choice."""
    ranked = sorted(documents, key=lambda d: hashlib.sha256(d[0].encode()).digest())
    keep = {title for title, _ in ranked[:count]}
    return [d for d in documents if d[0] in keep]


def kjv(cache: Path) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of each chapter: one verse a line, its number before it."""
    program = unpacked("bible-kjv", cache) / "usr/bin/bible"
    data = unpacked("bible-kjv-text", cache) / "usr/lib"
    call = [str(program), "-p", str(data), "-f", "ge1:1-re22:21"]
    lines = subprocess.run(call, check=True, capture_output=True, text=True).stdout.splitlines()
    names = dict(pair.split(" ", 1) for pair in BOOKS.replace("\n", "|").split("|"))
    chapters: dict[str, list[str]] = {}
    for line in lines:
        place, verse = line.split(" ", 1)
        book, chapter, number = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):(\d+)", place).groups()
        chapters.setdefault(f"{names[book]} {chapter}", []).append(f"{number} {verse}")
    for title, verses in chapters.items():
        yield title, "\n".join(verses)


def jargon(cache: Path) -> Iterator[tuple[str, str]]:
    """Yield the essays (chapters before the lexicon, tales after it), then a choice of the lexicon's entries."""
    packed = unpacked("jargon-text", cache) / "usr/share/doc/jargon-text/jargon.txt.gz"
    lines = gzip.decompress(packed.read_bytes()).decode("utf-8").replace("\xa0", " ").splitlines()
    first, last = (
        next(i for i, line in enumerate(lines) if line.startswith("   :")),
        next(i for i, line in enumerate(lines) if line.startswith("Appendix A.")),
    )
    start = next(i for i, line in enumerate(lines) if line.startswith("Chapter 1."))
    end = next(i for i, line in enumerate(lines) if line == "Glossary")
    essays = []
    tales = next(i for i, line in enumerate(lines) if line.startswith("Appendix B."))
    for part in (lines[start:end], lines[last:tales]):
        heads = [i for i, line in enumerate(part) if re.match(r"[A-Z]\S* ", line)]
        essays += [
            (part[a], trimmed(part[a:b])) for a, b in zip(heads, [*heads[1:], len(part)], strict=True) if b - a > 12
        ]
    yield from essays
    heads = [i for i in range(first, last) if re.match(r"   :[^:].*?:", lines[i])]
    entries: dict[str, str] = {}
    for a, b in zip(heads, [*heads[1:], last], strict=True):
        title, text = re.match(r"   :(.+?):", lines[a]).group(1), trimmed(lines[a:b])
        if slug(title) and len(text) > 120 and not COARSE.search(text):
            entries.setdefault(title, text)
    yield from chosen(list(entries.items()), JARGON_ENTRIES)


def trimmed(lines: list[str]) -> str:
    """Return lines as text, without the left margin of three spaces."""
    return "\n".join(line.removeprefix("   ").rstrip() for line in lines).strip()


def sqlite(cache: Path) -> Iterator[tuple[str, str]]:
    """Yield the text of manual pages between 2,000 and 40,000 characters."""
    folder = unpacked("sqlite3-doc", cache) / "usr/share/doc/sqlite3"
    pages: dict[str, str] = {}
    for path in sorted(folder.glob("*.html")):
        if re.match(r"(releaselog|news|changes|chronology|matrix|copyright|syntax)", path.name):
            continue
        source = path.read_text("utf-8")
        head = re.search(r"<title>(.*?)</title>", source, re.DOTALL)
        title = html.unescape(head.group(1)).strip() if head else path.stem
        body = re.split(r"</script>", source, maxsplit=1)[-1]
        body = re.sub(r"<(script|style|svg).*?</\1>|<!--.*?-->", "", body, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]+>", "", body))
        text = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()
        if 2_000 < len(text) < 40_000 and not COARSE.search(text):
            pages.setdefault(title, text)
    yield from chosen(list(pages.items()), SQLITE_PAGES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for kjv/, jargon/ and sqlite/")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the fetched packages")
    options = parser.parse_args()
    cache = options.cache.resolve()
    for source, documents in (("kjv", kjv), ("jargon", jargon), ("sqlite", sqlite)):
        count = total = 0
        used: set[str] = set()
        for number, (title, text) in enumerate(documents(cache)):
            name = f"{slug(title)[:60]}" if slug(title)[:60] not in used else f"{slug(title)[:54]}-{number}"
            used.add(name)
            # Bible chapters get a folder per book, so that the sample has nested folders as real sources have.
            folder = options.out / source / (slug(title.rsplit(" ", 1)[0]) if source == "kjv" else name[0])
            folder.mkdir(parents=True, exist_ok=True)
            record = {"id": f"{source}/{name}", "title": title, "source": source, "label": LABELS[source], "text": text}
            data = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            (folder / f"{name}.json").write_bytes(data)
            count, total = count + 1, total + len(data)
        print(f"{source}: {count} documents, {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
