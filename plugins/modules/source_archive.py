#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keep a pinned source archive in a cache folder."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: source_archive
short_description: Keep a pinned source archive in a cache folder
version_added: 0.1.0
description:
  - Fetches an archive of source code and keeps it at O(path). A digest or a git commit pins the archive.
  - It verifies an existing file each time, and fetches a damaged file again.
  - A URL may hold a user name and a password. They, and the query of a URL, are in no message, and not in the arguments
    of git, which other users of the controller could read.
  - It renames a fetched file into place after it has verified the digest. Simultaneous calls for the same O(path)
    wait for each other, so that the file is fetched once.
author:
  - The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  path:
    description: The path of the archive. The module makes its folder if it is missing.
    type: path
    required: true
  sha256:
    description: The SHA-256 digest of the archive. Required with O(requirement) and O(url).
    type: str
  requirement:
    description:
      - A pinned requirement, such as V(llama-cpp-python==0.3.36), whose source distribution C(pip) downloads from the
        package index that it is configured for.
      - The module runs no code from the package and installs nothing. pip asks the package's build backend for the
        package's name, and the stand-in in O(build_backend_path) answers.
    type: str
  build_backend_path:
    description: A folder with a Python module that stands in for the build backend of the package.
    type: path
  pip:
    description: The command that starts pip. If it does not work, the module uses C(python3 -m pip).
    type: list
    elements: str
    default: []
  url:
    description: A URL of the archive.
    type: str
  git_url:
    description: A git repository. The archive is made from the tree of O(git_commit).
    type: str
  git_commit:
    description: The full commit, 40 hexadecimal digits.
    type: str
attributes:
  check_mode:
    description: Returns whether the archive would be fetched.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The module fetches nothing if the archive is there and undamaged.
    support: full
notes:
  - The module does not use M(ansible.builtin.get_url) for O(url), only the same functions. Calls of that module do not
    wait for each other, so each host would fetch the same archive, and its messages do not say what to do.
  - The module does not use M(ansible.builtin.git) for O(git_url). That module keeps a clone with a working tree beside
    the archive, and packs with the user's C(tar.umask), so the same commit can give other bytes.
requirements:
  - pip, for O(requirement)
  - git, for O(git_url)
"""

EXAMPLES = r"""
- name: Fetch the pinned source into the cache
  llama_cpp.cluster.source_archive:
    path: /var/tmp/cache/llama_cpp_python-0.3.36.tar.gz
    requirement: llama-cpp-python==0.3.36
    sha256: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
    build_backend_path: "{{ role_path }}/files/build_backend"
  delegate_to: localhost
"""

RETURN = r"""
path:
  description: The path of the archive.
  returned: success
  type: str
  sample: /var/tmp/cache/llama_cpp_python-0.3.36.tar.gz
sha256:
  description: The archive's digest; V(null) in check mode if it is not there and the source is a git repository.
  returned: success
  type: str
  sample: 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
"""

import errno
import fcntl
import os
import re
import shutil
from http.client import HTTPException
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit, urlunsplit

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import fetch_url
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.digest import digest_of_file, wrong_digest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.quiet import QuietModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.web import shown
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text

# Gives git the name and password in the environment. The first, empty helper takes those of the user's settings away.
HELPER = '!f() { printf "username=%s\\npassword=%s\\n" "$LLAMA_CPP_GIT_NAME" "$LLAMA_CPP_GIT_PASSWORD"; }; f'


def last_line(text: str) -> str:
    """Return the last line with text in it; tools put the reason there."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


# Many times the size of an archive of llama.cpp's source. A server must not be able to fill the disk.
MOST_BYTES = 512 << 20


