# SPDX-License-Identifier: GPL-3.0-or-later
"""A Debian arm64 system made on a machine of another architecture, without running any of it under emulation.

Emulation would take minutes. Instead the same packages are installed for this machine's architecture: their maintainer
scripts, which make accounts, links and configuration, run natively in this "twin" of the system. Then the arm64 build
of each package that depends on the architecture replaces it: files, control files and its entry in dpkg's database. At
the end apt on arm64 checks whether all dependencies are met. The kernel is Debian's, beside the disk.

This file is the recipe: the digest of its text identifies an image, so any change makes a new image.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import platform
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.lab.programs import IN_PROCESS_NAMESPACE, WITH_THIS, LabError, make_folders, run

ARCHITECTURE = "arm64"
TRIPLET = "aarch64-linux-gnu"
TWIN_TRIPLET = f"{platform.machine()}-linux-gnu"
KERNEL = "linux-image-cloud-arm64"
DISK_SIZE = "6G"  # the file takes only the space in use

# These are in the image, as installing them in a host takes minutes: the firewall, kmod to load the kernel modules for
# it, and what Ansible's module for packages installs where it is missing.
PACKAGES = "firewalld,kmod,netbase,python3-apt"
# Nobody reads manuals here, and unpacking them also takes time in every later installation on a host.
LEFT_OUT = ("usr/share/man", "usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/lintian")
# A boot skips everything that it can: every process that it starts takes a tenth of a second or more.
MASKED = (
    "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer "
    "systemd-pstore.service e2scrub_reap.service systemd-random-seed.service systemd-update-utmp.service "
    "dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount "
    "sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount kmod-static-nodes.service "
    "modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service "
    "systemd-hwdb-update.service systemd-journal-catalog-update.service systemd-battery-check.service "
    "console-getty.service getty@tty1.service serial-getty@ttyAMA0.service systemd-tpm2-setup-early.service "
    "systemd-tpm2-setup.service systemd-pcrphase.service systemd-hibernate-clear.service "
    "systemd-network-generator.service systemd-udev-load-credentials.service "
    "systemd-networkd-persistent-storage.service"
)
# Half of a task's time goes to compiling Ansible's modules, which come in a ZIP archive. Keep the byte code by the
# digest of each module.
KEEP_BYTE_CODE = """
import zipimport
from _imp import source_hash
from marshal import dumps, loads
from posix import rename

compile_source = zipimport._compile_source


def kept(path, source):
    name = f"/var/tmp/bytecode/{source_hash(0, source).hex()}"
    try:
        with open(name, "rb") as file:
            return loads(file.read())
    except (OSError, EOFError, ValueError):
        code = compile_source(path, source)
    try:
        with open(f"{name}.new", "xb") as file:
            file.write(dumps(code))
        rename(file.name, name)
    except OSError:
        pass
    return code


