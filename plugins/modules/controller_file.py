#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: controller_file
short_description: Send a large file from the controller to a host
version_added: 0.1.0
description:
  - Sends one file directly to its destination over Ansible's connection. Unlike M(ansible.builtin.copy), it
    computes no digest and makes no second copy in a temporary folder.
  - It is meant for M(llama_cpp.cluster.model_file), which makes the folder first and verifies and renames the file
    afterwards.
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  src:
    description: The file on the controller, as an absolute path.
    type: str
    required: true
  dest:
    description: The file on the host. The user of the connection must be allowed to write it, whoever the task becomes.
    type: str
    required: true
attributes:
  check_mode:
    description: In check mode nothing is sent.
    support: none
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The file is sent each time.
    support: none
notes:
  - Limit its time with the C(timeout) of the task.
seealso:
  - module: llama_cpp.cluster.model_file
"""

EXAMPLES = r"""
- name: Send the model
  llama_cpp.cluster.controller_file:
    src: /srv/models/model.gguf
    dest: "{{ model.staging }}/model.gguf"
  timeout: 7200
"""

RETURN = r"""
size_bytes:
  description: How much was sent.
  returned: success
  type: int
"""
