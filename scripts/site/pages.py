# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the sources of the site to a folder: `pages.py collection FOLDER` and then `pages.py pages FOLDER`.

`collection` makes a copy of the collection that antsibull-docs can read. `pages` copies docs/ and the READMEs of roles.
A link to another file of the repository leads to GitHub. `pages` makes the navigation from the folders: a page's title
is its heading, and pages come in the order in which docs/index.md names them.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
# The sections, in their order; a folder that does not exist is left out.
SECTIONS = {
    "start": "Start",
    "how-to": "How-to guides",
    "runbooks": "Runbooks",
    "explanation": "Explanation",
    "reference": "Reference",
}
# The titles of other folders, if they have no index.
FOLDERS = {"reference/roles": "Roles", "reference/playbooks": "Playbooks", "upstream": "Patches, for llama.cpp"}
# Pages in the top folder, which are for contributors.
TOP = ("CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
REPOSITORY = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["repository"]
FENCED = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))|(?<=^)(\[[^\]]+\]: )(\S+)", re.MULTILINE)
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def tracked() -> list[str]:
    """Return the paths of all files in the repository that git does not ignore."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True
    )
    return [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]


def copy_collection(target: Path) -> None:
    """Copy the files with documentation, with templated defaults in the descriptions, as they have another type."""
    shutil.rmtree(target, ignore_errors=True)
    for path in tracked():
        if path.split("/")[0] not in {"galaxy.yml", "meta", "plugins", "roles", "README.md"}:
            continue
        copy = target / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/meta/argument_specs.yml"):
            spec = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
            for entry in spec["argument_specs"].values():
                _tell_templates(entry.get("options", {}))
            copy.write_text(yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=1000), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, copy)


def _tell_templates(options: dict[str, Any]) -> None:
    for option in options.values():
        default = option.get("default")
        if option.get("type", "str") != "str" and isinstance(default, str) and "{{" in default:
            told = option.get("description", [])
            option["description"] = [*([told] if isinstance(told, str) else told), f"The default is C({default})."]
            del option["default"]
        _tell_templates(option.get("options", {}))


class Pages:
    """The pages of the site, by their paths in the tree."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.tree = set(tracked())
        self.folders = {posixpath.dirname(path) for path in self.tree}
        self.folders |= {str(parent) for path in self.tree for parent in Path(path).parents} - {"."}
        self.places: dict[str, str] = {}
        for path in sorted(self.tree):
            place = self._place(path)
            if place:
                self.places[path] = place
        # The site has its own front page.
        self.places["README.md"] = "index.md"

    @staticmethod
    def _place(path: str) -> str | None:
        role = re.fullmatch(r"roles/([^/]+)/README\.md", path)
        if role:
            return f"reference/roles/{role[1]}.md"
        if path in TOP:
            return path
        if path.startswith("docs/images/"):
            return path[len("docs/") :]
        if path.startswith("docs/") and path.endswith(".md"):
            return re.sub(r"/README\.md$", "/index.md", path[len("docs/") :])
        return None

    def write(self) -> None:
        """Write all pages and their navigation."""
        texts: dict[str, str] = {}
        for path, place in list(self.places.items()):
            if path == "README.md":
                continue
            if not place.endswith(".md"):
                self._copy(path, place)
                continue
            texts[place] = self._linked(path, place)
        self._navigation(texts)
        for place, text in texts.items():
            self._put(place, text)

    def _copy(self, path: str, place: str) -> None:
        copy = self.target / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy)

    def _put(self, place: str, text: str) -> None:
        page = self.target / place
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")

    def _linked(self, path: str, place: str) -> str:
        """Return the text of a page with the links of the site. Sphinx reports those that lead nowhere."""
        parts = FENCED.split((ROOT / path).read_text(encoding="utf-8"))
        parts[::2] = [LINK.sub(lambda found: self._link(path, place, found), part) for part in parts[::2]]
        return "".join(parts)

    def _link(self, path: str, place: str, found: re.Match[str]) -> str:
        before, link = (found[2], found[3]) if found[2] else ("", found[1])
        where, separator, anchor = link.partition("#")
        if not where or re.match(r"[a-z]+:", where):
            return before + link
        aim = posixpath.normpath(posixpath.join(posixpath.dirname(path), where))
        if aim.startswith("docs/") and aim in self.folders:
            self.places[aim] = f"{aim[len('docs/') :]}/index.md"
        if aim in self.places:
            to = posixpath.relpath(self.places[aim], posixpath.dirname(place) or ".")
        elif aim in self.tree or aim in self.folders:
            to = f"{REPOSITORY}/{'blob' if aim in self.tree else 'tree'}/main/{aim}"
        else:
            to = where
        return before + to + separator + anchor

    def _navigation(self, texts: dict[str, str]) -> None:
        front = texts.setdefault("index.md", "# llama_cpp.cluster\n")
        order = {place: number for number, place in enumerate(re.findall(r"\]\(([\w./-]+\.md)", front))}
        for folder in sorted({posixpath.dirname(place) for place in texts} - {""}, key=len, reverse=True):
            index = f"{folder}/index.md"
            title = SECTIONS.get(folder) or FOLDERS.get(folder) or Path(folder).name
            generated = index not in texts
            text = texts.setdefault(index, f"# {title}\n")
            inside = [place for place in texts if posixpath.dirname(place) == folder and place != index]
            inside += [place for place in texts if re.fullmatch(rf"{re.escape(folder)}/[^/]+/index\.md", place)]
            if folder == "reference":
                inside.append("reference/collection/index.rst")
            inside.sort(key=lambda place: (order.get(place, len(order)), self._title(texts.get(place, "# The specs"))))
            texts[index] = text + _toctree([posixpath.relpath(place, folder) for place in inside], hidden=not generated)
        for place in texts:
            role = re.fullmatch(r"reference/roles/(?!index)(.+)\.md", place)
            if role:
                texts[place] += f"\n## All variables\n\n[Role {role[1]}](../collection/{role[1]}_role.rst) has them.\n"
        rest = [place for place in ("maintaining.md", *TOP, "upstream/index.md") if place in texts]
        if "development.md" in texts:
            texts["development.md"] += _toctree(rest, hidden=True)
        sections = [f"{folder}/index.md" for folder in SECTIONS if f"{folder}/index.md" in texts]
        texts["index.md"] += _toctree([*sections, "development.md"], hidden=True)

    @staticmethod
    def _title(text: str) -> str:
        found = HEADING.search(text)
        return found[1].replace("`", "").lower() if found else ""


def _toctree(places: list[str], *, hidden: bool) -> str:
    option = ":hidden:\n" if hidden else ":maxdepth: 1\n"
    return (
        f"\n```{{toctree}}\n{option}\n"
        + "".join(f"{re.sub('[.](md|rst)$', '', place)}\n" for place in places)
        + "```\n"
    )


def main() -> int:
    """Run one of the two commands, and return the exit status."""
    what, target = sys.argv[1], Path(sys.argv[2])
    if what == "collection":
        copy_collection(target)
        return 0
    Pages(target).write()
    # The theme shows a list of headings beside each page, and warns of a second one.
    for page in target.glob("reference/collection/*.rst"):
        page.write_text(
            re.sub(r"^\.\. contents::\n(?: +:.*\n)*", "", page.read_text("utf-8"), flags=re.MULTILINE), "utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