zipimport._compile_source = kept
"""
TRIGGER = "[Service]\nExecStart=\nExecStart=-udevadm trigger --action=add --subsystem-match=net\n"
# Each of these accounts for a good part of sudo's time.
SUDO = "Defaults !use_pty, !syslog, !pam_session, !pam_setcred, !pam_acct_mgmt\n"
FILES = {
    "etc/sudoers.d/lean": SUDO,
    # All devices but the network's exist before the first program starts.
    "etc/systemd/system/systemd-udev-trigger.service.d/lean.conf": TRIGGER,
    "usr/lib/python3/dist-packages/keep_byte_code.py": KEEP_BYTE_CODE,
    "usr/lib/python3/dist-packages/keep_byte_code.pth": "import keep_byte_code\n",
}
HOOKS = (
    # The role that needs firewalld starts it.
    'chroot "$1" systemctl -q disable firewalld',
    f'chroot "$1" systemctl -q mask {MASKED}',
    'chroot "$1" systemctl -q unmask systemd-udev-trigger',
)
# Downloads the twin's packages for the other architecture, with the sources and keys that mmdebstrap was given.
DOWNLOAD = f"""
set -eu
twin=$1
mkdir -p "$twin/debs/lists/partial"
cat "$MMDEBSTRAP_APT_CONFIG" >"$twin/debs/apt.conf"
cat >>"$twin/debs/apt.conf" <<END
#clear APT::Architectures;
APT::Architecture "{ARCHITECTURE}";
APT::Architectures {{ "{ARCHITECTURE}"; }};
Dir::State::Lists "$twin/debs/lists";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT::Sandbox::User "root";
END
export APT_CONFIG="$twin/debs/apt.conf"
apt-get -qq update
kernel=$(apt-cache show {KERNEL} | sed -n '/^Depends:/{{s/.*\\(linux-image-[^ ,]*\\).*/\\1/p;q}}')
cd "$twin/debs"
apt-get -qq download $(chroot "$twin" dpkg-query -W -f '${{Package}}\\n') busybox-static "$kernel"
"""


def folders(image: Path) -> Path:
    """Return where an image keeps some of its folders for inspection, with their owners and modes."""
    return image / "folders"


def make(suite: str, recipe: list[str], seen: tuple[str, ...], work: Path) -> Path:
    """Make a folder with the kernel, disk.ext4, the parts of the initial RAM disk, and some folders for inspection."""
    twin, image = work / "twin", work / "image"
    twin.mkdir(mode=0o755)
    folders(image).mkdir(mode=0o755, parents=True)
    download = work / "download"
    download.write_text(f"#!/bin/sh{DOWNLOAD}")
    download.chmod(0o755)
    options = [f"--dpkgopt=path-exclude=/{folder}/*" for folder in LEFT_OUT]
    options += [f"--customize-hook={hook}" for hook in HOOKS]
    # Use namespaces of its own, so that its mounts and processes end with it.
    run(
        *WITH_THIS, *IN_PROCESS_NAMESPACE, "env", f"TMPDIR={work}", "mmdebstrap", "--format=directory", *recipe,
        *options, f"--customize-hook={download}", suite, str(twin),
    )  # fmt: skip
    # The target is inside the twin, so that the twin's programs, which are of the same release, can work on it.
    root = twin / "target"
    shutil.move(twin / "debs", work / "debs")
    run("cp", "-a", "--reflink=auto", str(twin), str(work / "target"))
    shutil.move(work / "target", root)
    replace_packages(root, sorted((work / "debs").glob("*.deb")))
    add_kernel(twin, root, work / "debs", image)
    run(
        "chroot", str(twin), "python3", "-m", "compileall", "-q", "-j", "0", "-s", "/target", "-p", "/",
        "/target/usr/lib/python3", *(f"/target/usr/lib/{path.name}" for path in root.glob("usr/lib/python3.*")),
    )  # fmt: skip
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o440 if "sudoers" in name else 0o644)
    (root / "var/tmp/bytecode").mkdir(mode=0o755)
    check(twin)
    make_folders(folders(image), root, seen)
    run(
        "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "nodiscard", "-m", "0", "-L", "lab",
        "-d", str(root), str(image / "disk.ext4"), DISK_SIZE,
    )  # fmt: skip
    return image


def fields(paragraph: str) -> dict[str, str]:
    """Return the fields of a paragraph of dpkg's, each with its continuation lines."""
    return dict(re.findall(r"^([^\s:]+): ?(.*(?:\n[ \t].*)*)$", paragraph, re.MULTILINE))


def replace_packages(root: Path, archives: list[Path]) -> None:
    """Replace each package of the twin's architecture by its build for the other one."""
    database = root / "var/lib/dpkg"
    paragraphs = map(fields, (database / "status").read_text().strip().split("\n\n"))
    known = {entry["Package"]: entry for entry in paragraphs}
    native = {name for name, entry in known.items() if entry["Architecture"] != "all"}
    builds = {archive.name.split("_")[0]: archive for archive in archives if not archive.name.endswith("_all.deb")}
    if missing := native - set(builds):
        raise LabError(f"Debian has no {ARCHITECTURE} build of {', '.join(sorted(missing))}.")
    were = remove_packages(root, native)
    # First unpack the package with the links to /usr, through which the others may unpack.
    unpack(root, builds["base-files"])
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        controls = list(threads.map(lambda name: unpack(root, builds[name]), native))
    # Restore the owners and modes that maintainer scripts have given to files of packages.
    for path, was in were.items():
        if path.exists() and not path.is_symlink():
            os.chown(path, was.st_uid, was.st_gid)
            path.chmod(stat.S_IMODE(was.st_mode))
    for name, control in zip(native, controls):
        own = {"Package": name, "Status": known[name]["Status"]}
        if "Conffiles" in known[name]:
            own["Conffiles"] = "".join(
                f"\n {conffile} {digest(root, conffile)}"
                for conffile in map(renamed, re.findall(r"^ (\S+)", known[name]["Conffiles"], re.MULTILINE))
                if (root / conffile.lstrip("/")).is_file()
            )
        known[name] = {**own, **control}
    (database / "status").write_text(
        "\n".join("".join(f"{name}: {value}\n" for name, value in entry.items()) for entry in known.values())
    )
    for place in ("arch", "arch-native", "diversions", "triggers/File", "../apt/extended_states"):
        path = database / place
        if path.exists():
            path.write_text(renamed(path.read_text()))


