# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the test hosts' program that need no root: addresses, tools, refusals, files of emulated hosts."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from lab import lab
from support.harness import ROOT
from support.lab import emulated, emulated_image

if TYPE_CHECKING:
    from collections.abc import Iterator

# Another account may not be able to run the Python of these tests, nor to read this checkout.
PYTHON = sys.executable if os.geteuid() else shutil.which("python3", path="/usr/bin:/bin")
NOBODY = [] if os.geteuid() else ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture(scope="module")
def readable() -> Iterator[Path]:
    """Yield a folder that anybody may read, with the program and its imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in "lab", "support/lab":
            shutil.copytree(ROOT / "tests" / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        folder.chmod(0o755)
        yield folder


@pytest.mark.skipif(PYTHON is None, reason="this machine has no Python that another user may run")
@pytest.mark.parametrize(
    ("arguments", "number", "sentence"),
    [
        pytest.param("up", "256", 'LAB_NUMBER is "256"; give a number from 0 to 255.', id="number-too-large"),
        pytest.param("up", "-1", 'LAB_NUMBER is "-1"; give a number from 0 to 255.', id="number-negative"),
        pytest.param("status", "two", 'LAB_NUMBER is "two"; give a number from 0 to 255.', id="number-no-number"),
        pytest.param(
            "up worker1 nas",
            "7",
            "no such host: nas; there are master, worker1, worker2, outsider, "
            "worker3, worker4, worker5, worker6, worker7, worker8, worker9, arm-master, arm-worker.",
            id="unknown-host",
        ),
        pytest.param("down worker1", "7", "down is for the whole lab; leave out worker1.", id="part-of-a-lab"),
        pytest.param(
            "up",
            "7",
            "test hosts need root (containers, a bridge, packet filter rules); run this with sudo.",
            id="root",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(readable: Path, arguments: str, number: str, sentence: str) -> None:
    done = subprocess.run(
        [*NOBODY, str(PYTHON), readable / "lab/lab.py", *arguments.split()],
        env={"HOME": "/nonexistent", "LAB_NUMBER": number, "PYTHONPATH": str(readable)},
        cwd="/", capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"lab: {sentence}\n")


def test_only_who_names_more_hosts_gets_them() -> None:
    assert [host.name for host in lab.chosen([])] == ["master", "worker1", "worker2", "outsider"]
    assert [host.name for host in lab.chosen(["worker3", "worker1"])] == ["worker1", "worker3"]


@pytest.mark.parametrize("path", ["lab/hosts.yml", "lab/more_workers.yml", "lab_aarch64/hosts.yml"])
def test_inventories_know_the_hosts_by_their_addresses(tmp_path: Path, path: str) -> None:
    text = (ROOT / "inventories" / path).read_text(encoding="utf-8").replace("{{ lab_number }}", "7")
    groups = yaml.safe_load(text).values()
    listed = {
        name: known["ansible_host"] for group in groups for name, known in group.get("hosts", {}).items() if known
    }
    made = lab.Lab(7, tmp_path)
    assert listed == {host.name: made.address(host) for host in lab.HOSTS if host.name in listed}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of programs of a machine that has only some of the tools for hosts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in set(lab.TOOLS) - {"mmdebstrap", "nft", "systemd-nspawn"}:
        (folder / tool).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("DEBIAN_FRONTEND", "")
    return folder


def test_tools_are_installed_where_they_are_missing(machine: Path, tmp_path: Path) -> None:
    """The tools for any host are installed before the first host. Only emulated hosts need QEMU."""
    (machine / "apt-get").write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n[ "$1" = -qq ] || '
        f"for tool in mmdebstrap nft systemd-nspawn; do /bin/ln -s /bin/true {machine}/$tool; done\n"
    )
    (machine / "apt-get").chmod(0o755)
    for _time in range(2):
        lab.install_tools(lab.TOOLS)
    assert (tmp_path / "asked").read_text().splitlines() == [
        "-qq update",
        "-qqy install --no-install-recommends mmdebstrap nftables systemd-container",
    ]


def test_tools_that_cannot_be_installed_are_named(machine: Path) -> None:
    (machine / "nft").symlink_to("/bin/true")
    with pytest.raises(lab.LabError, match="lacks mmdebstrap, systemd-container, and apt-get to install them with"):
        lab.install_tools(lab.TOOLS)


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Return the mode and the content of each file in a cpio archive, as the kernel reads it."""
    found = {}
    place = 0
    while True:
        assert archive[place : place + 6] == b"070701"
        values = [int(archive[start : start + 8], 16) for start in range(place + 6, place + 110, 8)]
        mode, size, name_size = values[1], values[6], values[11]
        name = archive[place + 110 : place + 109 + name_size].decode()
        content = place + 110 + name_size + -(110 + name_size) % 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, archive[content : content + size])
        place = content + size + -size % 4


def test_a_guest_starts_with_the_files_that_make_it_a_host(tmp_path: Path) -> None:
    image, identity = tmp_path / "image", tmp_path / "host"
    (image / "modules").mkdir(parents=True)
    (image / "busybox").write_bytes(b"loader")
    (image / "modules/00-disk.ko").write_bytes(b"disk")
    (identity / "etc/ssh").mkdir(parents=True)
    (identity / "etc/hostname").write_text("worker\n")
    (identity / "etc/ssh/key").write_text("secret")
    (identity / "etc/ssh/key").chmod(0o600)
    emulated.write_initramfs(tmp_path / "initramfs", image, identity)
    found = entries((tmp_path / "initramfs").read_bytes())
    assert {name: content for name, (mode, content) in found.items() if stat.S_ISREG(mode)} == {
        "busybox": b"loader",
        "init": emulated.INIT.encode(),
        "modules/00-disk.ko": b"disk",
        "identity/etc/hostname": b"worker\n",
        "identity/etc/ssh/key": b"secret",
    }
    assert found["identity/etc/ssh/key"][0] & 0o7777 == 0o600
    assert found["init"][0] & 0o111
    # A folder comes before its files.
    assert [name for name in found if name.startswith("identity")] == sorted(n for n in found if n.startswith("ident"))


def test_dpkg_knows_a_replaced_package_by_its_architecture() -> None:
    own = emulated_image.TWIN_TRIPLET
    assert emulated_image.renamed(f"/usr/lib/{own}/gio/modules libglib2.0-0t64:amd64/noawait\n") == (
        "/usr/lib/aarch64-linux-gnu/gio/modules libglib2.0-0t64:arm64/noawait\n"
    )
    assert emulated_image.fields("Package: a\nConffiles:\n /etc/a 1\n /etc/b 2\nHomepage: http://a.b/c\n") == {
        "Package": "a",
        "Conffiles": "\n /etc/a 1\n /etc/b 2",
        "Homepage": "http://a.b/c",
    }
