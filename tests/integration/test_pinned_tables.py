# SPDX-License-Identifier: GPL-3.0-or-later
"""Values that the collection repeats from the pinned llama.cpp match its source, and records of its build are true."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf import header, vocabulary
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.protocol import NEWEST_TESTED
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run import worker_run

from support.harness import ARCHIVES, DEFAULT, RELEASE, ROOT
from support.pinned_source import inside, source
from support.rpc_session import Op

RPC, GGML, ARCH, SPECULATIVE, COMMON, VOCABULARY = SOURCES = tuple(
    f"{inside(DEFAULT)}/{path}"
    for path in (
        "ggml/include/ggml-rpc.h",
        "ggml/include/ggml.h",
        "src/llama-arch.cpp",
        "common/speculative.cpp",
        "common/common.h",
        "src/llama-vocab.cpp",
    )
)


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    found = {}
    with tarfile.open(source(DEFAULT)) as tar:
        for member in tar:
            if member.name in SOURCES:
                stream = tar.extractfile(member)
                assert stream
                found[member.name] = stream.read().decode()
    return found


@pytest.fixture(scope="module")
def plugins() -> str:
    return "".join(path.read_text() for path in sorted((ROOT / "plugins/module_utils").rglob("*.py")))


def enum(text: str, name: str) -> list[str]:
    body = re.search(rf"enum {name} \{{(.*?)\}};", text, re.DOTALL)
    assert body
    return re.findall(r"^\s*(GGML_\w+)", body[1], re.MULTILINE)


def test_the_protocol_is_that_of_the_table(files: dict[str, str]) -> None:
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


def test_no_tensor_of_a_text_model_is_named_like_a_projectors(files: dict[str, str]) -> None:
    body = re.search(r"LLM_TENSOR_NAMES = \{(.*?)\n\};", files[ARCH], re.DOTALL)
    assert body
    names = re.findall(r'LLM_TENSOR_\w+,\s*"([^"]+)"', body[1])
    assert len(names) > 100
    assert [name for name in names if name.startswith(header.OF_PROJECTOR)] == []


def test_role_and_modules_refuse_split_mode_tensor_for_the_same_architectures() -> None:
    role = yaml.safe_load((ROOT / "roles/llama_server/vars/main.yml").read_text())
    assert set(role["__llama_server_undivided"]) == worker_run.UNDIVIDED
    assert role["__llama_server_undivided_up_to"] == worker_run.UNDIVIDED_UP_TO


def test_the_page_names_the_architectures_that_split_mode_tensor_does_not_divide(files: dict[str, str]) -> None:
    names = dict(re.findall(r'\{ (LLM_ARCH_\w+), +"([^"]+)"', files[ARCH]))
    body = re.search(r"bool llm_arch_supports_sm_tensor\(.*?return false;", files[ARCH], re.DOTALL)
    assert body
    page = (ROOT / "docs/reference/compatibility.md").read_text().partition("## Split mode `tensor`")[2]
    listed = re.findall(r"`([^`]+)`", page.split("\n\n")[2])
    assert listed == sorted(names[case] for case in re.findall(r"case (LLM_ARCH_\w+):", body[0]))


def test_the_newest_protocol_that_is_tested_is_the_defaults() -> None:
    assert ARCHIVES[DEFAULT]["protocol"] == ".".join(map(str, NEWEST_TESTED))


def test_operations_of_the_tests_own_client_are_upstreams(files: dict[str, str]) -> None:
    upstream = {name[len("GGML_OP_") :]: number for number, name in enumerate(enum(files[GGML], "ggml_op"))}
    assert {op.name: op.value for op in Op} == {op.name: upstream[op.name] for op in Op}


def test_vocabularies_are_compared_as_upstream_does(files: dict[str, str]) -> None:
    for name, value in (
        ("MAX_SIZE_DIFFERENCE", vocabulary.MAX_SIZE_DIFFERENCE),
        ("CHECK_START_TOKEN_ID", vocabulary.FIRST_COMPARED),
    ):
        assert re.search(rf"define SPEC_VOCAB_{name} +{value}\n", files[SPECULATIVE])
    # Each branch names its tokenizers, and sets what others do not have.
    branches = re.findall(r"if \(\s*(tokenizer_pre ==.*?)\) \{(.*?)\}", files[VOCABULARY], re.DOTALL)
    assert len(branches) > 40

    def with_line(line: str) -> set[str]:
        return {name for names, body in branches if line in body for name in re.findall(r'== "([^"]+)"', names)}

    # The model itself identifies gemma4, which has rules of its own.
    assert with_line("add_bos = true;") == vocabulary.PRE_ADDS_BEGIN - {"gemma4"}
    assert with_line("special_bos_id = LLAMA_TOKEN_NULL;") == vocabulary.PRE_WITHOUT_BEGIN - {"gemma4"}
    assert with_line("add_eos = true;") == with_line("special_eos_id") == set()


def test_numbers_of_drafted_tokens_are_upstreams(files: dict[str, str]) -> None:
    types = yaml.safe_load((ROOT / "roles/llama_server/vars/main.yml").read_text())["__llama_server_spec_types"]

    def default(struct: str, field: str) -> int:
        body = re.search(rf"struct common_params_speculative_{struct} {{(.*?)}};", files[COMMON], re.DOTALL)
        assert body
        found = re.search(rf"\b{field} += (\d+);", body[1])
        assert found
        return int(found[1])

    for name in types:
        struct = "ngram_mod" if name == "ngram-mod" else "ngram_map" if name.startswith("ngram") else "draft"
        assert types[name]["n_max"] == default(struct, "size_m" if struct == "ngram_map" else "n_max"), name
        assert f'"{name}",' in files[SPECULATIVE]
    assert types["ngram-simple"]["floor"][1] == default("ngram_map", "size_n")
    assert types["ngram-mod"]["floor"][1] == default("ngram_mod", "n_min")


def test_manifest_table_and_program_agree() -> None:
    pinned = ARCHIVES[RELEASE.version]
    manifest = json.loads((RELEASE.prefix / "current" / "manifest.json").read_text())
    assert manifest["rpc_protocol"] == pinned["protocol"] == RELEASE.protocol
    assert manifest["source"]["commit"] == (pinned["commit"] or None)
    assert manifest["source"]["sha256"] == pinned["sha256"]
    assert [patch["name"] for patch in manifest["patches"]] == pinned["patches"]
    command = [RELEASE.bin / "llama-cli", "--version"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    assert f"(build {RELEASE.version[1:]}, commit unknown)" in said.stdout + said.stderr
