# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the pages with proselint and scripts/vocabulary.yml, and print file, line, and what to write instead.

Arguments are the pages. By default it checks the pages at the top, docs and the READMEs of the roles. It skips code.
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
PAGES = ("README.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "roles/*/README.md")
# The checks of proselint that find mistakes in technical pages. Its other checks judge typography and taste.
CHECKS = (
    "archaism", "cliches", "hedging", "industrial_language", "malapropisms", "mixed_metaphors", "mondegreens",
    "needless_variants", "nonwords", "oxymorons", "redundancy", "social_awareness", "uncomparables",
)  # fmt: skip
# Parts of a page that are not prose: code, targets of links, HTML, front matter, and the rules of tables.
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
    """Return the text with blanks instead of what is not prose, so that the rest keeps its position."""

    def blank(found: re.Match[str]) -> str:
        # Code within a sentence counts as a word.
        return re.sub(r"[^\n]", "x" if found[0].startswith("`") and not found[0].startswith("```") else " ", found[0])

    text = NO_PROSE.sub(blank, text)
    # A sentence continues in the next line.
    return re.sub(r"(?<=[^\n])\n(?=[^\n\s|#*-])", " ", text)


def findings(text: str, checks: list[Check]) -> list[tuple[int, str]]:
    """Return the problems, each with its line number."""
    # Checks need a character before and after each word.
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
    """Check the pages, and return 1 if one has a problem."""
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
