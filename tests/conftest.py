# SPDX-License-Identifier: GPL-3.0-or-later
"""Make `ansible_collections.llama_cpp.cluster` importable from this checkout, by Ansible's own loader."""

from __future__ import annotations

from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

ROOT = Path(__file__).resolve().parent.parent

_AnsibleCollectionFinder(paths=[str(ROOT / ".venv" / "collections")])._install()
