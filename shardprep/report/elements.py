"""What every page is made of: one self-contained document, cards, tables. No scripts, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

Cell = str | int
RIGHT = ' class="n"'


def document(title: str, body: str, more_css: str = "") -> str:
    """Return a whole page with the house's style in it; body is HTML, title is text."""
    css = files("shardprep.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}{more_css}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def cards(items: Iterable[tuple[str, str]]) -> str:
    """Return large numbers with what each of them says."""
    inner = "".join(f"<li><b>{escape(number)}</b><span>{escape(says)}</span></li>" for number, says in items)
    return f'<ul class="cards">{inner}</ul>'


def scroll(inner: str) -> str:
    """Return something wide in a box of its own that scrolls."""
    return f'<div class="scroll">{inner}</div>'


def folded(summary: str, heads: Sequence[str], body: Sequence[Sequence[Cell]]) -> str:
    """Return a table that opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>{table(heads, body)}</details>"


def table(heads: Sequence[str], body: Sequence[Sequence[Cell]], code: int | None = None) -> str:
    """Return a table; columns of numbers, with gaps or not, are right-aligned; the cells of column `code` are set as code."""
    right = [_is_right([row[i] for row in body]) for i in range(len(heads))]
    head = f"<thead><tr>{_cells('th', heads, right, None)}</tr></thead>" if any(heads) else ""
    rows = "".join(f"<tr>{_cells('td', row, right, code)}</tr>" for row in body)
    return scroll(f"<table>{head}<tbody>{rows}</tbody></table>")


def _is_right(column: Sequence[Cell]) -> bool:
    filled = [cell for cell in column if cell != ""]
    return bool(filled) and all(_is_number(cell) for cell in filled)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int) or cell[:1].isdigit()


def _cells(tag: str, cells: Iterable[Cell], right: Sequence[bool], code: int | None) -> str:
    texts = [f"{cell:,}" if isinstance(cell, int) else escape(cell) for cell in cells]
    return "".join(
        f"<{tag}{RIGHT if right[i] else ''}>{f'<code>{text}</code>' if i == code else text}</{tag}>"
        for i, text in enumerate(texts)
    )
