# SPDX-License-Identifier: GPL-3.0-or-later
"""Make `ansible_collections.llama_cpp.cluster` importable, by Ansible's own loader.

The folder of collections in .venv is on no search path of Python. Otherwise Ansible would also find the collection
there when a test gives it another copy. A clone that is a collection by its own path is found by that path:
ansible-doc finds no role below two folders `ansible_collections`.
"""

from __future__ import annotations

from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

ROOT = Path(__file__).resolve().parents[2]
COLLECTIONS = ROOT.parents[2] if ROOT.match("ansible_collections/llama_cpp/cluster") else ROOT / ".venv/collections"


def install() -> None:
    _AnsibleCollectionFinder(paths=[str(COLLECTIONS)])._install()
