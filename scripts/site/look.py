# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the built site: links and anchors have a target, images have a text, and no file comes from another site."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The attributes whose address a browser fetches by itself.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "link": "href"}


class Page(HTMLParser):
    """The ids, links and images of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.unlabelled: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the ids, links, files and unlabelled images of a tag."""
        found = dict(attrs)
        self.ids |= {found[name] or "" for name in ("id", "name") if name in found}
        if tag == "a" and found.get("href"):
            self.links.add(found["href"] or "")
        if FETCHED.get(tag) in found:
            self.fetched.add(found[FETCHED[tag]] or "")
        if tag == "img" and not (found.get("alt") or "").strip():
            self.unlabelled.append(found.get("src") or "")


def problems(site: Path) -> list[str]:
    """Return the problems of the site, one line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: image {source} has no text for those who do not see it" for source in page.unlabelled]
        for link in sorted(page.links | page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.fetched and parts.scheme != "data":
                    found.append(f"{name}: {link} would be fetched from elsewhere")
                continue
            aim = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not aim.is_file():
                found.append(f"{name}: the link leads to {link}, which is not there")
            elif parts.fragment and aim in pages and unquote(parts.fragment) not in pages[aim].ids:
                found.append(f"{name}: {link} has no such anchor")
    return found


def main() -> int:
    """Print the problems, and return 1 if there are any."""
    found = problems(Path(sys.argv[1]).resolve())
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
