# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests of malformed requests to confined workers, from a trusted address: they serve again, and harm no host."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Callable

import pytest

from lab.listing import listing
from support.hostile_requests import ATTACKS, Attack, a_row_that_there_is_not
from support.lab.hosts import ADDRESS, PORT, UNIT, WORKERS, at_once, eventually, ssh, ssh_command
from support.malformed_sessions import Recording, recorded, send, spoilt
from support.quantised_models import Type, write_quantised
from support.rpc_session import Command, Session, WorkerClosedError

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSIONS = int(os.environ.get("FUZZ_SESSIONS", "16"))
FIRST = int(os.environ.get("FUZZ_FIRST", "7000"))
BACK_S = 60
# Folders that the services may write to. The last one is of the service that keeps the cache in order.
OWN = ("/var/cache/llama_cpp", "/var/lib/llama_cpp", "/var/lib/llama_rpc_cache")
CLIENT = """
import subprocess, sys
endpoint = sys.argv[-1]
*ssh, host = sys.argv[1:sys.argv.index("--")]
sys.exit(subprocess.run([*ssh, "-R", endpoint + ":" + endpoint, host, *sys.argv[sys.argv.index("--") + 1:]]).returncode)
"""


@contextmanager
def tunnel(worker: str) -> Iterator[int]:
    """Yield a port of this machine's loopback that leads to a worker as if from the master."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    *ssh_, host = ssh_command("master", anew=True)
    forward = f"127.0.0.1:{port}:{ADDRESS[worker]}:{PORT}"
    argv = [*ssh_, "-N", "-o", "ExitOnForwardFailure=yes", "-o", "LogLevel=QUIET", "-L", forward, host]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(port), BACK_S, f"{worker} answers over the master")
        yield port
    finally:
        process.terminate()
        process.wait(10)


def answers(port: int) -> bool:
    """Return whether a worker answers the hello."""
    with suppress(OSError, AssertionError, struct.error), closing(Session(port)):
        return True
    return False


def property_of(worker: str, name: str) -> str:
    return ssh(worker, "systemctl", "show", f"--property={name}", "--value", UNIT).stdout.strip()


@dataclass
class Target:
    """A worker, and the attacks that it died of."""

    worker: str
    port: int
    deaths: list[str] = field(default_factory=list)

    def attack(self, name: str, attempt: Callable[[int], None]) -> None:
        """Attack the worker; it may die, but it must answer afterwards."""
        before = property_of(self.worker, "NRestarts")
        with suppress(OSError, EOFError, WorkerClosedError, struct.error, AssertionError):
            attempt(self.port)
        eventually(lambda: answers(self.port), BACK_S, f"{self.worker} answers again after {name}")
        if property_of(self.worker, "NRestarts") != before:
            self.deaths.append(name)
            # The pause before each next start grows. This resets it to one second.
            ssh(self.worker, "systemctl", "reset-failed", UNIT)


def connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 10)


def garbage(port: int) -> None:
    with connection(port) as sock:
        sock.sendall(bytes(range(256)) * 64)
        sock.recv(1)


def half_a_hello(port: int) -> None:
    with connection(port) as sock:
        sock.sendall(struct.pack("<BQ", Command.HELLO, 24) + bytes(7))


def more_than_any_memory(port: int) -> None:
    with closing(Session(port)) as session:
        session.socket.sendall(struct.pack("<BQ", Command.SET_TENSOR, 1 << 62))
        session.socket.recv(1)


def a_buffer_of_more_than_any_memory(port: int) -> None:
    with closing(Session(port)) as session:
        session.request(Command.ALLOC_BUFFER, struct.pack("<IQ", 0, 1 << 62))
        session.request(Command.ALLOC_BUFFER, struct.pack("<IQ", 1 << 31, 64))


def a_handle_that_there_is_not(port: int) -> None:
    with closing(Session(port)) as session:
        session.request(Command.BUFFER_GET_BASE, struct.pack("<Q", 0x4141414141414141))


def asked(port: int, attack: Attack) -> None:
    with closing(Session(port)) as session:
        attack(session)


# Attacks that the patch rpc-safety refuses, and attacks that are known to end a worker. Without the latter, the test
# would show nothing of a worker's return.
REFUSED = {"a function of CUSTOM", "rows into more matrices than there are", "a tensor outside of its buffer"}
DEADLY = {a_row_that_there_is_not.__name__}
OTHERS = garbage, half_a_hello, more_than_any_memory, a_buffer_of_more_than_any_memory, a_handle_that_there_is_not
ATTEMPTS: dict[str, Callable[[int], None]] = {
    **{attempt.__name__: attempt for attempt in OTHERS},
    **{name: partial(asked, attack=ATTACKS[name]) for name in sorted(REFUSED)},
    a_row_that_there_is_not.__name__: partial(asked, attack=a_row_that_there_is_not),
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """Record what a client on the master sends that reads a prompt and says two words."""
    model, _tokens = write_quantised(tmp_path_factory.mktemp("model") / "model", (Type.Q4_0, Type.Q4_K), layers=1)
    place = "/var/tmp/llama-malformed.gguf"
    ssh_ = ssh_command("master", anew=True)
    with model.open("rb") as data:
        subprocess.run([*ssh_, f"cat >{place}"], stdin=data, check=True, timeout=60)
    program = f"/opt/llama_cpp/current/bin/llama-completion -m {place} -ngl 99 -n 3 -c 128 -fit off --no-warmup -no-cnv"
    try:
        with tunnel("worker1") as port:
            yield recorded(
                [sys.executable, "-c", CLIENT, *ssh_, "--", *program.split(), "-p", "quiet", "--temp", "0", "--rpc"],
                port,
            )
    finally:
        ssh("master", "rm", "-f", place)


def state(worker: str) -> dict[str, object]:
    """Return the state of a host that harm would change, without what the service may write."""
    own = "|".join(map(re.escape, OWN))
    bytes_of = (
        "find /opt/llama_cpp /usr/local /usr/lib/systemd /boot -xdev -type f -exec sha256sum {} + 2>/dev/null | sort"
    )
    # A service that a timer starts may run just then.
    programs = "ps -u llama-rpc -o unit=,comm= | grep -vE '^llama-rpc-(cache@[0-9]+|resume)[.]service '"
    running = "systemctl list-units --type=service --state=running --plain --no-legend | awk '{ print $1 }'"
    return {
        "listing": [line for line in listing(worker) if not re.search(rf" ({own})", line)],
        "bytes": ssh(worker, "sh", "-c", bytes_of).stdout,
        "services": ssh(worker, "sh", "-c", running).stdout.split(),
        "failed": ssh(worker, "systemctl", "list-units", "--failed", "--plain", "--no-legend").stdout,
        "processes": [
            ssh(worker, "systemctl", "show", "--property=MainPID", "--value", name).stdout
            for name in ("ssh.service", "firewalld.service", "dbus.service", "systemd-journald.service")
        ],
        "boot": ssh(worker, "cat", "/proc/sys/kernel/random/boot_id").stdout,
        "programs of the account": ssh(worker, "sh", "-c", programs).stdout.split(),
    }


def written(worker: str, since: str) -> list[str]:
    """Return the account's files and files changed since then, without what the service and others may write."""
    places = "/bin /boot /dev/shm /etc /home /opt ~root /srv /tmp /usr /var /run"
    found = ssh(
        worker, "sh", "-c", f"find {places} -xdev -user llama-rpc; "
        f"find /boot /etc /home /opt ~root /srv /usr /var/spool /var/tmp -xdev -type f -newer {since}",
    ).stdout.splitlines()  # fmt: skip
    return [path for path in found if not path.startswith(OWN)]


