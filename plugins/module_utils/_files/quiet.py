# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the base of modules that get URLs, which may hold a login or a signature."""

from __future__ import annotations

import time
from typing import Any, Iterator, Mapping

from ansible.module_utils.basic import AnsibleModule

from .web import Limits, secrets_of


class QuietModule(AnsibleModule):  # type: ignore[misc]
    """A module that hides the secrets of the URLs in its parameters, from its first words in the host's log on."""

    def _log_invocation(self) -> None:
        for url in _urls(self.params):
            self.no_log_values.update(secrets_of(url))
        super()._log_invocation()


def _urls(value: object) -> Iterator[str]:
    if isinstance(value, str) and "://" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _urls(one)


# The options of the documentation fragment download.
PATIENCE: dict[str, dict[str, Any]] = {
    "token": {"type": "str", "no_log": True},
    "stall_timeout": {"type": "int", "default": 60},
    "retries": {"type": "int", "default": 5},
}


def limits_of(params: Mapping[str, Any], late: str = "what has arrived is kept") -> Limits:
    """Return the limits for these options and a `timeout`, from now on."""
    return Limits(params["stall_timeout"], params["retries"], time.monotonic() + params["timeout"], late)
