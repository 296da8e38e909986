# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a long command on a host, detached from the connection, and show its progress."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.confined import confined
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Teller, more

POLL_S = (0.1, 0.2, 0.5, 1.0, 2.0)  # then the last one again and again
GRACE_S = 10  # between the polite and the forced end of a command that exceeds its time limit
TAIL_BYTES = 65536
SHOWN_LINES = 20
TIMED_OUT = {124, 137}  # exit codes of coreutils' timeout: the command ended politely, or by force
LOCK_HELD = 99
NO_RESULT = 98  # the command left no result: it hangs, was killed, or its folder is missing or on a full disk

TROUBLE = re.compile(
    r"\berror\b|^FAILED|^CMake Error|undefined reference|No space left|Killed|command not found|cannot ",
    re.IGNORECASE,
)
NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\] .*?([^/\s]+?)(?:\.o)?$")

LOOK_S, LOOKS = 5, 12  # without a look for LOOK_S * LOOKS seconds, a command is ended: its controller is gone

# $1 log, $2 result, $3 seconds, $4 folder, $5 claim, $6... the command. The shell holds the lock while the command
# runs. The command does not inherit the lock, because processes that it leaves running must not block the next call.
START = f"""
log=$1 result=$2 seconds=$3 folder=$4 claim=$5; shift 5
umask 022 # a confined command may have to read what another one has written
[ -z "$claim" ] || owner=$(cat "$claim")
cd "$folder" && exec 9>.watched_command.lock || exit
if flock --timeout "$seconds" 9
then
    timeout --kill-after={GRACE_S} "$seconds" "$@" >"$log" 2>&1 </dev/null 9>&- & command=$!
    {{
        cd / && missed=0
        while sleep {LOOK_S} && [ "$missed" -lt {LOOKS} ]
        do if rm "$log.watched"; then missed=0; else missed=$((missed + 1)); fi
        done
        [ -z "$claim" ] || rm -f "$claim"
        kill "$command"
    }} 2>/dev/null 9>&- & guard=$!
    wait "$command"; code=$?
    kill "$guard"
else code={LOCK_HELD}
fi
exec 9>&-
echo $code >"$result.new" && mv "$result.new" "$result" && [ -n "$claim" ] && cd / || exit
# Whoever looked after it takes the result away.
waited=0
while [ -e "$result" ] && [ "$waited" -lt {LOOK_S * LOOKS} ]
do sleep 1; waited=$((waited + 1))
done
[ ! -e "$result" ] || [ "$(cat "$claim")" != "$owner" ] || rm "$claim"
"""


class Progress:
    """What a command is doing, by the end of its output at each look."""

    def __init__(self) -> None:
        self._step: tuple[str, ...] = ()

    def line(self, output: str, seconds: float) -> str:
        """Return the last line with text in it, shortened, of a command that has run for so many seconds.

        If Ninja runs, it is Ninja's last step, with the time that the remaining steps take at the rate so far:
        `[120/410] about 5:02 more: llama-arch.cpp`. The warnings of one file may be longer than the output of a look.
        """
        lines = [line.strip() for line in output.splitlines() if line.strip()] or ["started"]
        steps = [match for match in map(NINJA_STEP.match, lines) if match]
        if steps:
            self._step = steps[-1].groups()
        if not self._step:
            return lines[-1][:80]
        done, goal, name = self._step
        left = f" {more(int(done), int(goal), seconds)}:" if 0 < int(done) < int(goal) else ""
        return f"[{done}/{goal}]{left} {name}"


