# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection is built, installed into an empty folder, and used from there without this checkout."""

from __future__ import annotations

import json
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.tree import COLLECTION, PLAYBOOKS, PLUGINS, ROLES, ROOT, run

SHIPPED_FOLDERS = {"changelogs", "docs", "extensions", "meta", "playbooks", "plugins", "roles"}
SHIPPED_FILES = {
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "SECURITY.md",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the archive that `ansible-galaxy collection build` makes of this checkout."""
    folder = tmp_path_factory.mktemp("build")
    result = run("ansible-galaxy", "collection", "build", ROOT, "--output-path", folder, cwd=folder)
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def installed(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with this collection only; its dependencies come with the `ansible` package."""
    folder = tmp_path_factory.mktemp("installed")
    home = tmp_path_factory.mktemp("home")
    result = run(
        "ansible-galaxy", "collection", "install", "--force", archive, "--offline", "-p", folder,
        cwd=home, collections=folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert [path.name for path in (folder / "ansible_collections").iterdir() if path.is_dir()] == ["llama_cpp"]
    return folder


@pytest.fixture
def refused_port() -> Iterator[int]:
    """Yield a loopback port that is bound, so that no other program gets it, and on which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def test_archive_holds_what_ships_and_nothing_else(archive: Path) -> None:
    with tarfile.open(archive) as content:
        members = [Path(name) for name in content.getnames()]
    folders = {path.parts[0] for path in members if len(path.parts) > 1}
    files = {path.parts[0] for path in members if len(path.parts) == 1} - folders
    assert folders - SHIPPED_FOLDERS == set()
    assert files - SHIPPED_FILES - SHIPPED_FOLDERS == set()
    assert SHIPPED_FILES - files == set()
    hidden = [str(path) for path in members if "__pycache__" in path.parts or path.name.startswith(".")]
    assert hidden == []


def test_archive_holds_every_role_plugin_and_playbook(archive: Path) -> None:
    with tarfile.open(archive) as content:
        names = set(content.getnames())
    assert {f"roles/{role}/meta/argument_specs.yml" for role in ROLES} - names == set()
    assert {f"playbooks/{playbook}.yml" for playbook in PLAYBOOKS} - names == set()
    plugins = {str(path.relative_to(ROOT)) for path in (ROOT / "plugins").rglob("*.py")}
    assert plugins - names == set()
    assert {name for name in names if name.startswith("extensions/") and name.endswith(".yml")} == {
        f"extensions/eda/{name}.yml" for name in ("rulebooks/heal", "vars/heal")
    }


@pytest.mark.parametrize("kind", sorted({plugin.kind for plugin in PLUGINS}))
def test_installed_documentation_is_shown(installed: Path, tmp_path: Path, kind: str) -> None:
    names = [plugin.fqcn for plugin in PLUGINS if plugin.kind == kind]
    result = run("ansible-doc", "--json", "--type", kind, *names, cwd=tmp_path, collections=installed)
    assert result.returncode == 0, result.stderr
    pages = json.loads(result.stdout)
    assert sorted(pages) == sorted(names)
    assert all(Path(page["doc"]["filename"]).is_relative_to(installed) for page in pages.values())


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_installed_playbook_is_found_by_name(installed: Path, tmp_path: Path, playbook: str) -> None:
    result = run("ansible-playbook", "--syntax-check", f"{COLLECTION}.{playbook}", cwd=tmp_path, collections=installed)
    assert result.returncode == 0, result.stderr


def test_installed_plugins_work(installed: Path, tmp_path: Path, refused_port: int) -> None:
    report = tmp_path / "report.json"
    tasks = [
        {
            "name": "A worker that is not there is described, which is no failure",
            f"{COLLECTION}.rpc_worker_info": {"endpoints": [f"127.0.0.1:{refused_port}"], "timeout": 5},
            "register": "info",
        },
        {
            "name": "The filter and the module's answer go into a file",
            "ansible.builtin.copy": {
                "content": (
                    "{{ {'workers': info.workers, 'all_ready': info.all_ready, 'endpoints': "
                    f"['localhost'] | {COLLECTION}.rpc_endpoints(hostvars)}} | to_json }}}}"
                ),
                "dest": str(report),
                "mode": "0600",
            },
        },
    ]
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    result = run("ansible-playbook", playbook, cwd=tmp_path, collections=installed)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(report.read_text())
    assert found["all_ready"] is False
    assert [worker["state"] for worker in found["workers"]] == ["refused"]
    assert found["endpoints"] == ["localhost:50052"]