@pytest.mark.usefixtures("cluster")
def test_workers_serve_again_whatever_they_are_sent_and_their_hosts_are_unharmed(
    recording: Recording, record_property: Callable[[str, object], None]
) -> None:
    stamp = "/run/llama-malformed"
    for worker in WORKERS:
        ssh(worker, "systemctl", "restart", UNIT)
        ssh(worker, "touch", stamp)
    decoy = "/var/tmp/llama-decoy"
    ssh("worker1", "install", "-o", "llama-rpc", "/dev/null", decoy)
    assert written("worker1", stamp) == [decoy] * 2, "what is written elsewhere is found"
    ssh("worker1", "rm", decoy)
    before = at_once(state, WORKERS)

    def attack(worker: str) -> list[str]:
        with tunnel(worker) as port:
            target = Target(worker, port)
            for name, attempt in ATTEMPTS.items():
                target.attack(name, attempt)
            # Each worker gets sessions of its own.
            own = FIRST + WORKERS.index(worker) * SESSIONS
            for seed in range(own, own + SESSIONS):
                target.attack(f"session {seed}", lambda port, seed=seed: send(port, recording, spoilt(recording, seed)))
            return target.deaths

    began = time.monotonic()
    deaths = at_once(attack, WORKERS)
    record_property("deaths", deaths)
    print(f"{2 * (len(ATTEMPTS) + SESSIONS)} attempts in {time.monotonic() - began:.0f} s; ended by: {deaths}")
    assert all(set(died) >= DEADLY and not REFUSED & set(died) for died in deaths.values()), deaths
    assert at_once(state, WORKERS) == before
    assert at_once(lambda worker: written(worker, stamp), WORKERS) == {worker: [] for worker in WORKERS}
