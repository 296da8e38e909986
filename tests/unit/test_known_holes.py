# SPDX-License-Identifier: GPL-3.0-or-later
"""The holes of a build, by the data of role llama_cpp, for its own archives and for others."""

from __future__ import annotations

from typing import Any

import pytest

from support.templates import loaded, worked_out
from support.tree import ROOT

VARS = loaded(ROOT / "roles/llama_cpp/vars/main.yml")
HOLES, ARCHIVES = VARS["__llama_cpp_holes"], VARS["__llama_cpp_archives"]
SERVER_VARS = {
    **loaded(ROOT / "roles/llama_server/defaults/main.yml"),
    **loaded(ROOT / "roles/llama_server/vars/main.yml"),
}
RCE = "CVE-2026-34159"
OLD = ["CVE-2024-42477", "CVE-2024-42478", "CVE-2024-42479"]


def judged(*, wanted: str = "rpc-server", vulnerable: bool = False, **build: Any) -> tuple[list[str], list[str]]:
    facts = {"holes": None, "number": 0, "protocol": "", **build}
    given = {"__llama_cpp_wanted": [wanted], "llama_cpp_allow_vulnerable": vulnerable, "__llama_cpp_build_facts": facts}
    found = worked_out(VARS["__llama_cpp_found_holes"], {**VARS, **given})
    return [hole["cve"] for hole in found["open"]], [hole["cve"] for hole in found["unknown"]]


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
        pytest.param({"holes": [], "number": 1, "protocol": "2.0.0"}, [], [], id="a-look-counts-most"),
        pytest.param({"holes": [RCE], "protocol": "7.0.0"}, [RCE], [], id="a-look-counts-most-2"),
    ],
)
def test_what_is_known_of_a_build(build: dict[str, Any], has: list[str], unknown: list[str]) -> None:
    assert judged(**build) == (has, unknown)


def test_of_the_archives_only_those_before_the_fix_have_it() -> None:
    assert {version for version, archive in ARCHIVES.items() if RCE in archive["holes"]} == {"0.3.16"}
    assert judged(holes=ARCHIVES["0.3.36"]["holes"]) == ([], []), "the default pin"


def test_what_is_said_by_hand_agrees_with_protocols() -> None:
    for version, archive in ARCHIVES.items():
        has, unknown = judged(protocol=archive["protocol"])
        of_server = {hole["cve"] for hole in HOLES if hole["program"] == "rpc-server"}
        assert set(has) <= of_server & set(archive["holes"]) <= {*has, *unknown}, version


def test_the_page_names_each_hole_with_its_first_fixed_build() -> None:
    pages = ("reference/rpc-server-holes", "explanation/api-security")
    page = "".join((ROOT / f"docs/{name}.md").read_text() for name in pages)
    for hole in HOLES:
        line = next(line for line in page.splitlines() if line.startswith(f"| [{hole['cve']}]"))
        assert f"b{hole['fixed_build']}" in line
        assert hole.get("advisory", "") in line
        assert hole.get("option", "") in line
        having = [version for version, archive in ARCHIVES.items() if hole["cve"] in archive["holes"]]
        assert line.split(" | ")[4].rstrip(" |") == (", ".join(having) or "none"), hole["cve"]


def test_holes_matter_to_whom_gets_the_server_and_has_not_allowed_them() -> None:
    assert judged(number=1) == ([*OLD, RCE], [])
    assert judged(number=1, vulnerable=True) == judged(number=1, wanted="llama-cli") == ([], [])


def of_llama_server(manifest: dict[str, Any], *extra_args: str) -> tuple[list[str], list[str], str]:
    """Return the holes that concern the service, those that do not, and whether the build is known to have them."""
    given = {**SERVER_VARS, "role_path": str(ROOT / "roles/llama_server"), "llama_server_extra_args": list(extra_args)}
    given["__llama_server_manifest"] = manifest
    found = [worked_out(SERVER_VARS[f"__llama_server_{name}"], given) for name in ("open_holes", "idle_holes", "has")]
    return [hole["cve"] for hole in found[0]], [hole["cve"] for hole in found[1]], found[2]


def manifest_of(version: str) -> dict[str, Any]:
    return {"source": {"commit": ARCHIVES[version]["commit"]}, "rpc_protocol": ARCHIVES[version]["protocol"]}


SLEEP = ["CVE-2026-43631", "CVE-2026-43632"]
N_DISCARD, SLOTS, GRAMMAR = "CVE-2026-21869", "CVE-2026-43629", "CVE-2026-2069"


@pytest.mark.parametrize(
    ("manifest", "extra_args", "concern", "idle", "has"),
    [
        pytest.param(manifest_of("0.3.36"), ["--context-shift"], [], [], "has", id="the-default-pin"),
        pytest.param(manifest_of("0.3.20"), [], [], [N_DISCARD, SLOTS, *SLEEP], "has", id="options-that-are-off"),
        pytest.param(
            manifest_of("0.3.20"), ["--context-shift"], [N_DISCARD], [SLOTS, *SLEEP], "has", id="an-option-that-is-on"
        ),
        pytest.param(manifest_of("0.3.16"), [], [GRAMMAR], [N_DISCARD, SLOTS], "has", id="without-an-option"),
        pytest.param({"rpc_protocol": "5.0.0"}, [], [], [], "may have", id="a-late-protocol"),
        pytest.param(
            {"rpc_protocol": "4.0.0"}, [], [GRAMMAR], [N_DISCARD, SLOTS, *SLEEP], "may have", id="an-early-protocol"
        ),
    ],
)
def test_what_role_llama_server_knows_of_a_build(
    manifest: dict[str, Any], extra_args: list[str], concern: list[str], idle: list[str], has: str
) -> None:
    assert of_llama_server(manifest, *extra_args) == (concern, idle, has)
