# SPDX-License-Identifier: GPL-3.0-or-later
"""What is repeated here of the pinned llama.cpp is as its source has it."""

from __future__ import annotations

import re
import tarfile

import pytest

from support.harness import ROOT
from support.pinned_source import ARCHIVES, DEFAULT, source
from support.rpc_session import Op

HEAD = ".git/modules/vendor/llama.cpp/HEAD"
RPC, GGML, ARCH = (
    f"vendor/llama.cpp/{path}" for path in ("ggml/include/ggml-rpc.h", "ggml/include/ggml.h", "src/llama-arch.cpp")
)


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    found = {}
    with tarfile.open(source(DEFAULT)) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if path in (HEAD, RPC, GGML, ARCH):
                stream = tar.extractfile(member)
                assert stream
                found[path] = stream.read().decode()
    return found


@pytest.fixture(scope="module")
def plugins() -> str:
    return "".join(path.read_text() for path in sorted((ROOT / "plugins/module_utils").rglob("*.py")))


def enum(text: str, name: str) -> list[str]:
    body = re.search(rf"enum {name} \{{(.*?)\}};", text, re.DOTALL)
    assert body
    return re.findall(r"^\s*(GGML_\w+)", body[1], re.MULTILINE)


def test_commit_and_protocol_are_those_of_the_table(files: dict[str, str]) -> None:
    assert files[HEAD].strip() == ARCHIVES[DEFAULT]["commit"]
    numbers = re.findall(r"define RPC_PROTO_(?:MAJOR|MINOR|PATCH)_VERSION +(\d+)", files[RPC])
    assert ".".join(numbers) == ARCHIVES[DEFAULT]["protocol"]


def test_types_are_known_by_number_and_name(files: dict[str, str], plugins: str) -> None:
    wanted = {
        number: name.lower()
        for name, number in re.findall(r"^\s*GGML_TYPE_(\w+)\s*= (\d+),", files[GGML], re.MULTILINE)
        if name != "COUNT"
    }
    known = dict(re.findall(r'^\s*(\d+): TensorType\("(\w+)"', plugins, re.MULTILINE))
    assert {number: name.lower() for number, name in known.items()} == wanted


def test_architectures_are_known(files: dict[str, str], plugins: str) -> None:
    names = re.search(r"LLM_ARCH_NAMES = \{(.*?)\n\};", files[ARCH], re.DOTALL)
    assert names
    wanted = set(re.findall(r'\{ LLM_ARCH_\w+,\s*"([^"]+)"', names[1])) - {"(unknown)"}
    assert len(wanted) > 100
    assert wanted - set(re.findall(r"[\w.-]+", plugins)) == set()


def test_operations_of_the_tests_own_client_are_upstreams(files: dict[str, str]) -> None:
    upstream = {name[len("GGML_OP_") :]: number for number, name in enumerate(enum(files[GGML], "ggml_op"))}
    assert {op.name: op.value for op in Op} == {op.name: upstream[op.name] for op in Op}
