# SPDX-License-Identifier: GPL-3.0-or-later
"""An upgrade that is not good in the end: every step is taken, and every host goes back. More of it: tests/upgrade."""

from __future__ import annotations

import json
import re
from pathlib import Path

from harness import ADDRESS, CACHE, PORT, WORKERS, ask, at_once, play, ssh

HOSTS = ("master", *WORKERS)


def in_use() -> dict[str, str]:
    """Return the release of each host, as the link says; a note, and what is half made, would stand beside it."""
    look = "cd /opt/llama_cpp && basename $(readlink current); ls -dA upgrade.json .[!.]* releases/.[!.]* 2>/dev/null"
    return at_once(lambda host: ssh(host, "sh", "-c", look, check=False).stdout.strip(), HOSTS)


def test_a_new_release_that_answers_otherwise_leaves_every_host_with_what_it_had(tmp_path: Path) -> None:
    before = in_use()
    # The very same programs as artifacts are other releases of the same commit, and nothing has to be compiled.
    hosts = {}
    for host, release in before.items():
        record = json.loads((CACHE / f"artifacts/{release}.json").read_text())
        hosts[host] = {
            "llama_cpp_build_strategy": "artifact",
            "llama_cpp_artifact": str(CACHE / f"artifacts/{release}.tar.gz"),
            "llama_cpp_artifact_sha256": record["sha256"],
            "llama_cpp_commit": record["manifest"]["source"]["commit"],
        }
    (tmp_path / "artifacts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    # A prompt that is another one each time, as if the model had another opinion.
    prompt = '{"inference_prompt": "{{ 9999999999 | random }}"}'
    run = play("upgrade", "-i", str(tmp_path / "artifacts.json"), "-e", prompt, check=False)
    said = re.sub(r"\s+", " ", run.stdout)
    assert run.returncode != 0
    assert "With the new release the prompt is continued with" in said
    for host in HOSTS:
        assert f"{host} is back at llama.cpp" in said
    assert in_use() == before
    endpoints = [f"{ADDRESS[worker]}:{PORT}" for worker in WORKERS]
    assert ask("master", *endpoints) == dict.fromkeys(endpoints, "ready")