def remove_packages(root: Path, packages: set[str]) -> dict[Path, os.stat_result]:
    """Remove packages with everything made from them; return each file's status, by its name in the other build."""
    were = {}
    for info in list(root.glob("var/lib/dpkg/info/*.*")):
        if info.stem.split(":")[0] not in packages:
            continue
        for line in info.read_text().splitlines() if info.suffix == ".list" else []:
            path = root / line.lstrip("/")
            if not path.is_dir() and os.path.lexists(path):
                were[root / renamed(line).lstrip("/")] = path.lstat()
                path.unlink()
        info.unlink()
    leftovers = [root / place for place in ("lib64", "usr/lib64", "etc/ld.so.cache")]
    for path in [*leftovers, *root.glob(f"usr/lib/**/*{TWIN_TRIPLET}*"), *root.glob(f"usr/share/**/{TWIN_TRIPLET}")]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    return were


def digest(root: Path, conffile: str) -> str:
    return hashlib.md5((root / conffile.lstrip("/")).read_bytes()).hexdigest()


def renamed(text: str) -> str:
    text = text.replace("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
    return re.sub(r"\bamd64\b", ARCHITECTURE, text.replace(TWIN_TRIPLET, TRIPLET))


def unpack(root: Path, archive: Path) -> dict[str, str]:
    """Unpack a package as dpkg would, control files included, and return its control fields."""
    control = archive.with_suffix("")
    run("dpkg-deb", "--control", str(archive), str(control))
    entry = fields((control / "control").read_text())
    left_out = " ".join(f"--exclude=./{folder}/*" for folder in LEFT_OUT)
    tar = f"tar -xvp --numeric-owner --keep-directory-symlink {left_out}"
    script = f'dpkg-deb --fsys-tarfile "$1" | {tar} -C "$2"'
    unpacked = run("sh", "-c", script, "unpack", str(archive), str(root)).stdout
    full = entry["Package"] + (f":{ARCHITECTURE}" if entry.get("Multi-Arch") == "same" else "")
    info = root / "var/lib/dpkg/info"
    names = [line.lstrip(".").rstrip("/") or "/." for line in unpacked.splitlines()]
    (info / f"{full}.list").write_text("".join(f"{name}\n" for name in names))
    for path in control.iterdir():
        if path.name != "control":
            shutil.copy(path, info / f"{full}.{path.name}")
    shutil.rmtree(control)
    return entry


def add_kernel(twin: Path, root: Path, debs: Path, image: Path) -> None:
    """Copy the kernel and its modules from the kernel's package, and from others the program that starts the system."""
    for name in ("linux-image-", "busybox-static_"):
        archive = next(debs.glob(f"{name}*.deb"))
        run("dpkg-deb", "--extract", str(archive), str(debs / name))
    shutil.copy(next(debs.glob("linux-image-/boot/vmlinuz-*")), image / "kernel")
    shutil.copy(debs / "busybox-static_/usr/bin/busybox", image / "busybox")
    modules = next(debs.glob("linux-image-/usr/lib/modules/*"))
    # Decompress the modules once here, rather than in each host at each start.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(decompress, modules.glob("kernel/**/*.ko.xz")))
    target = root / "usr/lib/modules" / modules.name
    shutil.copytree(modules, target, symlinks=True)
    run("chroot", str(twin), "depmod", "-b", "/target", modules.name)
    # The numbers give the order of the modules' dependencies.
    (image / "modules").mkdir()
    needs = dict(line.split(":") for line in (target / "modules.dep").read_text().splitlines())
    wanted: list[str] = []
    for module in ("virtio_blk", "virtio_net"):
        path = next(path for path in needs if path.endswith(f"/{module}.ko"))
        wanted += [path for path in [*reversed(needs[path].split()), path] if path not in wanted]
    for number, path in enumerate(wanted):
        shutil.copy(target / path, image / "modules" / f"{number:02}-{Path(path).name}")


def decompress(module: Path) -> None:
    module.with_suffix("").write_bytes(lzma.decompress(module.read_bytes()))
    module.unlink()


def check(twin: Path) -> None:
    """Check that dpkg and apt, which believe their database, find nothing wrong."""
    said = run("chroot", str(twin), "dpkg", "--root=/target", "--audit").stdout
    if said:
        raise LabError(f"the {ARCHITECTURE} system is not whole: {said}")
    apt = [f"-oAPT::Architecture={ARCHITECTURE}", f"-oAPT::Architectures={ARCHITECTURE}", "-oDir=/target"]
    run("chroot", str(twin), "apt-get", *apt, "-oDir::State::Status=/target/var/lib/dpkg/status", "check")
