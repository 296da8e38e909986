#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real hosts on one Linux machine: systemd-nspawn containers with systemd, SSH and an address each, on a bridge of their own.

Needs root, and Debian's package archive; what it needs on this machine (systemd-container, mmdebstrap, nftables) it
installs when it is missing. Several labs can stand side by side, told apart by LAB_NUMBER: lab N has the bridge
`llama-lab<N>`, the networks 10.87.<N>.0/24 and fd87:0:0:<N>::/64, and the folder `lab/<N>` in the cache. Nothing else is
touched, and only processes that this lab started are ended, by their id and start time.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BOOT_LIMIT_S = 120
STOP_LIMIT_S = 40
USER = "ops"


@dataclass(frozen=True)
class Host:
    name: str
    suite: str
    number: int  # the last part of its addresses


# Two releases of Debian: the older has the systemd (252) and firewalld generation of RHEL 9.
HOSTS = (
    Host("master", "trixie", 10),
    Host("worker1", "trixie", 11),
    Host("worker2", "bookworm", 12),
    Host("outsider", "trixie", 20),
)

# What every image of a cloud has, and no more: the roles install what they need.
PACKAGES = (
    "ca-certificates,dbus,iproute2,openssh-server,python3,sudo,systemd,systemd-sysv,udev"
)
TOOLS = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container", "nft": "nftables", "ip": "iproute2"}


class LabError(Exception):
    """One sentence for the person who asked."""


