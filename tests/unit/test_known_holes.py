# SPDX-License-Identifier: GPL-3.0-or-later
"""The known holes of a build."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.holes import HOLES, READ_COMMITS, holes_of

from support.templates import loaded, worked_out
from support.tree import ROOT

VARS = loaded(ROOT / "roles/llama_cpp/vars/main.yml")
ARCHIVES = VARS["__llama_cpp_archives"]
SERVER_VARS = {
    **loaded(ROOT / "roles/llama_server/defaults/main.yml"),
    **loaded(ROOT / "roles/llama_server/vars/main.yml"),
}
RCE = "CVE-2026-34159"
OLD = ["CVE-2024-42477", "CVE-2024-42478", "CVE-2024-42479"]


def judged(**build: Any) -> tuple[list[str], list[str]]:
    found = holes_of("rpc-server", **build)
    return [hole.cve for hole in found["open"]], [hole.cve for hole in found["unknown"]]


def test_the_sources_that_were_read_are_those_of_the_accepted_versions() -> None:
    assert list(READ_COMMITS) == [archive["commit"] for archive in ARCHIVES.values() if archive["commit"]]


@pytest.mark.parametrize(
    ("build", "has", "unknown"),
    [
        pytest.param({"number": 3560}, [*OLD, RCE], [], id="b3560"),
        pytest.param({"number": 3561}, [RCE], [], id="b3561"),
        pytest.param({"number": 8491}, [RCE], [], id="b8491"),
        pytest.param({"number": 8492}, [], [], id="b8492"),
        pytest.param({"protocol": "2.0.0"}, [RCE], [], id="protocol-2"),
        pytest.param({"protocol": "3.6.1"}, [], [RCE], id="protocol-3"),
        pytest.param({"protocol": "4.0.0"}, [], [], id="protocol-4"),
        pytest.param({"protocol": ""}, [], [*OLD, RCE], id="nothing-known"),
        pytest.param({"commit": READ_COMMITS[0][:9], "protocol": "3.6.1"}, [], [], id="its-source-was-read"),
    ],
)
def test_what_is_known_of_a_build(build: dict[str, Any], has: list[str], unknown: list[str]) -> None:
    assert judged(**build) == (has, unknown)


def test_no_archive_has_a_protocol_of_which_a_hole_is_known() -> None:
    for version, archive in ARCHIVES.items():
        assert judged(protocol=archive["protocol"])[0] == [], version


def test_the_page_names_each_hole_with_its_first_fixed_build() -> None:
    pages = ("reference/rpc-server-holes", "explanation/api-security")
    page = "".join((ROOT / f"docs/{name}.md").read_text() for name in pages)
    for hole in HOLES:
        line = next(line for line in page.splitlines() if line.startswith(f"| [{hole.cve}]"))
        assert f"b{hole.fixed_build}" in line
        assert hole.advisory in line
        assert hole.option in line


@pytest.mark.parametrize(
    ("wanted", "vulnerable", "has"),
    [("rpc-server", False, [*OLD, RCE]), ("rpc-server", True, []), ("llama-cli", False, [])],
)
def test_holes_matter_to_whom_gets_the_server_and_has_not_allowed_them(
    wanted: str, vulnerable: bool, has: list[str]
) -> None:
    facts = {"commit": "", "number": 1}
    given = {"__llama_cpp_wanted": [wanted], "llama_cpp_allow_vulnerable": vulnerable, "__llama_cpp_build_facts": facts}
    found = worked_out(VARS["__llama_cpp_found_holes"], {**VARS, **given})
    assert [hole["cve"] for hole in found["open"]] == has


def of_llama_server(manifest: dict[str, Any], *extra_args: str) -> tuple[list[str], list[str]]:
    """Return the holes that may concern the service, and those that do not."""
    given = {**SERVER_VARS, "llama_server_extra_args": list(extra_args), "__llama_server_manifest": manifest}
    found = worked_out(SERVER_VARS["__llama_server_holes"], given)
    assert found["open"] == [], "no protocol proves that a hole of llama-server is there"
    return [hole["cve"] for hole in found["unknown"]], [hole["cve"] for hole in found["idle"]]


SLEEP = ["CVE-2026-43631", "CVE-2026-43632"]
N_DISCARD, SLOTS, GRAMMAR = "CVE-2026-21869", "CVE-2026-43629", "CVE-2026-2069"
# Its protocol alone would say that it may have holes.
READ = {"source": {"commit": ARCHIVES["0.3.34"]["commit"]}, "rpc_protocol": "4.0.2"}


@pytest.mark.parametrize(
    ("manifest", "extra_args", "concern", "idle"),
    [
        pytest.param(READ, ["--context-shift"], [], [], id="its-source-was-read"),
        pytest.param({"rpc_protocol": "5.0.0"}, ["--context-shift"], [], [], id="a-late-protocol"),
        pytest.param({"rpc_protocol": "4.0.0"}, [], [GRAMMAR], [N_DISCARD, SLOTS, *SLEEP], id="options-that-are-off"),
        pytest.param(
            {},
            ["--context-shift"],
            [N_DISCARD, GRAMMAR],
            [SLOTS, *SLEEP],
            id="an-option-that-is-on-of-an-unknown-build",
        ),
    ],
)
def test_what_role_llama_server_knows_of_a_build(
    manifest: dict[str, Any], extra_args: list[str], concern: list[str], idle: list[str]
) -> None:
    assert of_llama_server(manifest, *extra_args) == (concern, idle)
