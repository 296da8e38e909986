# SPDX-License-Identifier: GPL-3.0-or-later
"""A terminal in which a test types the commands of a page, in their order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_S = 1800
END_LIMIT_S = 60
# Settings of the machinery around a test, which a user does not have.
NOT_A_USER_S = re.compile(r"ANSIBLE_|CI$|FAILED_TESTS|LAB_|LLAMA_|MAKE|MFLAGS|MOLECULE_|PYTEST|PYTHON|VIRTUAL_ENV|XDG_")

# What may differ from a sample: numbers (a dash is none), what a page writes in capitals, omitted words and lines.
NUMBER = r"[\d.:]+|-"
VALUES = {
    r"(?:\d+[.:])*\d+": f"(?:{NUMBER})",
    r"(?<= )-(?= |$)": f"(?:{NUMBER})",
    r"\bPORT\b": r"\d+",
    r"\bKEY\b": r"\S+",
    r"\[\.\.\.\]": ".*",
}


def environment_of_a_user(home: Path, programs: Path) -> dict[str, str]:
    """Return the environment of a user with this home, who finds these programs before those of the machine."""
    kept = {name: value for name, value in os.environ.items() if not NOT_A_USER_S.match(name)}
    folders = [folder for folder in os.environ["PATH"].split(":") if not folder.endswith("/.venv/bin")]
    return {**kept, "HOME": str(home), "PATH": ":".join([str(programs), *folders]), "NO_COLOR": "1"}


def bare(line: str) -> str:
    """Return a line without what Ansible puts around it in a list, and with single blanks."""
    return " ".join(line.strip().removeprefix("- ").strip("',\"").split())


def pattern(line: str) -> str:
    """Return a pattern for a line of sample output, in which values may differ."""
    values = re.compile("|".join(f"({sample})" for sample in VALUES))
    found, end, text = "", 0, bare(line)
    for value in values.finditer(text):
        found += re.escape(text[end : value.start()]) + list(VALUES.values())[(value.lastindex or 1) - 1]
        end = value.end()
    return found + re.escape(text[end:])


def missing_lines(sample: str, printed: str) -> list[str]:
    """Return the lines of the sample that were not printed; what the model wrote, below "Text", may differ."""
    lines: list[str] = []
    folded = False
    for line in printed.splitlines():
        # Ansible folds a long item of its YAML output at a blank; only the last part ends with the quotation mark.
        if folded:
            lines[-1] += f" {bare(line)}"
        else:
            lines.append(bare(line))
        folded = (folded or line.lstrip().startswith("- '")) and not line.endswith("'")
    missing = []
    before = ""
    for line in sample.splitlines():
        if before.strip() != "Text" and not any(re.fullmatch(pattern(line), printed_line) for printed_line in lines):
            missing.append(line)
        before = line
    return missing


class Terminal:
    """A shell that keeps its folder and its variables from one command to the next, and ends if a command fails."""

    def __init__(self, home: Path, environment: Mapping[str, str], records: Path) -> None:
        self.environment = dict(environment)
        self.records = records
        self.count = 0
        self.foreground: subprocess.Popen[bytes] | None = None
        self.record = records / "shell.log"
        self.shell = self._start([], home, self.record)

    def _start(self, script: list[Path], folder: Path, record: Path) -> subprocess.Popen[bytes]:
        with record.open("wb") as output:
            return subprocess.Popen(
                # What a shell starts in the background ignores Ctrl-C, and so would all that this test starts.
                ["env", "--default-signal=INT", "bash", "--noprofile", "--norc", "-e", *script],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL if script else subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def folder(self) -> Path:
        """The folder in which the next command runs."""
        return Path(f"/proc/{self.shell.pid}/cwd").readlink()

    def _script(self, text: str) -> Path:
        self.count += 1
        script = self.records / f"{self.count}.sh"
        script.write_text(text)
        return script

    def type(self, text: str) -> str:
        """Type commands, wait until they have ended, and return what they printed; assert that none failed."""
        begin = self.record.stat().st_size
        end = f"-- end of {self.count + 1} --\n"
        assert self.shell.stdin is not None
        self.shell.stdin.write(f". {self._script(text)} </dev/null; echo {end.strip()}\n".encode())
        self.shell.stdin.flush()
        deadline = time.monotonic() + LIMIT_S
        while True:
            ended = self.shell.poll() is not None
            printed = self.record.read_bytes()[begin:].decode(errors="replace")
            if printed.endswith(end):
                return printed.removesuffix(end)
            assert not ended, f"a command failed:\n{text}\n{printed[-6000:]}"
            assert time.monotonic() < deadline, f"not within {LIMIT_S} s:\n{text}\n{printed[-3000:]}"
            time.sleep(0.1)

    def type_and_leave(self, text: str, until: str) -> str:
        """Type a command in another terminal, in the same folder, and return what it printed up to a text."""
        record = self.records / "foreground.log"
        self.foreground = self._start([self._script(text)], self.folder, record)
        deadline = time.monotonic() + LIMIT_S
        while until not in (printed := record.read_text(errors="replace")):
            assert self.foreground.poll() is None, f"it ended:\n{text}\n{printed[-6000:]}"
            assert time.monotonic() < deadline, f'no "{until}" within {LIMIT_S} s:\n{text}\n{printed[-3000:]}'
            time.sleep(0.1)
        return printed

    def ctrl_c(self) -> None:
        """Press Ctrl-C in that other terminal; assert that the command ends."""
        assert self.foreground is not None
        os.killpg(self.foreground.pid, signal.SIGINT)
        self.foreground.wait(END_LIMIT_S)
        self.foreground = None

    def close(self) -> None:
        """End the shell and all that it has left in the background."""
        if self.shell.stdin is not None:
            self.shell.stdin.close()
        for process in (self.foreground, self.shell):
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait(END_LIMIT_S)
