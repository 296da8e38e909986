# SPDX-License-Identifier: GPL-3.0-or-later
"""Test hosts: which there are, and what they need here; when they are emulated, what they start with, and how packages
are known by another architecture."""

from __future__ import annotations

import platform
import stat
import sys
from pathlib import Path

import pytest
import yaml

from lab import lab
from support.lab import emulated, emulated_image

INVENTORIES = Path(__file__).resolve().parents[2] / "inventories"


def test_only_who_names_more_hosts_gets_them() -> None:
    assert [host.name for host in lab.chosen([])] == ["master", "worker1", "worker2", "outsider"]
    assert [host.name for host in lab.chosen(["worker3", "worker1"])] == ["worker1", "worker3"]
    with pytest.raises(lab.LabError, match=r"no such host: worker99; there are master, worker1, .*arm-worker2[.]$"):
        lab.chosen(["worker1", "worker99"])


def test_tools_are_installed_where_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What any host needs, before there is one; QEMU is for who has emulated ones."""
    there = {"apt-get", "ip", "setpriv", "ssh-keygen"}
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(sys, "argv", ["lab.py", "tools"])
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0)
    monkeypatch.setattr(lab.signal, "signal", lambda *_given: None)
    monkeypatch.setattr(lab.shutil, "which", lambda name: f"/usr/bin/{name}" if name in there else None)
    monkeypatch.setattr(lab, "run", lambda *argv, **_options: ran.append(argv))
    monkeypatch.setenv("LAB_NUMBER", "7")
    assert lab.main() == 0
    install = ("apt-get", "-qqy", "install", "--no-install-recommends", "mmdebstrap", "nftables", "systemd-container")
    assert ran == [("apt-get", "-qq", "update"), install]
    there |= {"mmdebstrap", "nft", "systemd-nspawn"}
    assert lab.main() == 0
    assert len(ran) == 2


def test_tools_that_cannot_be_installed_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.py", "tools"])
    monkeypatch.setattr(lab.os, "geteuid", lambda: 0)
    monkeypatch.setattr(lab.signal, "signal", lambda *_given: None)
    monkeypatch.setattr(lab.shutil, "which", lambda name: None if name in ("nft", "apt-get") else f"/usr/bin/{name}")
    assert lab.main() == 1
    said = "lab: this machine lacks nftables, and apt-get to install them with; install them by hand.\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("path", ["lab/hosts.yml", "lab/more_workers.yml", "lab_aarch64/hosts.yml"])
def test_inventories_know_the_hosts_by_their_addresses(path: str) -> None:
    groups = yaml.safe_load((INVENTORIES / path).read_text(encoding="utf-8")).values()
    listed = {name: known["ansible_host"] for group in groups for name, known in group.get("hosts", {}).items()}
    assert listed == {
        host.name: "10.87.{{ lab_number }}." + str(host.number) for host in lab.HOSTS if host.name in listed
    }


@pytest.mark.parametrize(
    ("machine", "architecture", "expected"),
    [
        pytest.param("x86_64", "arm64", True, id="arm_on_x86"),
        pytest.param("aarch64", "arm64", False, id="arm_on_arm"),
        pytest.param("x86_64", None, False, id="own_on_x86"),
        pytest.param("aarch64", None, False, id="own_on_arm"),
    ],
)
def test_only_a_foreign_processor_is_emulated(
    monkeypatch: pytest.MonkeyPatch, machine: str, architecture: str | None, expected: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert emulated.needed(architecture) is expected


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of what is in a cpio archive, as the kernel reads it."""
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
    # A folder comes before what is in it.
    assert [name for name in found if name.startswith("identity")] == sorted(n for n in found if n.startswith("ident"))


def test_dpkg_knows_a_replaced_package_by_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated_image, "TWIN_TRIPLET", "x86_64-linux-gnu")
    assert emulated_image.renamed("/usr/lib/x86_64-linux-gnu/gio/modules libglib2.0-0t64:amd64/noawait\n") == (
        "/usr/lib/aarch64-linux-gnu/gio/modules libglib2.0-0t64:arm64/noawait\n"
    )
    assert emulated_image.fields("Package: a\nConffiles:\n /etc/a 1\n /etc/b 2\nHomepage: http://a.b/c\n") == {
        "Package": "a",
        "Conffiles": "\n /etc/a 1\n /etc/b 2",
        "Homepage": "http://a.b/c",
    }
