# SPDX-License-Identifier: GPL-3.0-or-later
"""Test of llama.cpp's chat page of a master: a browser on this machine opens it, and it leaves nothing behind."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from serve.api import API_PORT, client, key, playbook, serves
from support.browser import browser, installed_browser
from support.chat_page import ask, asked_elsewhere, give_key
from support.lab.hosts import ADDRESS, ssh, words

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = f"/usr/local/lib/llama_server/pages/{API_PORT}"


def test_the_page_is_served_chats_and_goes(tmp_path: Path) -> None:
    assert client(None).request("/")[0] in (401, 404)
    try:
        checked = playbook("serve", "--check", "--diff", llama_server_ui=True)
        assert set(re.findall(r"failed=(\d+)", checked.stdout)) == {"0"}
        assert ssh("master", "test", "-e", FOLDER, check=False).returncode != 0
        done = playbook("serve", timeout=1800, llama_server_ui=True)
        assert "Its chat page is at the same address, without /v1." in words(done)
        serves(key(), 90)
        assert client(None).request("/")[0] == 200
        assert set(re.findall(r"changed=(\d+)", playbook("serve", llama_server_ui=True).stdout)) == {"0"}
        origin = f"http://{ADDRESS['master']}:{API_PORT}"
        with browser(installed_browser(), tmp_path / "profile") as page:
            page.open(f"{origin}/")
            give_key(page, key())
            assert len(ask(page, "knock knock")) > 3, "the answer came at once"
            assert asked_elsewhere(page, origin) == []
    finally:
        playbook("serve")
    serves(key(), 90)
    assert client(None).request("/")[0] != 200
    assert ssh("master", "test", "-e", FOLDER, check=False).returncode != 0
