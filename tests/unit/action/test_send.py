# SPDX-License-Identifier: GPL-3.0-or-later
"""Where files are sent to on a host: the host may have named the path, and sftp on the controller reads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.llama_cpp.cluster.plugins.plugin_utils._look import send


class Connection:
    """Stands in for a connection, and keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    def put_file(self, source: str, dest: str) -> None:
        self.sent.append((source, dest))


def sent(dest: str) -> list[tuple[str, str]]:
    action: Any = SimpleNamespace(_connection=Connection())
    send(action, "here", dest)
    found: list[tuple[str, str]] = action._connection.sent
    return found


def test_a_file_is_sent_to_an_absolute_path() -> None:
    assert sent("/srv/modèles/a b,c.gguf") == [("here", "/srv/modèles/a b,c.gguf")]


@pytest.mark.parametrize(
    "dest", ["seed\\'\n!touch here\n", "/srv/a'b", '/srv/a"b', "/srv/a\\b", "/srv/a\n", "/srv/a\x1b[0m", "srv/a", ""]
)
def test_a_path_that_sftp_could_read_as_a_command_is_refused(dest: str) -> None:
    with pytest.raises(AnsibleError, match="quotes, backslashes or control characters") as error:
        sent(dest)
    assert "\n" not in str(error.value)
