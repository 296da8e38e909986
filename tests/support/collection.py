# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the collection for programs that run outside pytest. In pytest, conftest.py installs the loader."""

from __future__ import annotations

from support.collection_loader import install

install()

from ansible_collections.llama_cpp.cluster.plugins.filter.llama_perf import FilterModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.cpu_topology import read_topology
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.source_patch import (
    Patch,
    check_origin,
    patch_folder,
    read_patch,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.endpoint import parse_endpoint, parse_endpoints
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.prober import probe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.worker_status import summarize
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.perf_log import parse_log
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.worker_run import ENVIRONMENT
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve import load

__all__ = [
    "ENVIRONMENT",
    "FilterModule",
    "Patch",
    "check_origin",
    "load",
    "parse_endpoint",
    "parse_endpoints",
    "parse_log",
    "patch_folder",
    "probe",
    "read_patch",
    "read_topology",
    "summarize",
]
