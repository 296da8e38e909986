# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures and defaults that a page or a message repeats match their source."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import bytes_a_token as read_of_shape
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.result import ONE_HOST

from host_speed import GB_A_TOKEN, LEAST_BYTES, TIMES_CACHE, bytes_a_token, layers_for, report
from support.tree import ROOT


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_what_a_second_worker_gives_generation_is_the_measured_figure() -> None:
    row = next(
        line
        for line in page("explanation/performance.md").splitlines()
        if line.startswith("| two workers of one core / one, `ubatch` 64")
    )
    measured = row.split("|")[3].split()[0]
    assert f"two equal workers generated {measured} times as fast as one" in ONE_HOST
    assert re.search(rf"two\s+equal workers are {measured} times as fast as one", page("explanation/planning.md"))


def test_the_example_inventory_names_the_role_s_limit_of_the_cache() -> None:
    default = yaml.safe_load((ROOT / "roles/rpc_server/defaults/main.yml").read_text())["rpc_server_cache_max"]
    assert (
        f"# rpc_server_cache_max: {default}\n"
        in (ROOT / "inventories/example/group_vars/llama_workers.yml").read_text()
    )


def test_no_example_of_an_upgrade_names_the_default_version() -> None:
    default = yaml.safe_load((ROOT / "roles/llama_cpp/defaults/main.yml").read_text())["llama_cpp_version"]
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert f"upgrade -e llama_cpp_version={default}" not in path.read_text(), path


def read_by_a_token(name: str) -> float:
    """Return the bytes of a model of the size page that a token reads."""
    return read_of_shape(next(shape for shape in SHAPES if shape.name == name))


def test_the_script_knows_all_dense_models_of_the_size_page() -> None:
    assert list(GB_A_TOKEN) == [shape.name for shape in SHAPES if not shape.experts]


@pytest.mark.parametrize("name", GB_A_TOKEN)
def test_the_script_knows_what_a_token_reads(name: str) -> None:
    assert pytest.approx(read_by_a_token(name) / 1e9, abs=0.005) == GB_A_TOKEN[name]


def test_the_speed_of_70b_is_the_bandwidth_divided_by_what_a_token_reads() -> None:
    text = page("explanation/performance.md")
    section = text.partition("## What to expect of 70B")[2].partition("\n## ")[0]
    read = read_by_a_token("70B") / 1e9
    assert f"of which a token reads {read:.1f} GB" in section
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+) GB/s[^|]*\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    assert len(rows) >= 4
    for bandwidth, *speeds in rows:
        for hosts, speed in zip((1, 2, 4), speeds):
            assert speed in ("does not fit", f"{hosts * float(bandwidth) / read:.1f}")
    # What Arm measured: tokens/s on 16, 8 and 4 threads of c8g.4xlarge, and of 70B over two such hosts.
    section = " ".join(section.split())
    rates = [speed * read_by_a_token("8B") / 1e9 for speed in (40.99, 25.29, 15.18)]
    assert f"| {rates[0]:.1f} GB/s [c] |" in section
    assert f"With 8 threads it is {rates[1]:.0f} GB/s, with 4 threads {rates[2]:.0f}." in section
    assert f"16 of 64 cores read {100 * rates[0] / 465.5:.0f} % of what 64 read" in section
    of_the_most = 100 * 1.75 * read / rates[0]
    assert f"| 1.75 | {of_the_most:.0f} % (of split mode `tensor` {of_the_most / 2:.0f} %) |" in section
    # Of 405B's 213.13 GiB, a token reads all but the table of embeddings: 128256 rows of 16384 weights.
    assert f"| 1.64 | {100 * 1.64 * (213.13 * 2**30 - 16384 * 128256 * 4.5 / 8) / 465.5e9:.0f} % |" in section


def test_the_speed_of_a_raspberry_pi_is_its_bandwidth_divided_by_what_a_token_reads() -> None:
    text = " ".join(page("start/raspberry-pi.md").split())
    eight, seventy = (read_by_a_token(name) / 1e9 for name in ("8B", "70B"))
    assert f"at most {17 / eight:.1f} tokens a second, and 70B at most {17 / seventy:.1f} " in text


def test_the_sample_of_a_host_s_speed_is_what_the_script_prints() -> None:
    sample = page("explanation/performance.md").partition("host_speed.py\n```")[2].split("```text\n")[1].split("```")[0]
    found = re.search(r"Measured: ([\d.]+) \(([\d.]+) to ([\d.]+)\)", sample)
    assert found
    cache = 32 * 2**20  # of the machine that the page names
    measured = {
        "samples_ts": [float(speed) for speed in found.groups()],
        "cpu_info": "AMD EPYC",
        "n_threads": 2,
        "build_commit": "0c1e57098",
    }
    printed = report(measured, bytes_a_token(layers_for(max(TIMES_CACHE * cache, LEAST_BYTES))), cache, [2, 4]).split()
    assert len(printed) == len(sample.split())
    for word, shown in zip(printed, sample.split()):
        # The page's figures come from a median that is rounded to two digits in its text.
        if re.fullmatch(r"[\d.]+", word):
            assert float(shown) == pytest.approx(float(word), rel=0.002, abs=0.011)
        else:
            assert shown == word
