# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of another architecture than this machine's: whole systems under emulation (QEMU), on the lab's bridge.

Only hosts that need it are emulated: on an aarch64 machine the same hosts are containers, like all others.
"""

from __future__ import annotations

import platform
import stat
from pathlib import Path

# The kernel's names of machines, by Debian's.
MACHINES = {"arm64": "aarch64"}
TOOLS = {"mke2fs": "e2fsprogs", "qemu-system-aarch64": "qemu-system-arm"}
MEMORY_MIB = 1024

# These options give the emulator less work. With one processor, a task takes it a third less time than with two.
KERNEL_LINE = (
    "console=ttyAMA0 quiet loglevel=3 panic=-1 net.ifnames=0 mitigations=off nokaslr norandmaps init_on_alloc=0 "
    "audit=0 nowatchdog systemd.show_status=no systemd.getty_auto=no systemd.ssh_auto=no "
    "systemd.import_credentials=no"
)
# The first program of the guest. It copies the host's identity to the disk only once, so later changes there stay.
INIT = """#!/busybox sh
/busybox mount -t devtmpfs dev /dev
for module in /modules/*; do /busybox insmod "$module"; done
/busybox mount -t ext4 -o noatime /dev/vda /system || exec /busybox poweroff -f
[ -e /system/etc/ssh/ssh_host_ed25519_key ] || /busybox cp -a /identity/. /system/
/busybox umount /dev
exec /busybox switch_root /system /sbin/init
"""
# A nameless file holds the host's writes, and disappears with the emulator. A restart of the guest does not restart the
# emulator.
KEEPER = r"""
folder=$1 name=$2 bridge=$3 image=$4 machine=$5 tap=$6 mac=$7
shift 7
printf '#!/bin/sh\nexec ip link set "$1" up master %s\n' "$bridge" >"$folder/join" || exit 1
chmod 0700 "$folder/join"
TMPDIR=$folder
export TMPDIR
qemu-system-aarch64 -name "$machine" -M virt -accel tcg,tb-size=256 \
    -nodefaults -no-user-config -display none -serial stdio -kernel "$image/kernel" -initrd "$folder/initramfs" \
    -drive "file=$image/disk.ext4,format=raw,if=none,id=disk,snapshot=on,cache=unsafe" \
    -device virtio-blk-pci,drive=disk \
    -netdev "tap,id=net,ifname=$tap,script=$folder/join,downscript=no" \
    -device "virtio-net-pci,netdev=net,romfile=,mac=$mac" "$@"
"""


def needed(architecture: str | None, machine: str = platform.machine()) -> bool:
    """Return whether a host of this architecture needs emulation on a machine, by default this one."""
    return architecture is not None and MACHINES[architecture] != machine


def keeper(folder: Path, bridge: str, image: Path, machine: str, lab: int, number: int, cpu: str) -> list[str]:
    """Return the command that keeps a host, with its arguments."""
    return [
        "/bin/sh", "-c", KEEPER, "keeper", str(folder), folder.name, bridge, str(image), machine,
        f"lab{lab}-{number}", f"52:54:00:57:{lab:02x}:{number:02x}",
        "-cpu", cpu, "-m", str(MEMORY_MIB), "-append", KERNEL_LINE,
    ]  # fmt: skip


def write_initramfs(file: Path, image: Path, identity: Path) -> None:
    """Write the guest's initial RAM disk: the loader of its disk, and the files that make it this host."""
    with file.open("wb") as out:
        number = 0

        def add(name: str, content: bytes, mode: int, owner: tuple[int, int] = (0, 0), changed: int = 0) -> None:
            nonlocal number
            number += 1
            # The "newc" format of cpio.
            values = (number, mode, *owner, 1, changed, len(content), 0, 0, 0, 0, len(name) + 1, 0)
            head = b"070701" + b"".join(b"%08x" % value for value in values) + name.encode() + b"\0"
            for part in (head, content):
                out.write(part + b"\0" * (-len(part) % 4))

        for name in ("dev", "system", "modules"):
            add(name, b"", stat.S_IFDIR | 0o755)
        add("busybox", (image / "busybox").read_bytes(), stat.S_IFREG | 0o755)
        add("init", INIT.encode(), stat.S_IFREG | 0o755)
        for module in sorted((image / "modules").iterdir()):
            add(f"modules/{module.name}", module.read_bytes(), stat.S_IFREG | 0o644)
        for path in [identity, *sorted(identity.rglob("*"))]:
            name = str(Path("identity", path.relative_to(identity)))
            was = path.stat()
            content = b"" if path.is_dir() else path.read_bytes()
            add(name, content, was.st_mode, (was.st_uid, was.st_gid), int(was.st_mtime))
        add("TRAILER!!!", b"", 0)