def run(*argv: str, check: bool = True, text_in: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, input=text_in, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise LabError(f"{' '.join(argv[:4])} failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-800:]}")
    return done


def say(text: str) -> None:
    print(f"lab: {text}", flush=True)


class Lab:
    def __init__(self, number: int, cache: Path) -> None:
        self.number = number
        self.folder = cache / "lab" / str(number)
        self.roots = cache / "lab" / "roots"
        self.bridge = f"llama-lab{number}"
        self.table = f"llama_lab{number}"

    def address(self, host: Host | int) -> str:
        return f"10.87.{self.number}.{host if isinstance(host, int) else host.number}"

    def address6(self, host: Host | int) -> str:
        return f"fd87:0:0:{self.number}::{host if isinstance(host, int) else host.number}"

    # --- up ---------------------------------------------------------------------------------------------------------

    def up(self, wanted: list[str]) -> None:
        hosts = [host for host in HOSTS if not wanted or host.name in wanted]
        unknown = set(wanted) - {host.name for host in HOSTS}
        if unknown:
            raise LabError(f"no such host: {', '.join(sorted(unknown))}; there are {', '.join(h.name for h in HOSTS)}.")
        began = time.monotonic()
        self.install_tools()
        self.down(quiet=True)
        self.folder.mkdir(parents=True, mode=0o755)
        images = {suite: self.image(suite) for suite in dict.fromkeys(host.suite for host in hosts)}
        self.make_key()
        self.make_network()
        for host in hosts:
            self.unpack(host, images[host.suite])
        self.write_known_hosts(hosts)
        for host in hosts:
            self.start(host)
        for host in hosts:
            self.wait_for(host)
        say(f"{len(hosts)} hosts are up after {time.monotonic() - began:.0f} s: "
            + ", ".join(f"{host.name} {self.address(host)} ({host.suite})" for host in hosts))
        say(f"log in with: ssh -F {self.folder}/ssh_config {hosts[0].name}")

    @staticmethod
    def install_tools() -> None:
        missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
        if not missing:
            return
        if shutil.which("apt-get") is None:
            raise LabError(f"these packages are needed and this machine has no apt-get: {', '.join(missing)}; install them by hand.")
        say(f"installing {', '.join(missing)}")
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        run("apt-get", "-qq", "update", check=False)
        run("apt-get", "-qqy", "install", "--no-install-recommends", *missing)

    def image(self, suite: str) -> Path:
        """The archive of a minimal system; made once, named by the digest of its recipe."""
        recipe = hashlib.sha256(f"1 {suite} {PACKAGES}".encode()).hexdigest()[:12]
        archive = self.roots / f"{suite}-{recipe}.tar"
        self.roots.mkdir(parents=True, exist_ok=True)
        with (self.roots / f"{suite}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in self.roots.glob(f"{suite}-*"):
                if leftover != archive:
                    leftover.unlink()
            if not archive.exists():
                say(f"making a minimal {suite} system (once)")
                part = archive.with_suffix(".part.tar")
                run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", '--aptopt=Acquire::Languages "none"',
                    suite, str(part))
                part.rename(archive)
        return archive

    def make_key(self) -> None:
        key = self.folder / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.bridge, "-f", str(key))
        (self.folder / "ssh_config").write_text(
            "".join(f"Host {host.name}\n  HostName {self.address(host)}\n" for host in HOSTS)
            + f"Host *\n  User {USER}\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n  StrictHostKeyChecking yes\n"
        )

    def make_network(self) -> None:
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "address", "add", f"{self.address(1)}/24", "dev", self.bridge)
        run("ip", "-6", "address", "add", f"{self.address6(1)}/64", "dev", self.bridge, "nodad", check=False)
        run("ip", "link", "set", self.bridge, "up")
        forward = Path("/proc/sys/net/ipv4/ip_forward")
        if forward.read_text().strip() == "0":
            # Remembered, so that the last lab to go puts it back.
            (self.folder.parent / "forwarding_was_off").touch()
            forward.write_text("1")
        net = f"10.87.{self.number}.0/24"
        run("nft", "-f", "-", text_in=f"""
            table ip {self.table} {{
              chain postrouting {{ type nat hook postrouting priority srcnat; ip saddr {net} ip daddr != {net} masquerade; }}
              chain forward {{ type filter hook forward priority filter; ip saddr {net} accept; ip daddr {net} ct state established,related accept; }}
            }}""")

    def unpack(self, host: Host, image: Path) -> None:
        root = self.folder / host.name
        root.mkdir(mode=0o755)
        with tarfile.open(image) as archive:
            archive.extractall(root, filter="fully_trusted")
        (root / "etc/hostname").write_text(f"{host.name}\n")
        names = "".join(f"{self.address(other)} {other.name}\n" for other in HOSTS)
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
        (root / "etc/resolv.conf").unlink(missing_ok=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
        (root / "etc/systemd/network/10-host0.network").write_text(
            f"[Match]\nName=host0\n[Network]\nAddress={self.address(host)}/24\nAddress={self.address6(host)}/64\n"
            f"Gateway={self.address(1)}\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=no\nDHCP=no\n"
        )
        (root / "etc/machine-id").write_text("")
        in_root = ("chroot", str(root))
        run(*in_root, "systemctl", "-q", "enable", "systemd-networkd", "ssh")
        # What needs a device, or waits for a network that is not this one's.
        run(*in_root, "systemctl", "-q", "mask", "systemd-networkd-wait-online.service", "systemd-resolved.service",
            "systemd-udev-trigger.service", "systemd-timesyncd.service")
        for old in (root / "etc/ssh").glob("ssh_host_*"):
            old.unlink()
        run("ssh-keygen", "-q", "-A", "-f", str(root))
        run(*in_root, "useradd", "--create-home", "--shell", "/bin/bash", USER)
        (root / "etc/sudoers.d/lab").write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
        (root / "etc/sudoers.d/lab").chmod(0o440)
        ssh = root / "home" / USER / ".ssh"
        ssh.mkdir(mode=0o700)
        shutil.copy(self.folder / "key.pub", ssh / "authorized_keys")
        run(*in_root, "chown", "-R", f"{USER}:{USER}", f"/home/{USER}/.ssh")

    def write_known_hosts(self, hosts: list[Host]) -> None:
        lines = []
        for host in hosts:
            public = (self.folder / host.name / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
            lines.append(f"{host.name},{self.address(host)} {public[0]} {public[1]}\n")
        (self.folder / "known_hosts").write_text("".join(lines))

    def start(self, host: Host) -> None:
        log = self.folder / f"{host.name}.log"
        with log.open("w") as out:
            process = subprocess.Popen(
                ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
                 "/bin/sh", "-c", KEEPER, "keeper",
                 str(self.folder / host.name), host.name, self.bridge, f"lab{self.number}-{host.name}",
                 "" if Path("/proc/1/comm").read_text() == "systemd\n" else "--keep-unit"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )
        (self.folder / f"{host.name}.pid").write_text(f"{process.pid} {started_at(process.pid)}\n")

    def wait_for(self, host: Host) -> None:
        """Until SSH answers, which is the last thing that a user would wait for."""
        limit = time.monotonic() + BOOT_LIMIT_S
        while time.monotonic() < limit:
            if self.keeper(host) is None:
                break
            with contextlib.suppress(OSError), socket.create_connection((self.address(host), 22), timeout=1) as link:
                if link.recv(4) == b"SSH-":
                    return
            time.sleep(0.2)
        log = (self.folder / f"{host.name}.log").read_text(errors="replace")[-1500:]
        raise LabError(f"{host.name} did not answer on SSH within {BOOT_LIMIT_S} s; its console ends:\n{log}")

    # --- down -------------------------------------------------------------------------------------------------------

    def keeper(self, host: Host) -> int | None:
        """The process that keeps the host, if it is still the one that this lab started."""
        with contextlib.suppress(OSError, ValueError):
            pid, start = (self.folder / f"{host.name}.pid").read_text().split()
            if started_at(int(pid)) == start:
                return int(pid)
        return None

    def down(self, quiet: bool = False) -> None:
        keepers = [(host, pid) for host in HOSTS if (pid := self.keeper(host)) is not None]
        for _, pid in keepers:
            # The keeper waits for its child, the first process of a process namespace; all that is in it ends with that.
            with contextlib.suppress(OSError, ProcessLookupError):
                for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
        limit = time.monotonic() + STOP_LIMIT_S
        for host, _ in keepers:
            while self.keeper(host) is not None:
                if time.monotonic() > limit:
                    raise LabError(f"{host.name} did not stop within {STOP_LIMIT_S} s.")
                time.sleep(0.05)
        for line in run("ip", "-o", "link", "show", "master", self.bridge, check=False).stdout.splitlines():
            # Killed hosts leave theirs for a moment, and the next ones want the same names.
            run("ip", "link", "delete", line.split(":")[1].strip().partition("@")[0], check=False)
        run("ip", "link", "delete", self.bridge, check=False)
        if shutil.which("nft"):
            run("nft", "delete", "table", "ip", self.table, check=False)
        if self.folder.exists():
            # A container that was killed may hold its root for a moment longer.
            for attempt in range(50):
                try:
                    shutil.rmtree(self.folder)
                    break
                except OSError:
                    if attempt == 49:
                        raise
                    time.sleep(0.1)
        remembered = self.folder.parent / "forwarding_was_off"
        others = [path for path in self.folder.parent.glob("[0-9]*") if path.is_dir()]
        if remembered.exists() and not others:
            Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
            remembered.unlink()
        if not quiet:
            say("down; nothing of it is left." if keepers else "there was none.")

    def status(self) -> int:
        alive = [host for host in HOSTS if self.keeper(host) is not None]
        for host in alive:
            print(f"{host.name:10} {self.address(host):14} {host.suite}")
        return 0 if alive else 1


# Runs in a mount namespace of its own: systemd 257 wants the unified control groups, which a machine whose own init is
# something else may have mounted elsewhere or not at all. Exit status 133 is a container that asked for its reboot.
KEEPER = r"""
root=$1 name=$2 bridge=$3 machine=$4 keep=$5
if ! [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    umount -R /sys/fs/cgroup 2>/dev/null
    mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
fi
while :; do
    systemd-nspawn --quiet --boot --register=no $keep --kill-signal=SIGKILL --link-journal=no --resolv-conf=off --timezone=off \
        --network-bridge="$bridge" --capability=all --system-call-filter=bpf --hostname="$name" \
        --machine="$machine" --directory="$root" $LAB_NSPAWN_OPTIONS
    [ $? = 133 ] || break
done
"""


def started_at(pid: int) -> str:
    """When a process began, in clock ticks since boot: with its id, the name of one process for good."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ValueError(f"process {pid} has ended")
    return fields[19]


@contextlib.contextmanager
def alone(cache: Path, number: int) -> Iterator[None]:
    (cache / "lab").mkdir(parents=True, exist_ok=True)
    with (cache / "lab" / f"lock{number}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LabError(f"somebody else is making or removing lab {number}; wait for it, or set LAB_NUMBER.") from error
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument("hosts", nargs="*", help="only these (up)")
    options = parser.parse_args()
    cache = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache/llama_cpp_cluster")
    try:
        number = int(os.environ.get("LAB_NUMBER") or 0)
        if not 0 <= number <= 255:
            raise ValueError
    except ValueError:
        print("lab: LAB_NUMBER is not a number from 0 to 255.", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("lab: test hosts need root (containers, a bridge, packet filter rules); run this with sudo.", file=sys.stderr)
        return 2
    lab = Lab(number, cache)
    try:
        if options.action == "status":
            return lab.status()
        with alone(cache, number):
            lab.up(options.hosts) if options.action == "up" else lab.down()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
