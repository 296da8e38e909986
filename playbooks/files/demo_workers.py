# SPDX-License-Identifier: GPL-3.0-or-later
"""Start RPC workers on loopback for a demonstration, and end them.

`start` starts a supervisor in the background, prints {"endpoints": [...], "supervisor": pid} and returns once every
worker listens. The supervisor ends the workers on `stop`, when the Ansible run that started it is gone (finished,
interrupted or killed), or after a time limit. If the supervisor is killed, the kernel ends the workers. The supervisor
holds a lock on the state folder as long as it runs. Linux only; standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

START_LIMIT_S = 20
STOP_LIMIT_S = 10
TCP_LISTEN = "0A"  # include/net/tcp_states.h
# A command with this prefix and a signal's name gets that signal from the kernel when its parent process is gone.
SIGNAL_WHEN_PARENT_ENDS = ("setpriv", "--pdeathsig")


def ansible_run() -> int | None:
    """Return the process id of the Ansible run that started this script: its highest ancestor of that name."""
    found, pid = None, os.getpid()
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:3]
        except (OSError, IndexError, ValueError):
            break
        if any(Path(os.fsdecode(word)).name.startswith("ansible") for word in words):
            found = pid
    return found


def free_ports(count: int) -> list[int]:
    """Return loopback ports that nothing listens on now."""
    with ExitStack() as sockets:
        held = [sockets.enter_context(socket.socket()) for _number in range(count)]
        for sock in held:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in held]


def listening_ports() -> set[int]:
    """Return the IPv4 ports that have a listener, as the kernel lists them: a connection would disturb a worker."""
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == TCP_LISTEN}


def start_worker(server: str | Path, port: int, threads: int, log: Path) -> subprocess.Popen[bytes]:
    """Start a worker that ends with this process, and write its output to a file."""
    # Lines must reach the log at once: upstream's banner is block-buffered.
    listen = ["-H", "127.0.0.1", "-p", str(port)]
    command = [*SIGNAL_WHEN_PARENT_ENDS, "KILL", "stdbuf", "-oL", str(server), *listen, "-t", str(threads), "-d", "CPU"]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill the processes, and wait until they have ended."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def lock(state: Path) -> int | None:
    """Lock the state folder and return its descriptor, or None if a demo has the lock. Closing all copies unlocks."""
    descriptor = os.open(state, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def supervise(args: argparse.Namespace, ports: list[int], run: int | None) -> None:
    """Run the workers until told to stop, until `run` is gone, until none is left, or until the limit has passed."""
    watched = [os.pidfd_open(run)] if run else []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_signal: sys.exit())
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index, port in enumerate(ports, 1):
            processes.append(start_worker(args.server, port, args.threads, args.state / f"worker{index}.log"))
        deadline = time.monotonic() + args.limit
        while time.monotonic() < deadline and any(process.poll() is None for process in processes):
            if select.select(watched, [], [], 0.2)[0]:
                break
    finally:
        end(processes)


def start(args: argparse.Namespace) -> int:
    """Start the supervisor, wait until every worker listens, and print the endpoints."""
    if not os.access(args.server, os.X_OK) or Path(args.server).is_dir():
        print(f"{args.server} is not a program: build or install llama.cpp first.", file=sys.stderr)
        return 1
    args.state.mkdir(parents=True, exist_ok=True)
    recorded = args.state / "workers.json"
    if lock(args.state) is None:
        earlier = json.loads(recorded.read_text())["supervisor"]
        print(f"Another demo is running (process {earlier}); wait for its end, or end it.", file=sys.stderr)
        return 1
    recorded.unlink(missing_ok=True)
    ports = free_ports(args.count)
    run = ansible_run()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        try:
            supervise(args, ports, run)
        finally:
            os._exit(0)
    record = {"supervisor": pid, "endpoints": [f"127.0.0.1:{port}" for port in ports]}
    recorded.write_text(json.dumps(record))
    deadline = time.monotonic() + START_LIMIT_S
    while not listening_ports().issuperset(ports):
        ended = os.waitpid(pid, os.WNOHANG)[0]
        if ended or time.monotonic() > deadline:
            if not ended:
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)
            logs = sorted(args.state.glob("worker*.log"))
            words = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-3:]]
            what = "ended at once" if ended else f"did not listen within {START_LIMIT_S} s"
            print(f"A worker {what}; the last lines of all logs: {' | '.join(words) or 'none'}.", file=sys.stderr)
            return 1
        time.sleep(0.05)
    print(json.dumps(record))
    return 0


def stop(args: argparse.Namespace) -> int:
    """End the supervisor that `start` with the same state folder has started."""
    if not args.state.is_dir() or lock(args.state) is not None:
        return 0
    pid = json.loads((args.state / "workers.json").read_text())["supervisor"]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while lock(args.state) is None:
        if time.monotonic() > deadline:
            print(f"The demo's supervisor (process {pid}) did not end within {STOP_LIMIT_S} s.", file=sys.stderr)
            return 1
        time.sleep(0.05)
    return 0


def main() -> int:
    """Parse the arguments and report errors in one sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    starter = commands.add_parser("start")
    starter.set_defaults(call=start)
    starter.add_argument("--server", required=True, help="the RPC server program")
    starter.add_argument("--count", type=int, required=True, choices=range(1, 16), help="how many workers")
    starter.add_argument("--threads", type=int, required=True, help="threads of each")
    starter.add_argument("--limit", type=float, default=3600, help="seconds after which they end in any case")
    stopper = commands.add_parser("stop")
    stopper.set_defaults(call=stop)
    for command in (starter, stopper):
        command.add_argument("--state", type=Path, required=True, help="folder for logs and the process record")
    args = parser.parse_args()
    try:
        return int(args.call(args))
    except OSError as error:
        print(f"The demo's workers could not be handled: {error}.", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
