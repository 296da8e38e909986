# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the base of modules that get URLs, which may hold a login or a signature."""

from __future__ import annotations

from typing import Iterator

from ansible.module_utils.basic import AnsibleModule

from .web import secrets_of


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
