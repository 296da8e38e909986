# SPDX-License-Identifier: GPL-3.0-or-later
"""Use llama.cpp's chat page as a person does: give the key, type, and see the answer come."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from support.browser import Page

KEY_FIELD = "document.querySelector('#api-key-input')"
TEXT_FIELD = "[...document.querySelectorAll('textarea, [role=textbox]')].find(e => e.checkVisibility())"
ANSWER = "([...document.querySelectorAll('.chat-message-assistant')].at(-1)?.innerText ?? '')"


def give_key(page: Page, key: str) -> None:
    """Give the page the key that it has asked for."""
    button = "[...document.querySelectorAll('button')].find(e => e.innerText.includes('Enter API Key'))"
    page.wait(f"Boolean({button} || {KEY_FIELD})")
    page.run(f"{KEY_FIELD} || {button}.click()")
    page.wait(f"Boolean({KEY_FIELD} && !{KEY_FIELD}.disabled)")
    page.run(f"{KEY_FIELD}.focus(); {KEY_FIELD}.select()")
    page.type(key)


def ask(page: Page, text: str) -> list[int]:
    """Send a text; return the length of the answer each time that it had grown, until it has not grown for 3 s."""
    page.wait(f"Boolean({TEXT_FIELD})")
    page.run(f"{TEXT_FIELD}.focus()")
    page.type(text)
    page.wait(f"document.body.innerText.includes({json.dumps(text)})")
    lengths: list[int] = []
    grown = time.monotonic()
    deadline = grown + 120
    while time.monotonic() < deadline and (not lengths or time.monotonic() - grown < 3):
        length = page.run(f"{ANSWER}.length")
        if length > (lengths[-1] if lengths else 0):
            lengths.append(length)
            grown = time.monotonic()
        time.sleep(0.05)
    return lengths


def asked_elsewhere(page: Page, origin: str) -> list[str]:
    """Return the URLs that the page has requested from other origins than this one."""
    urls = [event["request"]["url"] for event in page.said("Network.requestWillBeSent")]
    assert any(url.startswith(origin) for url in urls), "no request was seen at all"
    return [url for url in urls if not url.startswith((f"{origin}/", "data:", "blob:"))]


def picture(page: Page, folder: Path) -> None:
    """Save a picture of the page for a person to look at."""
    folder.mkdir(parents=True, exist_ok=True)
    page.show(1200)
    # The bars of the page stay where the window is.
    page.screenshot(folder / "chat-page.png", whole=False)
