# SPDX-License-Identifier: GPL-3.0-or-later
"""The prose linter names the place, the words, and better ones; it leaves code out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.tree import ROOT

PAGE = """# A page

The cluster is up, and all
is well.

Run `all is well` or [Github](https://example.com/all-is-well).

```text
all is well
```

| Github | nothing but |

1. A step:

   ```text
   all is well
   ```

   After a `block` in a list, this is nothing but `prose`.
"""


def read(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts/prose.py"), str(page)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_what_is_found_has_its_line_and_a_better_word(tmp_path: Path) -> None:
    done = read(tmp_path, PAGE)
    assert (done.returncode, done.stderr) == (1, "")
    place = tmp_path / "page.md"
    assert done.stdout.splitlines() == [
        f'{place}:3: instead of "all is well" write: healthy [vocabulary.plain]',
        f'{place}:6: instead of "Github" write: GitHub [vocabulary.exact]',
        f'{place}:12: instead of "Github" write: GitHub [vocabulary.exact]',
        f'{place}:12: instead of "nothing but" write: only [vocabulary.plain]',
        f'{place}:20: instead of "nothing but" write: only [vocabulary.plain]',
    ]


def test_a_plain_page_passes(tmp_path: Path) -> None:
    done = read(tmp_path, "# A page\n\nThe cluster is healthy. If a host fails, the command exits with 1.\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
