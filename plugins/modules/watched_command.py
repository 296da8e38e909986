#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: watched_command
short_description: Run a long command and show its progress
version_added: 0.1.0
description:
  - Runs a command on the host, detached from the connection. About every ten seconds it shows one line with the
    host, the elapsed time and the last line of the command's output. If the command is a build with Ninja, the line
    has the number of steps, and how long the rest takes at the rate so far.
  - If the controller exits, is interrupted or can no longer reach the host, the command is stopped a minute later.
    A later call for the same folder waits for that before it starts its own command.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  argv:
    description: The program and its arguments. No shell interprets them.
    type: list
    elements: str
    required: true
  log:
    description: A file on the host that holds all output. The command runs in its folder, which must exist.
    type: str
    required: true
  claim:
    description:
      - A file on the host that names the run that uses the folder, for runs that share it.
      - The module renews its modification time while the controller watches the command. A minute after the controller
        has stopped, it removes the file.
    type: str
    default: ""
  confined_to:
    description:
      - For a command that handles what came from outside. If root runs the task, the command runs as the account
        C(nobody), without privileges and network, and sees only the system's programs and these paths.
      - It may only read them, but may write a file in this list that does not exist yet.
    type: list
    elements: str
  timeout:
    description: After this many seconds, the module ends the command and all processes that it has started.
    type: int
    default: 3600
attributes:
  check_mode:
    description: In check mode nothing is run.
    support: none
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The command is run each time.
    support: none
requirements:
  - On the host, C(flock) and C(setsid) of util-linux and C(timeout) of coreutils. For O(confined_to) as root, also
    C(unshare), C(setpriv) and C(mount) of util-linux, and permission to make namespaces.
notes:
  - The command gets the C(environment) of the task.
"""

EXAMPLES = r"""
- name: Build the programs
  llama_cpp.cluster.watched_command:
    argv: [cmake, --build, /opt/llama_cpp/build/tree]
    log: /opt/llama_cpp/build/build.log
    timeout: 3600
"""

RETURN = r"""
rc:
  description: The command's exit status.
  returned: always
  type: int
log:
  description: The file on the host that holds all output.
  returned: always
  type: str
elapsed_s:
  description: How long it took, in seconds.
  returned: always
  type: int
"""
