#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a picture for a page from a screenshot of the tests: `scripts/picture.py SCREENSHOT.png FILE.webp [HEIGHT]`.

Chromium compresses it. With a height, in pixels, only the top of the screenshot is in the picture.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from support.browser import browser, installed_browser


def main() -> int:
    """Open the screenshot, and write what the browser shows."""
    if len(sys.argv) not in {3, 4}:
        sys.exit("usage: scripts/picture.py SCREENSHOT.png FILE.webp [HEIGHT]")
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder, browser(installed_browser(), Path(folder) / "profile") as page:
        show = Path(folder) / "show.html"
        show.write_text(f'<body style="margin:0"><img src="{source.as_uri()}" style="display:block">', encoding="utf-8")
        page.show(1280)
        page.open(show)
        size = page.run("[document.images[0].naturalWidth, document.images[0].naturalHeight]")
        height = min(size[1], int(sys.argv[3])) if len(sys.argv) > 3 else size[1]
        answer = page.call(
            "Page.captureScreenshot",
            format="webp",
            quality=70,
            clip={"x": 0, "y": 0, "width": size[0], "height": height, "scale": 1},
            captureBeyondViewport=True,
        )
        target.write_bytes(base64.b64decode(answer["data"]))
    print(f"{target}: {size[0]} x {height} pixels, {target.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
