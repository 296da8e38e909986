# SPDX-License-Identifier: GPL-3.0-or-later
"""Run `ansible-test sanity` on this checkout, with no ignore entries, and print what was not run and why.

ansible-test needs a real folder `ansible_collections/llama_cpp/cluster`, keeps its virtual environments below HOME,
passes no environment to pip, and gets pip's installer from a separate host. So this script copies the files that git
has or would add into the cache, sets HOME to a folder in the cache, writes pip's settings to pip's file there, and
replaces the installer by one that uses an installed pip or ensurepip. Further arguments go to ansible-test.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from configparser import RawConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ansible.release import __version__ as core_version
from ansible_test._internal.python_requirements import get_venv_packages

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
# Each interpreter and ansible-core has its own HOME, because the virtual environments in it depend on both.
HOME = CACHE / "sanity" / hashlib.sha256(f"{sys.version} {sys.base_prefix} {core_version}".encode()).hexdigest()[:8]
PLACE = HOME / "collections" / "ansible_collections" / "llama_cpp" / "cluster"

# Runs instead of get-pip, with get-pip's arguments. This Python's pip can install for other interpreters that are not
# too old.
GET_PIP = f"""\
import subprocess, sys
packages = [argument for argument in sys.argv[1:] if not argument.startswith("--no-")]
install = ["install", "--quiet", "--quiet"] + packages
status = subprocess.call([{sys.executable!r}, "-m", "pip", "--python", sys.executable] + install)
if status:
    subprocess.check_call([sys.executable, "-m", "ensurepip"], stdout=subprocess.DEVNULL)
    status = subprocess.call([sys.executable, "-m", "pip"] + install)
sys.exit(status)
"""


def copy_checkout() -> None:
    """Copy the files that git has or would add to where ansible-test accepts them."""
    listing = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    shutil.rmtree(PLACE, ignore_errors=True)
    for name in filter(None, listing.split("\0")):
        source, target = ROOT / name, PLACE / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def write_pip_settings() -> None:
    """Write this machine's index, certificates and proxy to pip.conf: ansible-test passes pip no environment."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    settings = RawConfigParser()
    settings["global"] = {}
    for option, names in {
        "proxy": ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"],
        "cert": ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"],
    }.items():
        for name in names:
            if os.environ.get(name):
                settings["global"].setdefault(option, os.environ[name])
    for line in listing.splitlines():
        key, value = line.split("=", 1)
        section, option = key.rsplit(".", 1)
        section = "global" if section == ":env:" else section
        if section not in settings:
            settings.add_section(section)
        settings[section][option] = ast.literal_eval(value)
    settings["global"].update({"cache-dir": str(CACHE / "pip"), "disable-pip-version-check": "1", "quiet": "2"})
    path = HOME / ".config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The address of an index can have a password.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        settings.write(stream)


def write_get_pip() -> None:
    """Write our installer of pip to where ansible-test keeps the downloaded one."""
    wanted = get_venv_packages(SimpleNamespace(version=f"{sys.version_info[0]}.{sys.version_info[1]}"))["pip"]
    path = HOME / ".ansible" / "test" / "cache" / f"get_pip_{wanted.replace('.', '_')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(GET_PIP)


def runs(program: Path) -> bool:
    """Return whether an interpreter runs: a shim of pyenv may have none."""
    try:
        return subprocess.run([program, "-c", ""], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def search_path(given: str) -> str:
    """Return PATH with .venv's tools and pyenv's interpreters first, and no folder whose interpreters do not run."""
    folders = [Path(folder) for folder in given.split(os.pathsep) if folder]
    pyenvs = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")]
    pyenvs += [folder.parent for folder in folders if folder.name == "shims"]
    parts = [
        Path(sys.executable).parent,
        *(found for pyenv in pyenvs for found in sorted(pyenv.glob("versions/*/bin"))),
    ]
    parts += [folder for folder in folders if all(map(runs, folder.glob("python3.[0-9]*[0-9]")))]
    return os.pathsep.join(map(str, dict.fromkeys(parts)))


def run_sanity(arguments: Sequence[str]) -> int:
    """Run ansible-test on the copy, pass its output on, and return its exit status."""
    started = time.monotonic()
    not_run = ["pslint (PowerShell): no such file is in the collection"]
    with subprocess.Popen(
        [sys.executable, Path(sys.executable).parent / "ansible-test", "sanity", "--color", "no", *arguments],
        cwd=PLACE,
        env={**os.environ, "HOME": str(HOME), "PATH": search_path(os.environ.get("PATH", os.defpath))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            if line.startswith(("WARNING: Skipping", "WARNING: Required program")):
                not_run.append(line.strip().partition(": ")[2])
            elif not line.startswith(("WARNING: Using locale", "WARNING: Reviewing previous", "Using cached pip")):
                print(line, end="", flush=True)
    print(f"ansible-test sanity of ansible-core {core_version}: {time.monotonic() - started:.0f} s. Not run:")
    # ansible-test prints its warnings twice.
    for reason in dict.fromkeys(not_run):
        print(f"  {reason}")
    return process.returncode


def main() -> int:
    """Prepare what ansible-test needs and run it; a second run of this script waits for the first."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy_checkout()
        write_pip_settings()
        write_get_pip()
        return run_sanity(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
