# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read of the output of llama-plan, and what is said without one. test_engine_plan.py runs the program."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.engine import Bytes, EngineError, Layer, ask

if TYPE_CHECKING:
    from collections.abc import Sequence

ROW = {"part": "model", "device": "RPC0", "buffer_type": "RPC0[127.0.0.1:1]", "weights": 5, "context": 2, "compute": 1}
LAYER = {"device": "RPC0", "weights": 5, "elsewhere": 0, "context": 2}
PLAN: dict[str, Any] = {
    "n_ctx": 512,
    "n_ctx_slot": 256,
    "slots": 2,
    "file": 9,
    "input": 4,
    "layers": [LAYER],
    "held": [ROW, {**ROW, "part": "draft", "weights": 3}, {**ROW, "device": "", "buffer_type": "CPU", "weights": 4}],
}


def ends(status: int, output: str, errors: str = "") -> Any:
    def run(command: Sequence[str]) -> tuple[int, str, str]:
        ends.command = list(command)  # type: ignore[attr-defined]
        return status, output, errors

    return run


def test_what_is_held_is_summed_by_device_and_part() -> None:
    (plan,) = ask(ends(0, json.dumps(PLAN) + "\n"), "llama-plan", ["-m", "m.gguf"], workers=[1])
    assert plan.on("RPC0") == Bytes(8, 4, 2)
    assert plan.on("RPC0").total == 14
    assert plan.on("RPC0", "draft") == Bytes(3, 2, 1)
    assert plan.on("") == Bytes(4, 2, 1)
    assert plan.on("RPC1") == Bytes(0, 0, 0)
    assert plan.layers == (Layer("RPC0", 5, 0, 2),)
    assert (plan.n_ctx, plan.n_ctx_slot, plan.slots, plan.model_bytes, plan.input_bytes) == (512, 256, 2, 9, 4)


def test_the_command_has_a_limit_and_no_environment() -> None:
    variants = [["-ts", "1,1"], ["-ts", "2,1"]]
    ask(
        ends(0, 2 * (json.dumps(PLAN) + "\n")),
        "llama-plan",
        ["-m", "m"],
        workers=[1, 2],
        variants=variants,
        limit_s=7,
    )
    said = " ".join(ends.command)  # type: ignore[attr-defined]
    assert said == ("env -i LC_ALL=C llama-plan --seconds 7 --stand-ins 1,2 --variant -ts 1,1 --variant -ts 2,1 -m m")


@pytest.mark.parametrize(
    ("status", "output", "errors", "said"),
    [
        (1, '{"error": "no such tensor"}', "", "llama.cpp cannot load it: no such tensor."),
        (1, "", "usage\nerror: invalid argument: -x\n\n", "llama.cpp cannot load it: error: invalid argument: -x."),
        (127, "", "", "llama.cpp cannot load it: llama-plan ended with status 127 and said nothing."),
        (0, "", "", "llama.cpp cannot load it: llama-plan ended with status 0 and said nothing."),
        (0, "hello", "", "llama-plan said what nobody understands: hello."),
        (0, "{}", "", "llama-plan said what nobody understands: {}."),
    ],
)
def test_the_reason_is_one_sentence(status: int, output: str, errors: str, said: str) -> None:
    with pytest.raises(EngineError) as caught:
        ask(ends(status, output, errors), "llama-plan", [])
    assert str(caught.value) == said