def without_login(url: str) -> tuple[str, dict[str, str]]:
    """Return a git URL without name and password, and the environment that gives them to git, but to no other user."""
    parts = urlsplit(url)
    login, _at, place = parts.netloc.rpartition("@")
    if not login or parts.scheme not in ("http", "https"):
        return url, {}
    name, _colon, password = login.partition(":")
    # Only for this host, because the server may redirect git to another one.
    settings = [("credential.helper", ""), (f"credential.{parts.scheme}://{place}.helper", HELPER)]
    environment = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        environment.update({f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value})
    environment.update({"LLAMA_CPP_GIT_NAME": unquote(name), "LLAMA_CPP_GIT_PASSWORD": unquote(password)})
    return urlunsplit((parts.scheme, place, *parts[2:])), environment


class Source:
    """One pinned source, and how it is fetched."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.path = Path(module.params["path"])
        self.sha256: str | None = module.params["sha256"]
        # The commit pins git's archives. Their digest is noted when they are made, to notice damage.
        self.note = self.path.with_name(self.path.name + ".sha256")
        # Used under the lock only. The next call removes the files of a killed call.
        self.part = self.path.with_name(f".{self.path.name}.part")

    def cached(self) -> str | None:
        """Return the digest of the archive in the cache if it is intact, else None."""
        expected = self.sha256
        if self.module.params["git_url"]:
            expected = self.note.read_text(encoding="ascii").strip() if self.note.exists() else None
        found = digest_of_file(self.path) if self.path.exists() else None
        return found if found == expected else None

    def fail(self, message: str) -> NoReturn:
        """End the module with one sentence, and remove the partial download."""
        shutil.rmtree(str(self.part), ignore_errors=True)
        if os.strerror(errno.ENOSPC) in message:  # from any program, and with any words around it
            message = f"the disk that holds {self.path.parent} is full; nothing was kept: make room and run this again."
        self.module.fail_json(msg=safe_text(message))
        raise AssertionError

    def run(self, argv: list[str], what: str, **options: object) -> str:
        """Return the output of a program; if it fails, fail with the last line of its error output."""
        code, out, err = self.module.run_command(argv, **options)
        if code != 0:
            mismatch = re.search(r"Expected sha256 (\w+)\s+Got\s+(\w+)", err)
            if mismatch:
                self.fail(wrong_digest(what, mismatch.group(2), mismatch.group(1)))
            self.fail(f"{what} could not be fetched: {last_line(err or out)}")
        return str(out)

    def pip(self) -> list[str]:
        """Return the command of a pip that works."""
        for command in (self.module.params["pip"], ["python3", "-m", "pip"]):
            if command and shutil.which(command[0]) and self.module.run_command([*command, "--version"])[0] == 0:
                return list(command)
        return self.fail("no pip was found on the controller: install python3-pip, or give an archive as the source.")

    def fetch_requirement(self, folder: Path) -> Path:
        """Return a downloaded source distribution, whose digest pip also verifies."""
        requirement = self.module.params["requirement"]
        listing = folder / "requirements.txt"
        listing.write_text(f"{requirement} --hash=sha256:{self.sha256}\n", encoding="utf-8")
        quiet = ["--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
        pinned = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
        self.run(
            [*self.pip(), "download", *quiet, *pinned, "--dest", str(folder / "out"), "--requirement", str(listing)],
            f"{requirement} from the package index",
            environ_update={
                "PYTHONPATH": self.module.params["build_backend_path"] or "",
                "PYTHONDONTWRITEBYTECODE": "1",
                # pip unpacks large files there, which are removed with the folder.
                "TMPDIR": str(folder),
                "LC_ALL": "C",
            },
        )
        return next((folder / "out").iterdir())

    def fetch_url(self, folder: Path) -> Path:
        """Return a file downloaded from the URL."""
        answer, info = fetch_url(self.module, self.module.params["url"], timeout=60)
        url = shown(self.module.params["url"])
        if answer is None or not 0 <= (info.get("status") or 0) < 400:  # a local file has no status
            self.fail(f"{url} could not be fetched: {last_line(str(info.get('msg', '')))}.")
        fetched = folder / "archive"
        try:
            with fetched.open("wb") as sink:
                while block := answer.read(1 << 20):
                    if sink.tell() + len(block) > MOST_BYTES:
                        self.fail(f"{url} sends more than {MOST_BYTES >> 20} MiB, so it is no archive of a source.")
                    sink.write(block)
        except (OSError, HTTPException) as error:
            self.fail(f"{url} could not be fetched: {error}.")
        return fetched

    def fetch_git(self, folder: Path) -> Path:
        """Return an archive of one fetched commit; git verifies the commit's name by its content."""
        (url, login), commit = without_login(self.module.params["git_url"]), self.module.params["git_commit"]
        repository, fetched = str(folder / "git"), folder / "archive"
        what = f"commit {commit} of {shown(url) if '://' in url else url}"
        # Never ask for a password, never look at a repository around the cache.
        options = {"environ_update": {"GIT_TERMINAL_PROMPT": "0", "GIT_DIR": repository, "LC_ALL": "C", **login}}
        self.run(["git", "init", "--quiet", "--bare", repository], what, **options)
        self.run(["git", "fetch", "--quiet", "--no-tags", "--depth=1", "--", url, commit], what, **options)
        found = self.run(["git", "rev-parse", "--verify", "FETCH_HEAD^{commit}"], what, **options).strip()
        if found != commit:
            self.fail(f"{what} was asked for, but {found} came; nothing was kept.")
        self.run(["git", "fsck", "--no-dangling", "--no-progress"], what, **options)
        # The user's own setting of tar.umask would change the bytes.
        pack = ["git", "-c", "tar.umask=0022", "archive", "--format=tar", "-o", str(fetched), commit]
        self.run(pack, what, **options)
        return fetched

    def fetch(self) -> str:
        """Fetch and verify the archive, move it into place, and return its digest."""
        folder, params = self.part, self.module.params
        shutil.rmtree(str(folder), ignore_errors=True)
        folder.mkdir()
        if params["requirement"]:
            what, fetched = params["requirement"], self.fetch_requirement(folder)
        elif params["url"]:
            what, fetched = shown(params["url"]), self.fetch_url(folder)
        else:
            what, fetched = "", self.fetch_git(folder)
        found = digest_of_file(fetched)
        if params["git_url"]:
            note = folder / "note"
            note.write_text(found + "\n", encoding="ascii")
            note.replace(self.note)
        elif found != self.sha256:
            self.fail(wrong_digest(what, found, str(self.sha256)))
        fetched.replace(self.path)
        shutil.rmtree(str(folder), ignore_errors=True)
        return found


