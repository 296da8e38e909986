# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command, and end every process that it has started when it ends or when this program is told to end.

A build runs in a session of its own, where neither Ctrl-C nor the end of ansible-playbook reaches it. Orphans become
children of this program, so it finds them. The command gets the signal first, because an API ends its own processes in
order. Linux only; standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
COMMAND_LIMIT_S = 15  # until a command that was told to end is killed
PROCESS_LIMIT_S = 2  # until the other processes are killed

libc = ctypes.CDLL(None)


def descendants() -> list[int]:
    """Return the ids of all processes that this program has started, or that those have started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, todo = [], [os.getpid()]
    while todo:
        found += (new := children.get(todo.pop(), []))
        todo += new
    return found


def end_others() -> None:
    """End all processes that are left: politely, then by force."""
    forced_at = time.monotonic() + PROCESS_LIMIT_S
    told: set[int] = set()
    while left := descendants():
        forced = time.monotonic() > forced_at
        for process in left:
            if forced or process not in told:
                told.add(process)
                # With sudo, a process may belong to root.
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL if forced else signal.SIGTERM)
        if time.monotonic() > forced_at + PROCESS_LIMIT_S:
            return
        time.sleep(0.05)


def main() -> int:
    """Run the command in the arguments, and return its exit status, or 128 and the number of the signal."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    told: list[int] = []
    command = subprocess.Popen(
        sys.argv[1:],
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 (no threads)
    )

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(command.pid, number)

    def pass_on(number: int, _frame: object) -> None:
        told.append(number)
        send(number)
        signal.alarm(COMMAND_LIMIT_S)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    signal.signal(signal.SIGALRM, lambda *_signal: send(signal.SIGKILL))
    process, status = os.wait()
    while process != command.pid:
        process, status = os.wait()
    signal.alarm(0)
    end_others()
    if not told:
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code
    print("\nInterrupted: all processes of this run have ended.", file=sys.stderr, flush=True)
    return 128 + told[0]


if __name__ == "__main__":
    sys.exit(main())
