# SPDX-License-Identifier: GPL-3.0-or-later
"""Build llama.cpp's chat page from its source (tools/ui) as one HTML file that loads nothing from elsewhere.

Role llama_cpp runs this on the controller. npm verifies each package by the digest in the source's lock file. It is one
file because llama-server asks for a key for every other path that `--path` serves, and a browser sends none for a
script or a picture. Standard library only.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

# Model output, and what a person has pasted, must not make the browser ask other hosts for something: neither pictures
# in an answer, nor the page's own catalogue of models and its library on a CDN.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "base-uri 'self'; form-action 'none'; frame-src data: blob:; object-src 'none'"
)
# What is written otherwise: the file, upstream's text, and ours.
CHANGES = (
    ("svelte.config.js", "bundleStrategy: 'single'", "bundleStrategy: 'inline'"),
    ("vite.config.ts", "assetsInlineLimit: 32000", "assetsInlineLimit: Infinity"),
    # A service worker is a file of its own, and browsers run none from an address without TLS.
    (
        "vite.config.ts",
        "SvelteKitPWA(SVELTEKIT_PWA_OPTIONS)",
        "SvelteKitPWA({ ...SVELTEKIT_PWA_OPTIONS, disable: true })",
    ),
)
HEAD = '<meta charset="utf-8" />'
LINK = re.compile(r'\s*<link rel="(?:icon|apple-touch-icon|manifest)"[^>]*/>')


class PageError(Exception):
    """The page cannot be built; says why."""


def change(source: Path) -> None:
    """Make it one file, with its icon in it and its policy before all else."""
    for name, before, after in CHANGES:
        text = (source / name).read_text(encoding="utf-8")
        if before not in text and after not in text:
            message = f"{name} of this source has no {before}, so that its page is not built as this role knows"
            raise PageError(message)
        (source / name).write_text(text.replace(before, after), encoding="utf-8")
    template = source / "src/app.html"
    text = template.read_text(encoding="utf-8")
    if "Content-Security-Policy" in text:
        return
    icon = base64.b64encode((source / "src/lib/assets/logo.svg").read_bytes()).decode()
    head = (
        f'{HEAD}\n\t\t<meta http-equiv="Content-Security-Policy" content="{POLICY}" />'
        f'\n\t\t<link rel="icon" type="image/svg+xml" href="data:image/svg+xml;base64,{icon}" />'
    )
    template.write_text(LINK.sub("", text).replace(HEAD, head, 1), encoding="utf-8")


def run(source: Path, *command: str) -> None:
    """Run a program, whose output is ours."""
    environment = {**os.environ, "npm_config_cache": str(source / ".npm"), "CI": "true", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=source, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        message = (
            f"{Path(command[0]).name} {command[1]} ended with exit status {done.returncode}; its last lines are above"
        )
        raise PageError(message)


def build(source: Path) -> bytes:
    """Return the page."""
    change(source)
    run(source, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    run(source, "node_modules/.bin/vite", "build")
    page = (source / "dist/index.html").read_bytes()
    if b"Content-Security-Policy" not in page or b"./_app/immutable/" in page:
        message = "what was built is not one file with our policy in it"
        raise PageError(message)
    return page


def is_whole(page: Path, digest: Path) -> bool:
    """Whether the page is there, as it was built."""
    try:
        return hashlib.sha256(page.read_bytes()).hexdigest() == digest.read_text(encoding="ascii").strip()
    except OSError:
        return False


def keep(content: bytes, page: Path, digest: Path) -> None:
    """Put it in place; the digest is written last."""
    for path, data in ((page, content), (digest, f"{hashlib.sha256(content).hexdigest()}\n".encode())):
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(data)
        new.replace(path)


def give_way() -> None:
    """Let all other processes go first: programs are needed before their page is."""
    os.nice(19)
    # Linux may share the processors among sessions, and then looks at this value.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


def main() -> int:
    """Build it, unless another run has."""
    parser = argparse.ArgumentParser(description="Build llama.cpp's chat page as one HTML file.")
    parser.add_argument("source", type=Path, help="folder tools/ui of llama.cpp's source; it is removed afterwards")
    parser.add_argument("page", type=Path, help="the HTML file to make; beside it comes its digest")
    args = parser.parse_args()
    digest = args.page.with_name(f"{args.page.name}.sha256")
    give_way()
    try:
        if not is_whole(args.page, digest):
            keep(build(args.source.resolve()), args.page, digest)
    except (OSError, PageError) as error:
        print(f"error: {error}")
        return 1
    shutil.rmtree(args.source, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
