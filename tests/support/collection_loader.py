# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes `ansible_collections.llama_cpp.cluster` importable, by Ansible's own loader.

The folder of collections in .venv is on no search path of Python: Ansible would find the collection there, too, where a
test gives it another copy.
"""

from __future__ import annotations

from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

COLLECTIONS = Path(__file__).resolve().parents[2] / ".venv/collections"


def install() -> None:
    _AnsibleCollectionFinder(paths=[str(COLLECTIONS)])._install()
