# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of the scenario "aarch64", as a user sees them: over SSH, and through Ansible."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.logits import Logits

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("LLAMA_CPP_CLUSTER_CACHE") or Path.home() / ".cache" / "llama_cpp_cluster")
NUMBER = int(os.environ.get("LAB_NUMBER") or 0)
LAB = CACHE / "lab" / str(NUMBER)
# scripts/molecule.sh sets the inventory: with one Arm class or two.
INVENTORY = ROOT / "inventories" / (os.environ.get("AARCH64_INVENTORY") or "lab_aarch64")
TWO_CLASSES = INVENTORY.is_dir()
NATIVE = platform.machine() == "aarch64"

MASTER = "arm-master"
# The master is a worker too.
ARM = ("arm-master", "arm-worker") if TWO_CLASSES else ("arm-master",)
# These two are containers of the controller's architecture.
OTHER = "worker1"
STRANGER = "outsider"
WORKERS = (*ARM, OTHER)
ADDRESS = {
    name: f"10.87.{NUMBER}.{last}" for name, last in ((MASTER, 30), ("arm-worker", 31), (OTHER, 11), (STRANGER, 20))
}
PORT = 50052
UNIT = f"llama-rpc-server@{PORT}.service"
PROGRAMS = "/opt/llama_cpp/current/bin"
# For a command on a busy emulated host. Most commands take one second.
LIMIT_S = 120
# A login on an emulated host takes a second, so all commands share one connection. conftest.py closes it after the
# tests.
SSH = ("ssh", "-F", str(LAB / "ssh_config"), "-o", "ControlPath=" + str(LAB / "link-%n"))

# Prints "connected" or the exception's name for each address. The host needs only Python.
CONNECT = """
import socket, sys
for address in sys.argv[2:]:
    try:
        socket.create_connection((address, int(sys.argv[1])), timeout=3).close()
        print("connected")
    except OSError as error:
        print(type(error).__name__)
"""


def endpoint(host: str) -> str:
    return f"{ADDRESS[host]}:{PORT}"


def ssh(
    host: str, *argv: str, check: bool = True, timeout: float = LIMIT_S, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a program as root on a host."""
    command = [*SSH, "-o", "ControlMaster=auto", "-o", "ControlPersist=60", host, "sudo", shlex.join(argv)]
    # The persistent connection would keep a pipe open, so the output goes to files.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        done = subprocess.run(command, input=given, stdout=out, stderr=errors, timeout=timeout, check=False)
        out.seek(0)
        errors.seek(0)
        result = subprocess.CompletedProcess(command, done.returncode, out.read(), errors.read())
    said = (result.stdout[-2000:] + result.stderr[-2000:]).decode(errors="replace")
    assert not check or result.returncode == 0, f"{host}: {argv}: {result.returncode}\n{said}"
    return result


def said(host: str, *argv: str, **options: Any) -> str:
    """Run a program as root on a host and return its output."""
    return ssh(host, *argv, **options).stdout.decode().strip()


def send(host: str, content: bytes, path: str) -> None:
    ssh(host, "sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1"', "send", path, given=content)


def hang_up(*names: str) -> None:
    for host in names or ADDRESS:
        if (LAB / f"link-{host}").exists():
            subprocess.run([*SSH, "-O", "exit", host], capture_output=True, timeout=20, check=False)


# Prints the version of the RPC protocol that a worker answers with.
HELLO = r"""
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as link:
    link.settimeout(10)
    link.sendall(b"\x0e" + (24).to_bytes(8, "little") + bytes(24))
    print(*link.makefile("rb").read(12)[8:11], sep=".")
"""


def answers(host: str, worker: str) -> str:
    """Return the version of the RPC protocol that a worker answers another host with; empty if it does not answer."""
    done = ssh(host, "python3", "-", ADDRESS[worker], str(PORT), given=HELLO.encode(), check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def reached(host: str, *others: str, port: int = PORT) -> list[str]:
    """Connect from a host to each of the others; return "connected" or the exception's name for each."""
    return said(host, "python3", "-", str(port), *(ADDRESS[o] for o in others), given=CONNECT.encode()).splitlines()


def eventually(true: Callable[[], Any], limit: float, what: str) -> Any:
    """Wait at most `limit` seconds until `true` returns a true value, and return that value."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(1)
    raise AssertionError(f"not within {limit} s: {what}")


@dataclass(frozen=True)
class Model:
    """A file with a model of random weights, and the options of its computation."""

    path: str
    options: tuple[str, ...] = ()


# Weights, caches and sums are 32-bit floats, so only sums are rounded.
FLOATS = Model("/srv/floats.gguf", ("-ctk", "f32", "-ctv", "f32", "-fa", "off"))
# Eight-bit weights with the usual options. Without flash attention, EIGHT_BITS_AGAIN adds in another order.
EIGHT_BITS = Model("/srv/eight-bits.gguf")
EIGHT_BITS_AGAIN = Model(EIGHT_BITS.path, ("-fa", "off"))


def _options(model: Model, prompt: str, workers: tuple[str, ...]) -> list[str]:
    given = ["-m", model.path, "-p", prompt, "-c", "256", "-t", "1", *model.options]
    if workers:
        given += ["--rpc", ",".join(endpoint(worker) for worker in workers), "-ngl", "99"]
        given += ["--device", ",".join(f"RPC{number}" for number in range(len(workers)))]
        # By default llama.cpp divides by the hosts' memory, and some hosts have little.
        given += ["-ts", ",".join("1" for _worker in workers)]
    return given


def text(host: str, model: Model, prompt: str, workers: tuple[str, ...] = (), tokens: int = 12) -> tuple[str, str]:
    """Return the greedy continuation of a prompt, and the log of the run."""
    argv = [f"{PROGRAMS}/llama-completion", *_options(model, prompt, workers), "-n", str(tokens), "--temp", "0"]
    argv = ["timeout", str(LIMIT_S), *argv, "-no-cnv", "--no-display-prompt", "-lv", "4"]
    found = log = ""
    # Upstream's logger also prints the text and is not flushed at exit: one run in a hundred loses all of it.
    for _attempt in range(5):
        done = ssh(host, *argv, timeout=LIMIT_S + 20)
        found, log = done.stdout.decode().rstrip("\n"), done.stderr.decode(errors="replace")
        if found:
            break
    return found, log


def logits(host: str, model: Model, prompt: str, workers: tuple[str, ...] = ()) -> Logits:
    """Return the logits of all tokens of a text."""
    argv = ["timeout", str(LIMIT_S), f"{PROGRAMS}/llama-results", *_options(model, prompt, workers)]
    script = (
        f'file=$(mktemp) && {shlex.join(argv)} -o "$file" >&2 && cat "$file"; status=$?; rm -f "$file"; exit $status'
    )
    done = ssh(host, "sh", "-c", script, timeout=LIMIT_S + 20)
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(done.stdout)
        file.flush()
        return Logits.read(Path(file.name))
