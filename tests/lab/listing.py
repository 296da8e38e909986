# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a listing of the test hosts once, and compare it later with another.

A listing has files with owner, mode and content, packages, accounts, services, listening sockets and packet filter
rules. It leaves out what any package manager leaves behind, and what changes by itself.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from concurrent.futures import ThreadPoolExecutor

from support.lab.hosts import LAB, ssh

LISTING = r"""
export LC_ALL=C
# Package lists, logs of installations, random seeds, stamps of timers, byte code of Python modules; what Ansible itself
# keeps; what Debian's packages leave when they are purged: accounts, the catalogue of XML, polkit's folders.
find /etc /home /opt ~root /srv /usr /var/cache /var/lib -xdev \( \
        -path /var/lib/apt -o -path /var/cache/apt -o -path /var/cache/debconf -o -path /var/cache/ldconfig \
        -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path '/home/*/.ansible' -o -path ~root/.ansible \
        -o -path ~root/.ansible_async -o -path /etc/xml -o -path /usr/share/polkit-1 -o -path /var/lib/ucf \
        -o -path /etc/ld.so.cache -o -path /etc/.pwd.lock -o -name __pycache__ -o -path '/etc/*-' \
    \) -prune -o \( -type d -printf 'folder %p %M %u %g\n' -o -type l -printf 'link %p -> %l\n' \
        -o -type f -printf 'file %p %M %u %g\n' \)
find /etc -xdev -type f ! -path /etc/ld.so.cache ! -path '/etc/*-' ! -path '/etc/*shadow' \
    ! -path /etc/passwd ! -path /etc/group -exec md5sum {} + | sed 's/^/content /'
{ sed 's/^/account /' /etc/passwd; sed 's/^/group /' /etc/group; } | grep -v ' polkitd:'
dpkg-query -W -f 'package ${Package} ${db:Status-Abbrev}\n'
systemctl list-unit-files --no-legend --no-pager | awk '$2 != "transient" { print "unit " $1, $2 }'
ss -tulnH | awk '{ print "listens " $1, $5 }'
if command -v nft >/dev/null; then nft list tables | sed 's/^/filter /'; fi
cat /proc/[0-9]*/comm 2>/dev/null | grep -E 'rpc-server|llama-server|firewalld|haproxy' | sed 's/^/runs /'
"""


def listing(host: str) -> list[str]:
    return sorted(ssh(host, "sh", "-c", LISTING, timeout=120).stdout.splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("take", "compare"))
    options = parser.parse_args()
    known = re.findall(r"^Host (\S+)$", (LAB / "ssh_config").read_text(), re.MULTILINE)
    hosts = [name for name in known if (LAB / f"{name}.log").exists()]
    with ThreadPoolExecutor(len(hosts)) as threads:
        found = dict(zip(hosts, threads.map(listing, hosts)))
    different = 0
    for host, now in found.items():
        taken = LAB / f"{host}.listing"
        if options.action == "take":
            taken.write_text("\n".join(now) + "\n")
            continue
        for line in difflib.unified_diff(taken.read_text().splitlines(), now, n=0, lineterm=""):
            if line[:3] not in ("---", "+++") and line[:2] != "@@":
                different += 1
                print(f"{host}: {line}")
    if options.action == "compare":
        lines = sum(map(len, found.values()))
        print(f"{different} of {lines} lines differ." if different else f"All {lines} lines are as they were.")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