def trouble(output: str) -> list[str]:
    """Return the lines that tell why a command failed: those that look like errors, else the last ones."""
    lines = [line.rstrip() for line in safe_text(output).splitlines() if line.strip()]
    telling = {number for number, line in enumerate(lines) if TROUBLE.search(line)}
    # CMake says what is wrong in the lines that follow.
    telling |= {number + n for number in telling if lines[number].startswith("CMake Error") for n in (1, 2, 3)}
    return ([line for number, line in enumerate(lines) if number in telling] or lines)[-SHOWN_LINES:]


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action that starts the command with one call, then checks on it with one short call at a time."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Run the command and wait for it."""
        result: dict[str, Any] = super().run(task_vars=task_vars)
        _validated, args = self.validate_argument_spec(
            argument_spec={
                "argv": {"type": "list", "elements": "str", "required": True},
                "log": {"type": "str", "required": True},
                "claim": {"type": "str", "default": ""},
                "confined_to": {"type": "list", "elements": "str"},
                "timeout": {"type": "int", "default": 3600},
            }
        )
        if self._task.check_mode:
            return {**result, "skipped": True, "changed": False, "msg": "not run in check mode"}
        host = (task_vars or {}).get("inventory_hostname", "host")
        log, limit = args["log"], args["timeout"]
        started = time.monotonic()
        # The result has a unique name, because an earlier call's command may still be about to write its own.
        rc_file = f"{log}.{secrets.token_hex(4)}.rc"
        pid = self._start(args, rc_file)
        watched = shlex.quote(f"{log}.watched")
        # The look first shows whether the command lives: if it does not, and has left no result, none will come.
        look = f"touch {watched} 2>/dev/null; "
        if args["claim"]:
            look += f"touch -c {shlex.quote(args['claim'])} 2>/dev/null; "
        look += f"kill -0 {pid} 2>/dev/null && echo alive; "
        look += f"cat {shlex.quote(rc_file)} 2>/dev/null; echo ::; "
        look += f"tail -c 16000 {shlex.quote(log)} 2>/dev/null"
        # The command may first wait for an earlier call's command, which has the same time limit.
        code = self._watch(host, look, args["claim"], 2 * limit + 3 * GRACE_S)
        self._shell(f"rm -f {shlex.quote(rc_file)} {watched}")
        result.update(rc=code, log=log, elapsed_s=int(time.monotonic() - started), changed=True)
        if code != 0:
            result.update(failed=True, msg=self._reason(args, code))
        return result

    def _shell(self, command: str) -> str:
        answer = self._low_level_execute_command(command)
        return str(answer["stdout"])

    def _start(self, args: dict[str, Any], rc_file: str) -> int:
        folder = args["log"].rpartition("/")[0] or "."
        words = ["setsid", "sh", "-c", START, "sh", args["log"], rc_file, str(args["timeout"]), folder, args["claim"]]
        argv = args["argv"] if args["confined_to"] is None else confined(args["argv"], args["confined_to"])
        command = f"{self._compute_environment_string()} {shlex.join([*words, *argv])}"
        return int(self._shell(f"{{ {command} >/dev/null 2>&1 </dev/null & echo $!; }}"))

    def _watch(self, host: str, look: str, claim: str, longest_s: int) -> int:
        """Wait for the command and return its exit status; show the last line of the log now and then."""
        parent = os.getppid()
        started = time.monotonic()
        teller, polls, progress = Teller(host, self._task.name), iter(POLL_S), Progress()
        while time.monotonic() < started + longest_s:
            time.sleep(next(polls, POLL_S[-1]))
            if os.getppid() != parent:
                # This process outlives a killed ansible-playbook, and no task would follow this one.
                if claim:
                    self._shell(f"rm -f {shlex.quote(claim)}")
                raise AnsibleActionFail("ansible-playbook is gone.")
            state, _separator, output = self._shell(look).partition("::")
            words = state.split()
            if words != ["alive"]:
                return int(words[-1]) if words else NO_RESULT
            teller.tell(progress.line(output, time.monotonic() - started))
        return NO_RESULT

    def _reason(self, args: dict[str, Any], code: int) -> str:
        log, limit = args["log"], args["timeout"]
        if code == LOCK_HELD:
            return f"the command was not started: an earlier one in its folder had not ended after {limit} s."
        if code == NO_RESULT:
            why = "it hangs, was killed, its folder is missing, or its disk is full"
            return f"the command left no result: {why}; see {log}."
        lines = trouble(self._shell(f"tail -c {TAIL_BYTES} {shlex.quote(log)}"))
        if code in TIMED_OUT:
            head = f"the command was ended after {limit} s, its time limit; all output is in {log}."
        else:
            head = f"the command failed with exit status {code}; all output is in {log}."
        return "\n".join([head, *lines])
