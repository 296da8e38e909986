# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the pieces of a page. Whatever comes from outside, such as names of hosts, is text in it, never markup."""

from __future__ import annotations

import html
import re
from typing import Sequence

from .._status.report import safe_text
from .benchmark_words import DASH, one_line


def escaped(value: object) -> str:
    """Return text for HTML, in an element or in a quoted attribute; null is a dash."""
    return DASH if value is None or value == "" else html.escape(one_line(value), quote=True)


def escaped_whole(text: str) -> str:
    """Return a sentence of our own, whole."""
    text = re.sub(r"(?<=\d) (?=%|[KMGT]iB\b|t/s\b|± )|(?<=±) ", "\u00a0", re.sub(r"\s+", " ", text))
    return html.escape(safe_text(text), quote=True)


def html_section(name: str, title: str, body: str) -> str:
    """Return a part of the page with a heading."""
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{title}</h2>\n{body}\n</section>'


def html_table(caption: str, header: Sequence[str], rows: str, text: Sequence[int] = ()) -> str:
    """Return a table in a box of its own, which scrolls by itself where it is too wide."""
    head = "".join(
        f'<th scope="col" class="text">{cell}</th>' if index in (0, *text) else f'<th scope="col">{cell}</th>'
        for index, cell in enumerate(header)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{caption}">\n<table>\n'
        f"<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>\n</table>\n</div>"
    )
