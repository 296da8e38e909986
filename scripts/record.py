# SPDX-License-Identifier: GPL-3.0-or-later
"""Records a command as an SVG in which its lines appear as they did: `scripts/record.py FILE.svg -- make demo`.

Waits of more than two seconds are shortened to two; the picture says how long the run took. If a reader asks for
reduced motion, all lines are there at once. Standard error is in it, as in a terminal. A command that fails is not
recorded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from html import escape
from pathlib import Path

COLUMNS = 120
LONGEST_WAIT_S = 2.0
LINE_PX, CHARACTER_PX, MARGIN_PX = 18, 7.85, 16
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f]")


def run(command: list[str]) -> tuple[list[tuple[float, str]], float]:
    """Return the lines with the seconds at which they came, and how long it took."""
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
    """Return the line as any reader's terminal would have it: without the folders of this machine and its colours."""
    for folder, name in ((str(Path.cwd()), "."), (str(Path.home()), "~")):
        line = line.replace(folder, name)
    return CONTROL.sub("", line.rstrip("\n").expandtabs())


def wrapped(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return lines that fit the width, with their waits shortened."""
    shown = []
    now = before = 0.0
    for at, line in lines:
        now += min(at - before, LONGEST_WAIT_S)
        before = at
        shown += [(now, part) for part in textwrap.wrap(line, COLUMNS, drop_whitespace=False) or [""]]
    return shown


def picture(title: str, lines: list[tuple[float, str]], took_s: float) -> str:
    """Return the SVG."""
    shown = [(0.0, f"$ {title}"), *wrapped(lines)]
    width = round(COLUMNS * CHARACTER_PX + 2 * MARGIN_PX)
    height = (len(shown) + 1) * LINE_PX + 2 * MARGIN_PX
    note = f"A run of {took_s:.0f} s. Waits of more than {LONGEST_WAIT_S:.0f} s are shortened."
    top = MARGIN_PX + LINE_PX
    rows = "".join(
        f'<text x="{MARGIN_PX}" y="{top + LINE_PX * number}" style="animation-delay:{at:.2f}s">{escape(line)}</text>\n'
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
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none }} }}
</style>
<rect width="{width}" height="{height}" rx="8"/>
{rows}<text class="note" x="{MARGIN_PX}" y="{height - MARGIN_PX}">{note}</text>
</svg>
"""


def main() -> int:
    """Record."""
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit("usage: python scripts/record.py FILE.svg -- COMMAND...")
    lines, took_s = run(sys.argv[3:])
    Path(sys.argv[1]).write_text(picture(" ".join(sys.argv[3:]), lines, took_s), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
