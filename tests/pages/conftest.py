# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of `make test-pages` have the addresses of the pages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.examples import MARKED, blocks_of
from support.harness import CACHE, ROOT
from support.hub_stand_in import running_hub
from support.lab.hosts import ADDRESS, LAB, NUMBER, at_once, close_connections, require_lab, ssh
from support.terminal import environment_of_a_user

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPILER_CACHE = (ROOT / "tests/support/ccache.sh").read_text()
# It would build the chat page in minutes, and other tests do.
NO_PROGRAM = "#!/bin/sh\nexit 127\n"
# What an image of a provider, or of the Raspberry Pi, has: an account that may become root.
LOG_IN = r"""
for user; do
    id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
    install -d -m 700 -o "$user" "/home/$user/.ssh"
    install -m 600 -o "$user" ~ops/.ssh/authorized_keys "/home/$user/.ssh/"
    echo "$user ALL=(ALL) NOPASSWD: ALL" >>/etc/sudoers.d/lab
done
"""


def pytest_sessionfinish() -> None:
    close_connections()


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="session")
def hosts() -> None:
    """Give the test hosts the accounts that pages name."""
    require_lab()
    users = sorted(
        {user for page in MARKED for block in blocks_of(page) for user in re.findall(r"\b(\w+)@", block.text)}
    )
    names = [name for name in ADDRESS if name != "outsider"]
    at_once(lambda name: ssh(name, "sh", "-euc", LOG_IN, "sh", *users, "pi"), names)


@pytest.fixture(scope="session")
def hub(hosts: None, trained_model: Path) -> Iterator[str]:  # noqa: ARG001 - the bridge has the address
    """Yield the address of a stand-in for the hub that has the trained model under the name on the pages."""
    bridge = f"10.87.{NUMBER}.1"
    files = {"gemma-3-1b-it-Q4_K_M.gguf": trained_model.read_bytes()}
    with running_hub(files, names=(bridge, bridge), repo="ggml-org/gemma-3-1b-it-GGUF") as running:
        yield running.endpoint


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository whose only commit is this checkout as it is, with what is not committed."""
    folder = tmp_path_factory.mktemp("checkout")
    git = [
        "git",
        f"--git-dir={folder}/.git",
        f"--work-tree={ROOT}",
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@localhost",
    ]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=This checkout"]):
        subprocess.run([*git, *command], check=True, timeout=60)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return an empty folder."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def user(home: Path, checkout: Path, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with an empty home, to whom github.com is this checkout.

    ssh reads its settings from the account's home, whatever HOME is. So it is told those of the lab here.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("ssh", "scp", "sftp"):
        _program(programs / name, f'#!/bin/sh\nexec /usr/bin/{name} -F {LAB}/ssh_config "$@"\n')
    _program(programs / "ccache", COMPILER_CACHE)
    for name in ("node", "npm"):
        _program(programs / name, NO_PROGRAM)
    return {
        **environment_of_a_user(home, programs),
        "CCACHE_DIR": str(CACHE / "ccache"),
        "CCACHE_BASEDIR": str(home),
        "CCACHE_NOHASHDIR": "1",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{checkout.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/llama-cpp-cluster/llama_cpp.cluster",
    }
