# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of docs/reference/results-and-failures.md from the modules' documentation.

Run `.venv/bin/python scripts/reference.py`. With --check it writes nothing, and exits with 1 if the page would change.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/results-and-failures.md"
# For each heading: the module, and the path in its results to a value whose description lists its choices. If the path
# is empty, the rows are the results themselves.
TABLES: dict[str, tuple[str, list[str]]] = {
    "Results of a run": ("distributed_inference", []),
    "Failures of a run": ("distributed_inference", ["failure", "kind"]),
    "States of a worker": ("rpc_worker_info", ["workers", "state"]),
    "States of an API": ("llama_server_info", ["servers", "state"]),
    "States of a group behind a gateway": ("llama_gateway_info", ["groups", "state"]),
    "States of a tunnel": ("rpc_tunnel_info", ["state"]),
}
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def results(module: str) -> dict[str, Any]:
    """Return the documented results of a module."""
    text = (ROOT / f"plugins/modules/{module}.py").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text.partition('RETURN = r"""')[2].partition('"""')[0]))


def plain(description: str | list[str]) -> str:
    """Return a description as Markdown."""
    text = description if isinstance(description, str) else " ".join(description)
    # Keep the last part of a plugin's name. Of all other markup keep the enclosed text.
    text = re.sub(r"\b[PM]\((?:\w+\.)*(\w+)(?:#\w+)?\)", r"`\1`", text)
    return re.sub(r"\b(?:RV|[VOC])\(([^)]+)\)", r"`\1`", text)


def rows(module: str, way: list[str]) -> list[tuple[str, str]]:
    """Return the rows of a table: names and their descriptions."""
    found = results(module)
    if not way:
        return [(name, plain(it["description"])) for name, it in found.items()]
    *outer, last = way
    for name in outer:
        found = found[name]["contains"]
    pairs = [re.fullmatch(r"V\((\w+)\): (.+)", it) for it in found[last]["description"]]
    return [(it[1], plain(it[2])) for it in pairs if it]


def page() -> str:
    """Return the page with its tables as the modules document them."""
    text = PAGE.read_text(encoding="utf-8")
    for heading, (module, way) in TABLES.items():
        before, found, after = text.partition(f"\n## {heading}\n")
        if not found:
            raise SystemExit(
                f"{PAGE.relative_to(ROOT)} has no heading {heading}: write it, or change scripts/reference.py."
            )
        head = ("key", "what it is") if not way else (way[-1], "what it means")
        lines = [head, ("--", "--"), *((f"`{name}`", said) for name, said in rows(module, way))]
        table = "".join(f"| {name} | {said} |\n" for name, said in lines).replace("| -- | -- |", "|--|--|")
        text = before + found + TABLE.sub(table.replace("\\", r"\\"), after, count=1)
    return text


def main() -> int:
    """Write the page, or check whether it is up to date; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the tables of a page from the modules' documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if the page would change")
    check = parser.parse_args().check
    text = page()
    if text == PAGE.read_text(encoding="utf-8"):
        return 0
    print(f"{PAGE.relative_to(ROOT)} {'is not as the modules document it' if check else 'is written'}")
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    return int(check)


if __name__ == "__main__":
    sys.exit(main())
