# SPDX-License-Identifier: GPL-3.0-or-later
"""Make real hosts on one Linux machine: systemd-nspawn containers with systemd, SSH and an address each, on a bridge.

Hosts of another architecture are whole systems under emulation, on the same bridge (tests/support/lab has what makes
them). These hosts and further workers are made only if they are named. Needs root, and Debian's package archive. The
program installs what it needs on this machine (systemd-container, mmdebstrap, nftables, and QEMU to emulate) if apt-get
is there; `tools` does no more than that, for all but QEMU. Several labs can stand side by side, told apart by
LAB_NUMBER: lab N has the bridge `llama-lab<N>`, the packet filter table `llama_lab<N>`, the networks 10.87.<N>.0/24 and
fd87:0:0:<N>::/64, and the folder `lab/<N>` in the cache. The program touches nothing else. It knows a host by the
arguments that the host was started with, so that it finds and ends whatever a killed run left behind: by a handle of
the process, and never by a program's name. The hosts are for tests, not for strangers: root in a host has all
capabilities of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from support.lab import emulated, emulated_image
from support.lab.programs import IN_NAMESPACE, IN_PROCESS_NAMESPACE, WITH_THIS, LabError, make_folders, run, say

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOT_LIMIT_S = 120
EMULATED_BOOT_LIMIT_S = 900
STOP_LIMIT_S = 40
USER = "ops"
# This folder is gone after a restart of the machine, as the bridges are.
STATE = Path("/run/llama_cpp_cluster_lab")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True)
class Host:
    name: str
    suite: str
    number: int  # the last part of its addresses
    arch: str | None = None  # as Debian calls it; None: this machine's
    cpu: str = ""  # as QEMU calls it
    on_request: bool = False  # made only if it is named

    @property
    def emulated(self) -> bool:
        return emulated.needed(self.arch)


# Two kinds of Arm servers. The first has neither SVE nor I8MM (Graviton2 and its like). The second has SVE2, I8MM and
# BF16 with vectors of 128 bits, as Neoverse V2 and N2 have: llama.cpp is not made for the emulator's default of 2048
# bits.
NEOVERSE_N1 = "neoverse-n1"
NEWER_ARM = "max,sme=off,pauth-impdef=on,sve-max-vq=1"

# Two releases of Debian: the older has the systemd (252) and firewalld generation of RHEL 9. The master has it, because
# most is compiled there, and a CI machine with Debian 12 then compiles the same files only once.
HOSTS = (
    Host("master", "bookworm", 10),
    Host("worker1", "trixie", 11),
    Host("worker2", "bookworm", 12),
    Host("outsider", "trixie", 20),
    # Equals of worker1.
    Host("worker3", "trixie", 13, on_request=True),
    Host("worker4", "trixie", 14, on_request=True),
    Host("worker5", "trixie", 15, on_request=True),
    Host("worker6", "trixie", 16, on_request=True),
    Host("worker7", "trixie", 17, on_request=True),
    Host("worker8", "trixie", 18, on_request=True),
    Host("worker9", "trixie", 19, on_request=True),
    Host("arm-master", "trixie", 30, "arm64", NEOVERSE_N1, on_request=True),
    Host("arm-worker", "trixie", 31, "arm64", NEWER_ARM, on_request=True),
)


def chosen(names: list[str]) -> list[Host]:
    """Return the hosts of these names, or the default hosts of a lab if there are no names."""
    unknown = set(names) - {host.name for host in HOSTS}
    if unknown:
        raise LabError(f"no such host: {', '.join(sorted(unknown))}; there are {', '.join(h.name for h in HOSTS)}.")
    return [host for host in HOSTS if (host.name in names if names else not host.on_request)]


TOOLS = {
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "setpriv": "util-linux",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
}

# The folders of the files that turn an image into a host.
FOLDERS = ("etc/ssh", "etc/ssl/certs", "etc/systemd/network", f"home/{USER}/.ssh")
# The packages that every cloud image has, and no more: the roles install what they need.
PACKAGES = "ca-certificates,dbus,iproute2,openssh-server,python3,sudo,systemd,systemd-sysv,udev"
# Steps that are the same for every host, and so part of the image. Masked units need a device, or wait for another
# network.
HOOKS = (
    'chroot "$1" systemctl -q enable systemd-networkd ssh',
    'chroot "$1" systemctl -q mask systemd-networkd-wait-online systemd-resolved systemd-timesyncd',
    'chroot "$1" systemctl -q mask systemd-udev-trigger',
    f'chroot "$1" useradd --create-home --shell /bin/bash {USER}',
    f'chroot "$1" install -d -m 0700 -o {USER} -g {USER} /home/{USER}/.ssh',
    f'echo "{USER} ALL=(ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/lab" && chmod 0440 "$1/etc/sudoers.d/lab"',
    'rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/resolv.conf" && : >"$1/etc/machine-id"',
)

# systemd 257 needs the unified control groups. A machine with another init may have mounted them elsewhere or not at
# all. This mount is seen in a mount namespace only.
UNIFIED = """
if ! [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    umount -R /sys/fs/cgroup 2>/dev/null
    mount -t cgroup2 cgroup2 /sys/fs/cgroup || exit 1
fi
"""
# Each host has a control group of its own: in a common one, stopping a service on one host would kill it on all. Exit
# status 133 means that the host asked for its reboot.
KEEPER = (
    UNIFIED
    + r"""
folder=$1 name=$2 bridge=$3 image=$4 machine=$5 scope=$6
shift 6
mount -t overlay -o "lowerdir=$image,upperdir=$folder/changes,workdir=$folder/work" overlay "$folder/root" || exit 1
if [ "$scope" = none ]; then
    mkdir -p "/sys/fs/cgroup/$machine" && echo 0 >"/sys/fs/cgroup/$machine/cgroup.procs" || exit 1
fi
while :; do
    systemd-nspawn --quiet --boot --register=no --keep-unit --kill-signal=SIGKILL --link-journal=no --resolv-conf=off \
        --timezone=off --network-bridge="$bridge" --capability=all --system-call-filter="bpf pidfd_getfd" \
        --hostname="$name" --machine="$machine" --directory="$folder/root" "$@"
    [ $? = 133 ] || break
done
"""
)
FORGET_GROUP = UNIFIED + 'find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} + 2>/dev/null || :'


@contextlib.contextmanager
def locked(name: str, busy: str = "") -> Iterator[None]:
    """Hold a lock of this machine; if `busy` is a sentence, raise it as a LabError instead of waiting for the lock."""
    STATE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (STATE / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError as error:
            raise LabError(busy) from error
        yield


def keepers() -> dict[int, list[str]]:
    """Return the processes that keep hosts of any lab, with their arguments from "keeper" on."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            argv = (process / "cmdline").read_bytes().decode().split("\0")
            given = argv[argv.index("keeper") :]
            # systemd-run looks up the program and puts its path there.
            if Path(argv[0]).name == "unshare" and len(given) > 5:
                found[int(process.name)] = given
    return found


class Lab:
    def __init__(self, number: int, cache: Path) -> None:
        self.number = number
        self.folder = cache / "lab" / str(number)
        self.images = cache / "lab" / "roots"
        self.bridge = f"llama-lab{number}"
        self.table = f"llama_lab{number}"

    def address(self, host: Host | int) -> str:
        return f"10.87.{self.number}.{host if isinstance(host, int) else host.number}"

    def address6(self, host: Host | int) -> str:
        return f"fd87:0:0:{self.number:x}::{host if isinstance(host, int) else host.number}"

    def machine(self, host: Host) -> str:
        return f"lab{self.number}-{host.name}"

    # --- up ---------------------------------------------------------------------------------------------------------

    def up(self, wanted: list[str], share: Path | None) -> None:
        hosts = chosen(wanted)
        began = time.monotonic()
        self.down()
        install_tools({**TOOLS, **(emulated.TOOLS if any(host.emulated for host in hosts) else {})})
        self.folder.mkdir(parents=True, mode=0o755)
        try:
            self.make(hosts, share)
        except BaseException:
            self.down()
            raise
        say(
            f"{len(hosts)} hosts are up after {time.monotonic() - began:.0f} s: "
            + ", ".join(
                f"{host.name} {self.address(host)} ({host.suite}{f' {host.arch}' if host.arch else ''})"
                for host in hosts
            )
        )
        say(f"log in with: ssh -F {self.folder}/ssh_config {hosts[0].name}")

    def make(self, hosts: list[Host], share: Path | None) -> None:
        with ThreadPoolExecutor(len(hosts)) as threads:
            try:
                systems = sorted({(host.suite, host.emulated) for host in hosts})
                images = dict(zip(systems, threads.map(lambda system: self.image(*system), systems)))
                image = {host: images[host.suite, host.emulated] for host in hosts}
                self.make_key()
                self.make_network()
                list(threads.map(lambda host: self.furnish(host, image[host]), hosts))
                self.write_known_hosts(hosts)
                for host in hosts:
                    self.start(host, image[host], share)
                list(threads.map(self.wait_for, hosts))
            except BaseException:
                # This also ends the threads that wait for the hosts.
                self.end_hosts()
                raise

    def image(self, suite: str, foreign: bool) -> Path:
        """Return the folder of a minimal system: made once, named by the digest of its recipe, and only read later."""
        packages = f"{PACKAGES},{emulated_image.PACKAGES}" if foreign else PACKAGES
        recipe = ["--variant=minbase", f"--include={packages}", '--aptopt=Acquire::Languages "none"']
        recipe += [f"--customize-hook={hook}" for hook in HOOKS]
        kind = f"{suite}-{emulated_image.ARCHITECTURE}" if foreign else suite
        said = [*recipe, Path(emulated_image.__file__).read_text()] if foreign else recipe
        image = self.images / f"{kind}-{hashlib.sha256(repr(said).encode()).hexdigest()[:12]}"
        self.images.mkdir(parents=True, exist_ok=True)
        with (self.images / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            used = {argv[4] for argv in keepers().values()}
            for other in self.images.glob(f"{kind}-{'?' * 12}"):
                if other != image and str(other) not in used:
                    shutil.rmtree(other)
            if not image.exists():
                say(f"making a minimal {kind} system (once)")
                work = self.images / f"{kind}-work"
                if work.exists():
                    shutil.rmtree(work)
                work.mkdir(mode=0o755)
                if foreign:
                    root = emulated_image.make(suite, recipe, FOLDERS, work)
                else:
                    root = work / "root"
                    root.mkdir(mode=0o755)
                    # mmdebstrap runs in namespaces of its own: its mounts and its processes end with it.
                    command = ["env", f"TMPDIR={work}", "mmdebstrap", "--format=directory", *recipe, suite, str(root)]
                    run(*WITH_THIS, *IN_PROCESS_NAMESPACE, *command)
                root.rename(image)
                shutil.rmtree(work)
        return image

    def make_key(self) -> None:
        key = self.folder / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.bridge, "-f", str(key))
        (self.folder / "ssh_config").write_text(
            "".join(f"Host {host.name}\n  HostName {self.address(host)}\n" for host in HOSTS)
            + f"Host *\n  User {USER}\n  IdentityFile {key}\n  IdentitiesOnly yes\n  BatchMode yes\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n  StrictHostKeyChecking yes\n"
        )

    def make_network(self) -> None:
        network = ipaddress.ip_network(f"10.87.{self.number}.0/24")
        for line in run("ip", "-4", "-o", "route", "show").stdout.splitlines():
            # Words that are no network: default, blackhole, ...
            with contextlib.suppress(ValueError):
                if ipaddress.IPv4Network(line.split()[0]).subnet_of(network):
                    raise LabError(
                        f"this machine has a way to {line.strip()}, which lab {self.number} would hide: set LAB_NUMBER."
                    )
        with locked("network"):
            run("ip", "link", "add", self.bridge, "type", "bridge")
            run("ip", "address", "add", f"{self.address(1)}/24", "dev", self.bridge)
            # A machine without IPv6 has labs without it.
            run("ip", "-6", "address", "add", f"{self.address6(1)}/64", "dev", self.bridge, "nodad", check=False)
            run("ip", "link", "set", self.bridge, "up")
            if FORWARDING.read_text().strip() == "0":
                # Remember this, so that the last lab to go restores it.
                (STATE / "forwarding_was_off").touch()
                FORWARDING.write_text("1")
        net = f"10.87.{self.number}.0/24"
        rules = f"""
            table ip {self.table} {{
                chain postrouting {{
                    type nat hook postrouting priority srcnat;
                    ip saddr {net} ip daddr != {net} masquerade;
                }}
                chain forward {{
                    type filter hook forward priority filter;
                    ip saddr {net} accept;
                    ip daddr {net} ct state established,related accept;
                }}
            }}"""
        run("nft", "-f", "-", text_in=rules)

    def furnish(self, host: Host, image: Path) -> None:
        """Write the files that turn an image into a host: only these are stored for each host, on top of the image."""
        for part in ("root", "work", "changes"):
            (self.folder / host.name / part).mkdir(mode=0o755, parents=True)
        root = self.folder / host.name / "changes"
        make_folders(root, emulated_image.folders(image) if host.emulated else image, FOLDERS)
        (root / "etc/hostname").write_text(f"{host.name}\n")
        names = "".join(f"{self.address(other)} {other.name}\n" for other in HOSTS)
        (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{names}")
        # If this machine has a resolver on loopback, hosts get the servers that this resolver asks.
        resolvers = (Path("/run/systemd/resolve/resolv.conf"), Path("/etc/resolv.conf"))
        shutil.copy(next(path for path in resolvers if path.exists()), root / "etc/resolv.conf")
        certificates = Path("etc/ssl/certs/ca-certificates.crt")
        if Path("/", certificates).exists():
            shutil.copy(Path("/", certificates), root / certificates)
        (root / "etc/systemd/network/10-lab.network").write_text(
            f"[Match]\nName=host0 eth0\n[Network]\nAddress={self.address(host)}/24\nAddress={self.address6(host)}/64\n"
            f"Gateway={self.address(1)}\nLinkLocalAddressing=ipv6\nIPv6AcceptRA=no\nDHCP=no\n"
        )
        key = root / "etc/ssh/ssh_host_ed25519_key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", str(key))
        allowed = root / "home" / USER / ".ssh/authorized_keys"
        shutil.copy(self.folder / "key.pub", allowed)
        owner = allowed.parent.stat()
        os.chown(allowed, owner.st_uid, owner.st_gid)

    def write_known_hosts(self, hosts: list[Host]) -> None:
        lines = []
        for host in hosts:
            public = (self.folder / host.name / "changes/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
            lines.append(f"{host.name},{self.address(host)} {public[0]} {public[1]}\n")
        (self.folder / "known_hosts").write_text("".join(lines))

    def start(self, host: Host, image: Path, share: Path | None) -> None:
        machine = self.machine(host)
        # If systemd manages the machine's control groups, it makes the host's own.
        systemd = Path("/proc/1/comm").read_text() == "systemd\n"
        scope = ["systemd-run", "--quiet", "--scope", "--collect", "--property=Delegate=yes", f"--unit=llama-{machine}"]
        scope += [f"--description=Test host {host.name}", "--"]
        if host.emulated:
            folder = self.folder / host.name
            emulated.write_initramfs(folder / "initramfs", image, folder / "changes")
            keeper = emulated.keeper(folder, self.bridge, image, machine, self.number, host.number, host.cpu)
        else:
            keeper = [
                "/bin/sh", "-c", KEEPER, "keeper", str(self.folder / host.name), host.name, self.bridge, str(image),
                machine, "own" if systemd else "none", *([f"--bind={share}:/mnt/shared"] if share else []),
            ]  # fmt: skip
        with (self.folder / f"{host.name}.log").open("w") as out:
            subprocess.Popen(
                [*(scope if systemd else []), *IN_PROCESS_NAMESPACE, *keeper],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait_for(self, host: Host) -> None:
        """Wait until a login over SSH works, which is the last thing that a user would wait for."""
        log_in = ("ssh", "-F", str(self.folder / "ssh_config"), "-o", "ConnectTimeout=5", host.name, "true")
        began = time.monotonic()
        while time.monotonic() < began + (EMULATED_BOOT_LIMIT_S if host.emulated else BOOT_LIMIT_S):
            with contextlib.suppress(OSError), socket.create_connection((self.address(host), 22), timeout=1) as link:
                # An early login may be answered by "System is booting up".
                if link.recv(4) == b"SSH-" and run(*log_in, check=False).returncode == 0:
                    return
            if time.monotonic() > began + 2 and not self.keepers(host):
                break
            time.sleep(0.2)
        log = (self.folder / f"{host.name}.log").read_text(errors="replace")[-1500:]
        passed = time.monotonic() - began
        raise LabError(f"{host.name} did not let {USER} in over SSH within {passed:.0f} s; its console ends:\n{log}")

    # --- down -------------------------------------------------------------------------------------------------------

    def keepers(self, host: Host | None = None) -> dict[int, Path]:
        """Return the processes that keep hosts of this lab, with the lab's folder of each."""
        return {
            pid: Path(argv[1]).parent
            for pid, argv in keepers().items()
            if argv[3] == self.bridge and (host is None or argv[2] == host.name)
        }

    def end(self, pid: int) -> None:
        """End a host by the first process of its namespace; its parent, the keeper, ends once all have ended."""
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                handle = os.pidfd_open(int(child))
                try:
                    # Before the handle was opened, the number may have gone to somebody else's process. The handle is
                    # of the right process if that is still the child of a process that is still a keeper. A handle
                    # never changes its process.
                    parent = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]
                    if int(parent) == pid and pid in self.keepers():
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)

    def end_hosts(self) -> bool:
        """End all hosts of this lab; return whether there was one."""
        running = self.keepers()
        for folder in running.values():
            if folder != self.folder:
                raise LabError(f"lab {self.number} is in use from {folder}: end it there, or set LAB_NUMBER.")
        limit = time.monotonic() + STOP_LIMIT_S
        while left := self.keepers():
            if time.monotonic() > limit:
                raise LabError(f"process {', '.join(map(str, left))} did not end within {STOP_LIMIT_S} s.")
            for pid in left:
                self.end(pid)
            time.sleep(0.05)
        return bool(running)

    def down(self) -> bool:
        """Remove the lab, or what is left of it; return whether a host was running."""
        running = self.end_hosts()
        for host in HOSTS:
            run(*IN_NAMESPACE, "/bin/sh", "-c", FORGET_GROUP, "forget", self.machine(host), check=False)
        with locked("network"):
            for link in Path("/sys/class/net").glob(f"{self.bridge}/brif/*"):
                # Killed hosts leave their links for a moment, and the next hosts need the same names.
                run("ip", "link", "delete", link.name, check=False)
            if Path("/sys/class/net", self.bridge).exists():
                run("ip", "link", "delete", self.bridge)
            if shutil.which("nft"):
                run("nft", "delete", "table", "ip", self.table, check=False)
            remembered = STATE / "forwarding_was_off"
            if remembered.exists() and not list(Path("/sys/class/net").glob("llama-lab*")):
                FORWARDING.write_text("0")
                remembered.unlink()
        self.remove_folder()
        return running

    def remove_folder(self) -> None:
        for attempt in range(50):
            try:
                if self.folder.exists():
                    shutil.rmtree(self.folder)
            except OSError:
                # A host that was killed may hold its root for a moment longer.
                if attempt == 49:
                    raise
                time.sleep(0.1)
            else:
                return

    def status(self) -> int:
        alive = [host for host in HOSTS if self.keepers(host)]
        for host in alive:
            print(f"{host.name:12} {self.address(host):14} {host.suite}" + (f" {host.arch}" if host.arch else ""))
        return 0 if alive else 1


def install_tools(tools: dict[str, str]) -> None:
    missing = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise LabError(
            f"this machine lacks {', '.join(missing)}, and apt-get to install them with; install them by hand."
        )
    say(f"installing {', '.join(missing)}")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run("apt-get", "-qq", "update", check=False)
    run("apt-get", "-qqy", "install", "--no-install-recommends", *missing)


def interrupted(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    raise LabError("interrupted; what was there of the lab is removed.")


def refusal(action: str, hosts: list[str], number: str) -> str:
    """Return why the action cannot be done, or an empty string."""
    if not number.isdecimal() or int(number) > 255:
        return f'LAB_NUMBER is "{number}"; give a number from 0 to 255.'
    if hosts and action != "up":
        return f"{action} is for the whole lab; leave out {' '.join(hosts)}."
    try:
        chosen(hosts)
    except LabError as error:
        return str(error)
    if os.geteuid() != 0:
        return "test hosts need root (containers, a bridge, packet filter rules); run this with sudo."
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("up", "down", "status", "tools"))
    parser.add_argument("hosts", nargs="*", help="only these (up)")
    parser.add_argument("--share", type=Path, metavar="FOLDER", help="a folder that all hosts have as /mnt/shared (up)")
    options = parser.parse_args()
    cache = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache/llama_cpp_cluster")
    text = os.environ.get("LAB_NUMBER") or "0"
    if why := refusal(options.action, options.hosts, text):
        print(f"lab: {why}", file=sys.stderr)
        return 2
    lab = Lab(int(text), cache)
    if options.action == "status":
        return lab.status()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        if options.action == "tools":
            install_tools({**TOOLS, **(emulated.TOOLS if any(host.emulated for host in HOSTS) else {})})
            return 0
        busy = f"somebody else is making or removing lab {lab.number}; wait for it, or set LAB_NUMBER."
        with locked(f"lab{lab.number}", busy):
            if options.action == "up":
                if options.share:
                    options.share.mkdir(parents=True, exist_ok=True)
                lab.up(options.hosts, options.share and options.share.resolve())
            else:
                say("down; nothing of it is left." if lab.down() else "there was none.")
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
