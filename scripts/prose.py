# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the pages with proselint and with scripts/vocabulary.yml; says file, line, and what to write instead.

Arguments are the pages; without them it reads README.md, docs and the READMEs of the roles. Code is left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml
from proselint.checks import __register__ as its_checks
from proselint.registry.checks import Check, types
from proselint.registry.checks.engine import Fast, Padding, RegexOptions

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "roles/*/README.md")
# Of proselint's, those that find mistakes in technical pages. The others judge typography and matters of taste.
CHECKS = (
    "archaism", "cliches", "hedging", "industrial_language", "malapropisms", "mixed_metaphors", "mondegreens",
    "needless_variants", "nonwords", "oxymorons", "redundancy", "social_awareness", "uncomparables",
)  # fmt: skip
# What is no prose: code, targets of links, HTML, front matter, tables' rules.
NO_PROSE = re.compile(
    r"^---\n.*?^---$|^[ ]*(`{3,})[^\n]*\n.*?^[ ]*\1`*$|^(?: {4}|\t)[^\n]*$|"
    r"`[^`]+`|(?<=\])\([^)\s]+\)|<[^>\n]+>|^\|[-| :]+\|$",
    re.MULTILINE | re.DOTALL,
)


def own_checks() -> list[Check]:
    """Return the vocabulary as checks of proselint."""
    words = yaml.safe_load((ROOT / "scripts/vocabulary.yml").read_text(encoding="utf-8"))
    return [
        Check(
            check_type=types.PreferredForms(
                {phrase.replace(" ", r"\s+"): instead for phrase, instead in words[kind].items()},
                padding=Padding.WORDS_IN_TEXT,
            ),
            path=f"vocabulary.{kind}",
            message='instead of "{1}" write: {0}',
            engine=Fast(opts=RegexOptions(case_insensitive=kind == "plain")),
        )
        for kind in ("plain", "exact")
    ]


def prose(text: str) -> str:
    """Return the text with blanks for what is no prose, so that all that is left stays where it is."""

    def blank(found: re.Match[str]) -> str:
        # Code within a sentence is a word of it.
        return re.sub(r"[^\n]", "x" if found[0].startswith("`") and not found[0].startswith("```") else " ", found[0])

    text = NO_PROSE.sub(blank, text)
    # A sentence goes on in the next line.
    return re.sub(r"(?<=[^\n])\n(?=[^\n\s|#*-])", " ", text)


def findings(text: str, checks: list[Check]) -> list[tuple[int, str]]:
    """Return the lines, and what is wrong there."""
    # Checks look for something before and after a word.
    read = f"\n{prose(text)}\n"
    found = set()
    for check in checks:
        for result in check.check_with_flags(read):
            start = result.span[0] + len(read[result.span[0] :]) - len(read[result.span[0] :].lstrip())
            found.add(
                (
                    text.count("\n", 0, max(0, start - 1)) + 1,
                    f"{' '.join(result.message.split())} [{result.check_path}]",
                )
            )
    return sorted(found)


def main() -> int:
    """Read the pages."""
    pages = [Path(name) for name in sys.argv[1:]] or sorted({page for name in PAGES for page in ROOT.glob(name)})
    checks = [check for check in its_checks if check.path.split(".")[0] in CHECKS] + own_checks()
    failed = False
    for page in pages:
        for line, message in findings(page.read_text(encoding="utf-8"), checks):
            failed = True
            print(f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{line}: {message}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
