# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run the module of the same name; first send the tensors that only the controller has to the host."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import GgufError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.cache_seed import Part, Piece, digest, pieces
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._lines import Teller
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._look import send

NAME = "llama_cpp.cluster.rpc_cache_seed"
# The size of a batch: so many bytes are sent before they are put into the cache. Until then, they take room twice.
BATCH_BYTES = 2 << 30


class ActionModule(ActionBase):  # type: ignore[misc]
    """The action that sends tensors, if there are any to send."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Send the missing tensors and run the module."""
        result: dict[str, Any] = super().run(task_vars=task_vars)
        if not boolean(self._task.args.get("from_controller", False), strict=False):
            return {**result, **self._module(task_vars)}
        try:
            offered = self._offered()
        except (GgufError, OSError) as error:
            raise AnsibleActionFail(f"On the controller: {error}") from error
        login = self._low_level_execute_command("id -un", sudoable=False)["stdout"].strip()
        plain = [{"digest": name, "bytes": piece.bytes} for name, piece in offered.items()]
        answer = self._module(task_vars, offered=plain, owner=login)
        if answer.get("failed"):
            return {**result, **answer}
        lacking, sending = answer["lacking"], set(answer["sending"])
        done: dict[str, Any] = {"entries": [], "added": 0, "added_bytes": 0, "replaced": 0}
        if self._task.check_mode:
            done.update(added=len(lacking), added_bytes=sum(offered[name].bytes for name in lacking))
        else:
            teller = Teller(str((task_vars or {}).get("inventory_hostname")), self._task.get_name().strip())
            sent, total = 0, sum(offered[name].bytes for name in sending)
            teller.tell("sending", sent, total)
            batches = _batches(lacking, offered)
            for batch in batches:
                for name in (name for name in batch if name in sending):
                    self._send(name, offered[name], answer["staging"])
                    sent += offered[name].bytes
                    teller.tell("sending", sent, total)
                these = [one for one in plain if one["digest"] in batch]
                added = self._module(task_vars, offered=these, last=batch is batches[-1])
                if added.get("failed"):
                    return {**result, **added}
                lost = len(batch) - len(added["entries"])
                if lost > 0:
                    raise AnsibleActionFail(
                        f"{lost} tensors of {self._task.args.get('model')} changed while they were "
                        "sent: do not change the file, and run this again."
                    )
                done["entries"] += added["entries"]
                for key in ("added", "added_bytes", "replaced"):
                    done[key] += added[key]
        there = {key: answer[key] for key in ("there", "there_bytes")}
        return {**result, **done, **there, "changed": done["added"] > 0}

    def _module(self, task_vars: dict[str, Any] | None, **more: object) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name=NAME, module_args={**self._task.args, **more}, task_vars=task_vars
        )
        return answer

    def _offered(self) -> dict[str, Piece]:
        """Return the tensors by their digests; tensors with the same bytes count once."""
        part = self._task.args.get("part") or None
        chosen = None
        if part:
            first = part.get("first_layer")
            output = boolean(part.get("has_output", False), strict=False)
            chosen = Part(None if first is None else int(first), int(part.get("layers", 0)), output)
        found = pieces(Path(str(self._task.args.get("model"))), chosen)
        return {str(digest(piece.path, piece.offset, piece.bytes)): piece for piece in found}

    def _send(self, name: str, piece: Piece, staging: str) -> None:
        """Send a tensor as a file of its own."""
        # Not in /tmp, which may be in memory.
        with tempfile.TemporaryDirectory(dir=constants.DEFAULT_LOCAL_TMP) as folder:
            part = Path(folder) / name
            try:
                _cut(piece, part)
            except OSError as error:
                raise AnsibleActionFail(
                    f"{piece.name} could not be copied on the controller ({error.strerror}: {folder}); Ansible's "
                    "setting local_tmp says where."
                ) from error
            try:
                send(self, str(part), f"{staging}/{name}")
            except AnsibleError as error:
                said = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason was given"]
                raise AnsibleActionFail(f"{piece.name} could not be sent to {staging}: {said[-1]}") from error


def _cut(piece: Piece, target: Path) -> None:
    """Copy a tensor to a file of its own."""
    with Path(piece.path).open("rb") as source, target.open("wb") as sink:
        source.seek(piece.offset)
        left = piece.bytes
        while left and (block := source.read(min(left, 1 << 20))):
            left -= sink.write(block)


def _batches(names: list[str], offered: dict[str, Piece]) -> list[list[str]]:
    """Return the names of the tensors in batches that are sent one after the other."""
    batches: list[list[str]] = []
    size = BATCH_BYTES
    for name in names:
        if size >= BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(name)
        size += offered[name].bytes
    return batches
