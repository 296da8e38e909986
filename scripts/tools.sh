# shellcheck shell=sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Other scripts source this file, and set $cache to the cache folder. It makes the environment of requirements/tools.txt, whose
# programs want other versions than the checks and tests, and sets $tools to it. With $list, it uses another list than tools.
list=${list:-tools}
tools=${cache:?}/$list-$(sha256sum "requirements/$list.txt" | cut -c 1-12)
if [ ! -e "$tools/complete" ]; then
    echo "==> Installing requirements/$list.txt into $tools (pinned, with digests)"
    python -m venv --clear "$tools"
    # The list has all that is needed, without an optional package of cyclonedx-py.
    PIP_CACHE_DIR=$cache/pip "$tools/bin/python" -m pip install --quiet --no-deps --require-hashes --only-binary :all: -r "requirements/$list.txt"
    : >"$tools/complete"
fi
