# SPDX-License-Identifier: GPL-3.0-or-later
"""The blocks of README and docs/start run as they stand, in an empty home; test hosts have the hosts' addresses."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.examples import MARKED, Block, blocks_of
from support.lab.hosts import ADDRESS, ssh, ssh_command
from support.terminal import Terminal, missing_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

# A page's addresses, and the test hosts that have them.
MASTER, FIRST, SECOND = "master", "worker1", "worker2"
HOSTS = {
    "README.md": {"203.0.113.10": MASTER, "203.0.113.11": FIRST, "203.0.113.12": SECOND},
    "raspberry-pi.md": {"192.168.1.20": MASTER, "192.168.1.21": FIRST, "192.168.1.22": SECOND},
    "two-cloud-instances.md": {
        "203.0.113.10": MASTER, "10.0.0.10": MASTER, "203.0.113.11": FIRST, "10.0.0.11": FIRST,
    },
}  # fmt: skip
PAGES = {page.name: page for page in MARKED}


@pytest.fixture
def terminal(home: Path, user: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(home, user, tmp_path)
    yield opened
    opened.close()


def in_the_lab(block: Block) -> str:
    """Return the text of a block, with the addresses of test hosts if its marker says so, and of no other hosts."""
    text = block.text
    if block.marker.endswith("with test hosts"):
        known = HOSTS[block.page.name]
        text = re.sub("|".join(map(re.escape, known)), lambda found: ADDRESS[known[found[0]]], text)
    assert block.language == "text" or not re.search(r"\b(?:203\.0\.113|192\.168|10\.0)\.", text), text
    return text


def write_inventory(path: Path, text: str, hub: str) -> None:
    """Write an inventory, and beside it what the test hosts' master needs: the address of the stand-in for the hub."""
    path.write_text(text)
    (path.parent / "host_vars").mkdir()
    (path.parent / "host_vars/master.yml").write_text(f"gguf_model_hf_endpoint: {hub}\n")


def follow(page: Path, terminal: Terminal, hub: str = "") -> None:
    """Do what the markers of a page's blocks say, in the order of the page."""
    printed = ""
    values: dict[str, str] = {}
    for block in blocks_of(page):
        kind, _space, what = block.marker.removesuffix(" with test hosts").partition(" ")
        text = in_the_lab(block)
        for name, value in values.items():
            text = text.replace(name, value)
        if kind == "write":
            write_inventory(terminal.folder / what.replace("~", terminal.environment["HOME"]), text, hub)
        elif kind == "output":
            shown = printed.replace(terminal.environment["HOME"], "~")
            assert missing_lines(text, shown) == [], f"{block}: not printed by the block above:\n{shown}"
        elif kind == "run" and " until " in what:
            printed = terminal.type_and_leave(text, what.partition(" until ")[2])
            api = re.search(r"^API \S+:(\d+)/v1\nKey (\S+)$", printed, re.MULTILINE)
            assert api, printed
            values = {"the-port-that-it-printed": api[1], "the-key-that-it-printed": api[2]}
        elif kind == "run":
            if what.endswith("after Ctrl-C"):
                terminal.ctrl_c()
            printed = terminal.type(text)
            assert "[WARNING]" not in printed, printed


def reset(terminal: Terminal, inventory: str) -> None:
    """Remove the page's cluster; packages stay, because the next page's cluster needs them again."""
    files = "-e gguf_model_remove_files=true -e rpc_server_remove_cache=true"
    terminal.type(f"ansible-playbook -i {inventory} llama_cpp.cluster.reset -e reset_packages=false {files}\n")


def test_readme_and_then_the_page_of_raspberry_pis(
    terminal: Terminal, home: Path, hub: str, trained_model: Path
) -> None:
    follow(PAGES["README.md"], terminal, hub)
    installed = home / ".ansible/collections/ansible_collections/llama_cpp/cluster"
    assert not installed.is_symlink()
    assert (installed / "MANIFEST.json").exists()
    reset(terminal, "~/my-cluster")
    # The page's reader puts the model onto the master.
    ssh(MASTER, "mkdir", "-p", "/srv/models")
    with trained_model.open("rb") as content:
        command = [*ssh_command(MASTER), "sudo", "tee", "/srv/models/model.gguf"]
        subprocess.run(command, stdin=content, stdout=subprocess.DEVNULL, check=True, timeout=120)
    follow(PAGES["raspberry-pi.md"], terminal)
    reset(terminal, "hosts.yml")


def test_two_cloud_instances(terminal: Terminal, hub: str) -> None:
    follow(PAGES["two-cloud-instances.md"], terminal, hub)
    reset(terminal, "hosts.yml")


def test_one_machine(terminal: Terminal) -> None:
    follow(PAGES["one-machine.md"], terminal)
