# SPDX-License-Identifier: GPL-3.0-or-later
"""Record commands as an SVG in which their lines appear as they did.

`scripts/record.py FILE.svg -- make demo` records one command. `scripts/record.py FILE.svg <COMMANDS` records the lines
of standard input, which one shell runs: each appears before its output. Lines of standard output and standard error
scroll as in a terminal. Waits are shortened to half a second, and more if the picture would move for over a minute; it
says how long the run took. If a reader asks for reduced motion, the last lines are there at once. A command that fails
is not recorded.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 120, 36
LONGEST_WAIT_S, LONGEST_S = 0.5, 60
LINE_PX, CHARACTER_PX, MARGIN_PX = 18, 7.85, 16
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f]")


def run(command: list[str]) -> tuple[list[tuple[float, str]], float]:
    """Run the command, and return its lines, each with its time in seconds, and its duration in seconds."""
    begin = time.monotonic()
    lines = []
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append((time.monotonic() - begin, neutral(line)))
    if process.returncode:
        sys.exit(f"error: the command ended with exit status {process.returncode}; nothing was written.")
    return lines, time.monotonic() - begin


def neutral(line: str) -> str:
    """Return the line without this machine's folders and without colours."""
    for folder, name in ((str(Path.cwd()), "."), (str(ROOT), "."), (str(Path.home()), "~")):
        line = line.replace(folder, name)
    return CONTROL.sub("", line.rstrip("\n").expandtabs())


def wrapped(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the lines, wrapped to the width and with shortened waits."""
    begun = [0.0, *(at for at, _line in lines)]
    waits = [min(at - before, LONGEST_WAIT_S) for before, at in zip(begun, begun[1:])]
    share = min(1, LONGEST_S / max(sum(waits), 1))
    shown = []
    now = 0.0
    for wait, (_at, line) in zip(waits, lines):
        now += wait * share
        shown += [(now, part) for part in textwrap.wrap(line, COLUMNS, drop_whitespace=False) or [""]]
    return shown


def scrolling(shown: list[tuple[float, str]]) -> str:
    """Return the CSS that moves the lines up by one row for each new line that does not fit."""
    end = max(shown[-1][0], 0.01)
    moves = {at: LINE_PX * max(0, number + 1 - ROWS) for number, (at, _line) in enumerate(shown)}
    steps = "".join(f"{at / end:.4%} {{ transform: translateY(-{up}px) }}\n" for at, up in moves.items())
    last = f"transform: translateY(-{moves[shown[-1][0]]}px)"
    return f".lines {{ {last}; animation: scroll {end:.2f}s step-end both }}\n@keyframes scroll {{\n{steps}}}"


def picture(title: str, lines: list[tuple[float, str]], took_s: float) -> str:
    """Return the SVG of a recording."""
    shown = wrapped(lines)
    width = round(COLUMNS * CHARACTER_PX + 2 * MARGIN_PX)
    inner = min(len(shown), ROWS) * LINE_PX
    height = inner + LINE_PX + 3 * MARGIN_PX
    note = f"A run of {took_s:.0f} s. Waits are shortened."
    rows = "".join(
        f'<text y="{LINE_PX * (number + 1) - 4}" style="animation-delay:{at:.2f}s">{escape(line)}</text>\n'
        for number, (at, line) in enumerate(shown)
        if line.strip()
    )
    head = 'xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc"'
    return f"""<svg {head} viewBox="0 0 {width} {height}">
<!-- SPDX-License-Identifier: GPL-3.0-or-later; written by scripts/record.py from a real run -->
<title id="title">{escape(title)}</title>
<desc id="desc">What a terminal showed. {note}</desc>
<style>
rect {{ fill: #14181d }}
text {{ fill: #e8edf2; font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }}
text {{ animation: come 0.01s both }}
.note {{ fill: #a5afba; animation: none }}
@keyframes come {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}
{scrolling(shown)}
@media (prefers-reduced-motion: reduce) {{ text, .lines {{ animation: none }} }}
</style>
<rect width="{width}" height="{height}" rx="8"/>
<svg x="{MARGIN_PX}" y="{MARGIN_PX}" width="{width - 2 * MARGIN_PX}" height="{inner}">
<g class="lines">
{rows}</g>
</svg>
<text class="note" x="{MARGIN_PX}" y="{height - MARGIN_PX}">{note}</text>
</svg>
"""


def shell(commands: list[str]) -> list[str]:
    """Return a command that runs these lines in one shell, and prints each before it runs, as a terminal shows it."""
    return ["bash", "-ec", "".join(f"printf '$ %s\\n' {shlex.quote(line)}\n{line}\n" for line in commands)]


def main() -> int:
    """Record the command in the arguments, or those of standard input, and write the SVG."""
    if len(sys.argv) == 2:
        commands = sys.stdin.read().splitlines()
    elif len(sys.argv) > 3 and sys.argv[2] == "--":
        commands = [shlex.join(sys.argv[3:])]
    else:
        sys.exit("usage: python scripts/record.py FILE.svg -- COMMAND..., or FILE.svg <COMMANDS")
    lines, took_s = run(shell(commands))
    Path(sys.argv[1]).write_text(picture("; ".join(commands), lines, took_s), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