def main() -> None:
    """Run the module."""
    module = QuietModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str"},
            "requirement": {"type": "str"},
            "build_backend_path": {"type": "path"},
            "pip": {"type": "list", "elements": "str", "default": []},
            "url": {"type": "str"},
            "git_url": {"type": "str"},
            "git_commit": {"type": "str"},
        },
        required_one_of=[("requirement", "url", "git_url")],
        mutually_exclusive=[("requirement", "url", "git_url"), ("sha256", "git_url")],
        required_by={"requirement": "sha256", "url": "sha256", "git_url": "git_commit"},
        supports_check_mode=True,
    )
    if module.params["sha256"]:
        module.params["sha256"] = module.params["sha256"].lower()
    source = Source(module)
    found = source.cached()
    changed = found is None
    if changed and not module.check_mode:
        try:
            source.path.parent.mkdir(parents=True, exist_ok=True)
            with source.path.with_name(f".{source.path.name}.lock").open("w", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Another call may have fetched it while this one waited.
                found = source.cached()
                changed = found is None
                found = found or source.fetch()
        except OSError as error:
            source.fail(f"{source.path} cannot be kept: {error.strerror or error}.")
    module.exit_json(changed=changed, path=str(source.path), sha256=found or module.params["sha256"])


if __name__ == "__main__":
    main()
