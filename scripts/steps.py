# SPDX-License-Identifier: GPL-3.0-or-later
"""Run molecule, pass on its output, print how long each step took, and exit with molecule's exit status.

A test that is interrupted leaves no hosts.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

# As in "INFO     [cluster > converge] Executing" and "INFO     [cluster > converge] Executed: Successful".
STEP = re.compile(r"^\w+ +\[(\S+) > (\w+)\] (Executing|Executed: (.+))$")
COLOUR = re.compile(r"\x1b\[\d*m")


def end_all(number: int, _frame: object) -> None:
    """Send the signal to this program's process group: molecule alone would leave its child processes running."""
    signal.signal(number, signal.SIG_IGN)
    os.killpg(0, number)
    raise KeyboardInterrupt


def main() -> int:
    """Run the program in the arguments, and return its exit status."""
    # Not if the process group belongs to another program.
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, end_all)
    took: list[tuple[float, str, str]] = []
    began = time.monotonic()
    with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                found = STEP.match(COLOUR.sub("", line).strip())
                if found and found[3] == "Executing":
                    began = time.monotonic()
                elif found:
                    took.append((time.monotonic() - began, f"{found[1]} {found[2]}", found[4]))
        except KeyboardInterrupt:
            # Molecule has received it too, and ends.
            process.wait()
            if "test" in sys.argv and "--destroy=never" not in sys.argv:
                subprocess.run(["scripts/lab.sh", "down"], check=False)
    print("\nWhat each step took:")
    for seconds, name, outcome in took:
        print(f"  {seconds:6.1f} s  {name:22}  {outcome}")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
