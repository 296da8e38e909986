# SPDX-License-Identifier: GPL-3.0-or-later
"""Put a stand-in where a package is missing that azure.azcollection imports but its inventory plugin does not use.

The collection imports over thirty SDK packages (1.5 GB installed) in one `try`, and fails if any of them is missing.
The packages that the inventory plugin uses are installed and real: azure-core, azure-identity, azure-cli-core,
azure-mgmt-core and azure-mgmt-compute. If this file is on PYTHONPATH, Python imports it at the start. Stand-ins never
replace an installed package.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

MISSING = ("azure.mgmt.", "azure.storage", "kiota_authentication_azure", "msgraph", "netaddr")
# Packages share these folders.
SHARED = ("", "azure", "azure.mgmt")


class StandIn(ModuleType):
    """A module that has every name, but no name can be used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_args: object, **_kwargs: object) -> None:
            raise NotImplementedError(
                f"{self.__name__}.{name} is a stand-in: its package is not installed for the tests"
            )

        return missing


class Finder:
    """The last finder, for modules that no other one has; a real package without an optional part stays without it."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        parent = name.rpartition(".")[0]
        if name.startswith(MISSING) and (parent in SHARED or isinstance(sys.modules.get(parent), StandIn)):
            return ModuleSpec(name, Finder, is_package=True)  # type: ignore[arg-type]
        return None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    @staticmethod
    def exec_module(_module: ModuleType) -> None:
        """Leave the module empty."""


sys.meta_path.append(Finder)
