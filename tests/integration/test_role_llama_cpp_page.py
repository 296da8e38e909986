# SPDX-License-Identifier: GPL-3.0-or-later
"""Role `llama_cpp` builds the chat page and keeps it, run by a real ansible-playbook.

Source, Node.js and npm are stand-ins, so that a build takes no time. test_chat_page.py uses the real ones.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.harness import ROOT, completed
from support.stand_in_source import PAGE_SOURCE, Run, digest, ended, started

BUILD = ROOT / "roles/llama_cpp/files/page/build_page.py"
PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {"ansible.builtin.include_role": {"name": "llama_cpp.cluster.llama_cpp", "tasks_from": "page"}},
            {"ansible.builtin.debug": {"msg": "The page: {{ llama_cpp_page.path }}"}},
        ],
    }
]
NODE = """#!/bin/sh
echo "$NODE_VERSION"
[ "$NODE_VERSION" ]
"""
NPM = """#!/bin/sh
[ "$1" != --version ] || { echo 10.8.2; exit; }
[ -z "$NPM_ERROR" ] || { echo "npm error code $NPM_ERROR"; exit 1; }
mkdir -p node_modules/.bin
cat >node_modules/.bin/vite <<'END'
#!/bin/sh
mkdir -p dist && cp src/app.html dist/index.html && echo built >>"$BUILDS"
END
chmod +x node_modules/.bin/vite
"""


class Controller:
    """A controller with a cache, an archive of a page's source, and stand-ins for Node.js and npm."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.builds = folder, folder / "cache", folder / "builds"
        (folder / "play.yml").write_text(json.dumps(PLAY))
        (folder / "bin").mkdir()
        for name, text in (("node", NODE), ("npm", NPM)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def pack(self, **changes: str) -> dict[str, Any]:
        """Pack a source; return the variables that name it. A keyword replaces the file whose name begins with it."""
        top = self.folder / "source"
        for name, text in PAGE_SOURCE.items():
            path = top / "src/tools/ui" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(changes.get(path.stem.split(".")[0], text))
        archive = self.folder / "source.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(top / "src", "src")
        return {
            "llama_cpp_archive": str(archive),
            "llama_cpp_sha256": digest(archive),
            "llama_cpp_archive_subdir": "src",
            "llama_cpp_patches": [],
            "llama_cpp_allow_vulnerable": True,
        }

    def run(self, source: dict[str, Any], *options: str, **environment: str) -> Run:
        given = {"llama_cpp_targets": ["llama-server"], **source}
        own = {"LLAMA_CPP_CLUSTER_CACHE": str(self.cache), **self.environment, **environment}
        return ended(started(self.folder, given, *options, **own))

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a run finds the stand-ins, and the settings of the stand-ins."""
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return {"PATH": path, "BUILDS": str(self.builds), "NODE_VERSION": "v20.19.0"}

    @property
    def built(self) -> int:
        return len(self.builds.read_text().splitlines()) if self.builds.exists() else 0


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def test_it_is_built_once_as_one_file_and_again_when_it_is_damaged(controller: Controller) -> None:
    source = controller.pack()
    seen = controller.run(source, "--check")
    assert seen.holds("chat page would be built on the controller"), seen.text
    assert controller.built == 0
    first = controller.run(source)
    assert first.code == 0, first.text
    (page,) = (controller.cache / "pages").glob("*.html")
    assert first.holds(f"The page: {page}")
    text = page.read_text()
    assert text.index("Content-Security-Policy") < text.index("data:image/svg+xml;base64,")
    assert "manifest" not in text
    assert "favicon.ico" not in text
    assert not page.with_name(f"{page.name}.source").exists(), "what takes a gigabyte is gone"
    second = controller.run(source)
    assert (second.code, second.changed, controller.built) == (0, 0, 1), second.text
    page.write_text(text + " ")
    again = controller.run(source)
    assert (again.code, controller.built, page.read_text()) == (0, 2, text), again.text


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("", "no Node.js"),
        pytest.param("v18.20.4", "Node.js 18.20.4", marks=pytest.mark.long),
        pytest.param("v22.12.0", "Node.js 22.12.0", marks=pytest.mark.long),
    ],
)
def test_a_controller_without_a_new_node_is_told_so(controller: Controller, version: str, said: str) -> None:
    failed = controller.run(controller.pack(), NODE_VERSION=version)
    assert failed.code != 0
    assert failed.holds(f"and the controller has {said}: install what is missing there"), failed.text
    assert controller.built == 0


def test_after_a_failed_build_the_next_run_goes_on(controller: Controller) -> None:
    source = controller.pack()
    failed = controller.run(source, NPM_ERROR="EINTEGRITY")
    assert failed.code != 0
    assert failed.holds("npm error code EINTEGRITY", "error: npm ci ended with exit status 1"), failed.text
    assert not list(controller.cache.glob("pages/*.html*sha256"))
    again = controller.run(source)
    assert (again.code, controller.built) == (0, 1), again.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"svelte": "export default {};\n"}, "svelte.config.js of this source has no bundleStrategy: 'single'"),
        ({"app": "<html></html>\n"}, "what was built is not one file with our policy in it"),
    ],
    ids=["other-configuration", "other-template"],
)
def test_a_source_that_is_built_otherwise_is_refused(
    controller: Controller, changes: dict[str, str], said: str
) -> None:
    controller.pack(**changes)
    page = controller.folder / "page.html"
    done = completed(sys.executable, BUILD, controller.folder / "source/src/tools/ui", page, **controller.environment)
    assert done.returncode == 1
    assert f"error: {said}" in done.stdout
    assert not page.exists()
