#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: checks whether the programs of a llama.cpp release can run on this host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_trial
short_description: Check whether the programs of a llama.cpp release can run on this host
version_added: 0.1.0
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Inspects the programs of a llama.cpp release and runs each of them once, so that llama.cpp's CPU code is
    initialised. It reads no model, opens no port and uses no GPU.
  - As root it runs them as the account C(nobody), without privileges and network, and they see no files but their own
    and the system's. On a host where root may not make namespaces, such as a container without C(CAP_SYS_ADMIN), and
    for a release that not every account may read, it warns and runs them as root.
  - If a program cannot run on this host, it fails and gives the reason. The program may be for another machine or
    another C library, use CPU features or instructions that this host lacks, need a newer glibc or a missing library,
    or not end in time.
  - The C(manifest.json) of a release says which CPU features it was built for. Without that file, the module only
    detects missing features that a program uses as soon as it starts.
options:
  path:
    description: The folder of the release, whose programs are in C(bin).
    type: path
    required: true
  programs:
    description:
      - The programs to try. By default those that C(manifest.json) of the release names, or all in C(bin).
    type: list
    elements: str
    default: []
  timeout:
    description: How many seconds each program may take.
    type: int
    default: 20
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - Needs coreutils' C(timeout) on the host, and util-linux as root.
"""

EXAMPLES = r"""
- name: Check that the programs run on this host
  llama_cpp.cluster.release_trial:
    path: /opt/llama_cpp/releases/0.3.36-0c1e57098-b0b4dbc1c4a5
"""

RETURN = r"""
machine:
  description: The machine of this host, as C(uname -m) prints it.
  returned: always
  type: str
  sample: aarch64
programs:
  description: The programs that were run, each with its exit status and its time.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The name of the program.
      type: str
      sample: rpc-server
    exit_status:
      description: Its exit status.
      type: int
    wall_time_ms:
      description: How long it took.
      type: float
failure:
  description: Why a program cannot run here; V(null) if all can.
  returned: always
  type: dict
  contains:
    kind:
      description: >-
        One of V(missing), V(not_executable), V(not_a_program), V(wrong_machine), V(libc_missing), V(feature_missing),
        V(libc_too_old), V(library_too_old), V(library_missing), V(not_loaded), V(not_started), V(illegal_instruction),
        V(crashed), V(timed_out).
      type: str
      sample: libc_too_old
    program:
      description: The program; V(null) if it is the whole release.
      type: str
      sample: rpc-server
"""

import os
import platform
import resource
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.confined import confined
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release import trial
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.capabilities import read_manifest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.runner import Run, RunnerError, run
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text

# However busy the host is.
START_LIMIT_S = 60


class Trial:
    """One run of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.bin = Path(module.params["path"]) / "bin"
        # What the programs see. /opt may have libraries of compilers and GPUs, and a link to the release.
        folder = Path(module.params["path"])
        self.paths = [str(path) for path in (Path("/opt"), folder.resolve(), folder) if path.is_dir()]
        self.confines = True
        self.result: dict[str, Any] = {
            "changed": False,
            "machine": platform.machine(),
            "programs": [],
            "failure": None,
        }

    def fail(self, kind: str, program: str | None, message: str) -> NoReturn:
        """End the module with a sentence."""
        self.result["failure"] = {"kind": kind, "program": program}
        self.module.fail_json(msg=message, **self.result)
        raise AssertionError  # not reached: fail_json ends the process

    def reject(self, problem: trial.Problem | None, program: str | None = None) -> None:
        """End the module if there is a problem."""
        if problem is not None:
            whole = "" if program else f"{self.module.params['path']} cannot run on this host: "
            self.fail(problem.kind, program, f"{whole}{problem.message}.")

    def main(self) -> None:
        """Check all files before any program runs, because a problem in a file is clearer than a failed run."""
        manifest = read_manifest(str(self.bin))
        names = self.module.params["programs"] or trial.programs_of(manifest, self.bin)
        if not names:
            self.fail("missing", None, f"There is no program in {self.bin}: install the release again.")
        for name in names:
            self.reject(trial.check_file(self.bin / name, self.result["machine"]), name)
        self.reject(trial.check_features(manifest, self.features()))
        # Prevent the memory dump of a program that ends by an illegal instruction.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        # A program's own end must not decide this.
        ready = self.run(["true"], START_LIMIT_S)
        if ready.exit_status != 0:
            self.confines = False
            why = (ready.stderr.strip().splitlines() or ["it ended early"])[-1]
            self.module.warn(f"The programs of {self.bin} run as root with the network, because {why}.")
        for name in names:
            self.try_program(name)
        self.module.exit_json(**self.result)

    def try_program(self, name: str) -> None:
        """Run a program once."""
        path, timeout = self.bin / name, self.module.params["timeout"]
        ended = self.run([str(path), *trial.arguments(name)], timeout, name)
        self.result["programs"].append(
            {"name": name, "exit_status": ended.exit_status, "wall_time_ms": ended.wall_time_ms}
        )
        said = safe_text(ended.stdout + ended.stderr)
        self.reject(trial.check_run(path, ended.exit_status, said, ended.timed_out, timeout, libc()), name)

    def run(self, command: list[str], timeout: int, program: str | None = None) -> Run:
        """Run a command as the programs run here."""
        command = confined(command, self.paths) if self.confines else command
        try:
            return run(self.module, command, timeout, trial.ENVIRONMENT, trial.WITHOUT_ENVIRONMENT)
        except RunnerError as error:
            self.fail("not_started", program, str(error))

    def features(self) -> set[str]:
        """Return the features of this host's CPU."""
        try:
            return set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
        except OSError as error:
            self.fail("feature_missing", None, f"/proc/cpuinfo cannot be read: {error.strerror}.")


def libc() -> str:
    """Return the C library of this host, empty if it is not glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:
        return ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "programs": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    if module.params["timeout"] < 1:
        module.fail_json(msg=f"timeout must be at least 1 second, not {module.params['timeout']}.")
    Trial(module).main()


if __name__ == "__main__":
    main()
