# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a picture for a page from a screenshot or a report: `scripts/picture.py FILE.png|FILE.html TO.webp [HEIGHT]`.

Chromium renders and compresses it. With a height in pixels, the picture has only the top.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from support.browser import browser, installed_browser


def main() -> int:
    """Open the file, and write what the browser shows."""
    if len(sys.argv) not in {3, 4}:
        sys.exit("usage: python scripts/picture.py FILE.png|FILE.html TO.webp [HEIGHT]")
    source, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder, browser(installed_browser(), Path(folder) / "profile") as page:
        page.show(1200)
        if source.suffix == ".png":
            show = Path(folder) / "show.html"
            show.write_text(f'<body style="margin:0"><img src="{source.as_uri()}" style="display:block">', "utf-8")
            page.open(show)
        else:
            page.open(source)
        shown = "document.images[0]" if source.suffix == ".png" else "document.documentElement"
        width, full = page.run(
            f"[{shown}.naturalWidth || {shown}.scrollWidth, {shown}.naturalHeight || {shown}.scrollHeight]"
        )
        height = min(full, int(sys.argv[3])) if len(sys.argv) > 3 else full
        answer = page.call(
            "Page.captureScreenshot",
            format="webp",
            quality=70,
            clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
            captureBeyondViewport=True,
        )
        target.write_bytes(base64.b64decode(answer["data"]))
    print(f"{target}: {width} x {height} pixels, {target.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
