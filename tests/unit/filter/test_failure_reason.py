# SPDX-License-Identifier: GPL-3.0-or-later
"""The reason why a task failed, from results as modules return them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.failure_reason import failure_reason

COMMAND = {"rc": 1, "msg": "non-zero return code", "stderr": "fatal: no such branch.\nhint: look\n"}
LOGGED = {"msg": "The build failed.\n  one\n\n  two\n  three", "log": "/srv/build.log"}


@pytest.mark.parametrize(
    ("result", "options", "reason"),
    [
        pytest.param({"msg": "No space left\nmore"}, {}, "No space left", id="message"),
        pytest.param({"msg": " It ends here. "}, {}, "It ends here.", id="blanks"),
        pytest.param({}, {}, "See above", id="nothing"),
        pytest.param({"msg": "\x1b]0;owned\x07No space"}, {}, "\ufffd]0;owned\ufffdNo space", id="control-characters"),
        pytest.param({"results": [{"msg": "well"}, {"failed": True, "msg": "not well"}]}, {}, "not well", id="loop"),
        pytest.param({"results": [{"msg": "well"}], "msg": "one failed"}, {}, "one failed", id="loop-without-it"),
        pytest.param(COMMAND, {}, "non-zero return code", id="command"),
        pytest.param(COMMAND, {"output": True}, "fatal: no such branch", id="command-output"),
        pytest.param({"stderr": "said"}, {"output": True}, "said", id="output-alone"),
        pytest.param({"msg": "It failed:", "stderr": "x"}, {"output": True}, "It failed", id="message-first"),
        pytest.param({"msg": "It failed.;"}, {"output": True}, "It failed", id="punctuation"),
        pytest.param(LOGGED, {"output": True}, "The build failed (one  two)", id="log"),
        pytest.param(LOGGED, {}, "The build failed.", id="log-not-wanted"),
        pytest.param(
            {"msg": "It failed.\n" + "ab cd " * 60, "log": ""},
            {"output": True},
            "It failed (" + "ab cd " * 49 + "ab)",
            id="long",
        ),
        pytest.param({}, {"output": True, "task": "Build"}, 'the task "Build" failed', id="named"),
    ],
)
def test_the_reason_is_one_line(result: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    assert failure_reason(result, **options) == reason
