# SPDX-License-Identifier: GPL-3.0-or-later
"""llama.cpp's chat page, built from the pinned source, in a real browser over a real service.

The tests are marked long: the first run builds the page, which needs Node.js, npm's registry and minutes.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.api_service import KEY, Service, service_over_two
from support.browser import Page, browser, installed_browser
from support.chat_page import ask, asked_elsewhere, give_key, picture
from support.harness import CACHE, ROOT, Release

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.llama, pytest.mark.long]

PLAY = [
    {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"llama_cpp_targets": ["llama-server"]},
        "tasks": [
            {"ansible.builtin.include_role": {"name": "llama_cpp.cluster.llama_cpp", "tasks_from": "page"}},
            {"ansible.builtin.copy": {"content": "{{ llama_cpp_page.path }}", "dest": "{{ where }}", "mode": "0644"}},
        ],
    }
]


@pytest.fixture(scope="session")
def chat_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the page; role llama_cpp builds it unless the cache has it."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "play.json").write_text(json.dumps(PLAY))
    program = Path(sys.executable).with_name("ansible-playbook")
    python = ("-e", f"ansible_python_interpreter={sys.executable}")
    subprocess.run(
        [program, "-i", "localhost,", "-c", "local", "-e", f"where={folder}/path", *python, folder / "play.json"],
        cwd=ROOT,
        check=True,
        timeout=1800,
    )
    served = folder / "served"
    served.mkdir()
    shutil.copy((folder / "path").read_text(), served / "index.html")
    return served


@pytest.fixture
def service(release: Release, model: Path, chat_page: Path, tmp_path: Path) -> Iterator[Service]:
    with service_over_two(release, model, tmp_path, ("--path", str(chat_page))) as running:
        yield running


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(installed_browser(), tmp_path / "profile") as opened:
        yield opened


def test_a_person_gives_the_key_types_and_sees_the_answer_stream(service: Service, page: Page) -> None:
    origin = f"http://127.0.0.1:{service.port}"
    assert service.request("/", key=None)[0] == 200
    assert service.request("/index.html", key=None)[0] == 401
    page.open(f"{origin}/")
    give_key(page, "key-of-somebody-else")
    page.wait("document.body.innerText.includes('Invalid API key')")
    give_key(page, KEY)
    lengths = ask(page, "knock knock")
    picture(page, CACHE / "screenshots")
    assert len(lengths) > 3, "the answer came at once"
    assert asked_elsewhere(page, origin) == []


def test_nothing_in_an_answer_makes_the_browser_ask_somebody_else(service: Service, page: Page) -> None:
    page.open(f"http://127.0.0.1:{service.port}/")
    page.wait("document.readyState === 'complete'")
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}/told"
        page.run("""
            window.refused = [];
            document.addEventListener('securitypolicyviolation', event => refused.push(event.violatedDirective));
        """)
        page.run(f"document.body.append(Object.assign(new Image(), {{src: {json.dumps(url)}}}))")
        page.run(f"fetch({json.dumps(url)}).catch(() => 0); 0")
        page.wait("refused.length >= 2")
        assert set(page.run("refused")) == {"img-src", "connect-src"}
        stranger.settimeout(1)
        with pytest.raises(TimeoutError):
            stranger.accept()
