# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration with which Sphinx builds the site; scripts/docs.sh starts it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

galaxy = yaml.safe_load((Path(__file__).resolve().parents[2] / "galaxy.yml").read_text(encoding="utf-8"))

project = f"{galaxy['namespace']}.{galaxy['name']}"
version = release = str(galaxy["version"])
copyright = "the authors; GPL-3.0-or-later"  # noqa: A001
extensions = ["myst_parser", "sphinx_antsibull_ext"]
# Headings have the same anchors as on GitHub.
myst_heading_anchors = 6
# Shortened output is not valid JSON. Sphinx still highlights the parts that are.
suppress_warnings = ["misc.highlighting_failure"]

# site.css has the colours.
antsibull_ext_color_scheme = "none"

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# A page that is opened as a file cannot read other files, so search results have titles but no excerpts.
html_show_search_summary = False
html_use_index = False

# Pages of Ansible that specs link to. The build fetches nothing to find them.
ANSIBLE = "https://docs.ansible.com/ansible/latest"
ANSIBLE_PAGES = {
    "action_plugins": "plugins/action.html",
    "ansible_configuration_settings": "reference_appendices/config.html",
    "common_return_values": "reference_appendices/common_return_values.html",
}


def elsewhere(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> nodes.Node | None:
    """Return the reference for a label of Ansible's own pages, or of one of our playbooks."""
    label = node.get("reftarget", "")
    playbook = re.fullmatch(r"ansible_collections\.llama_cpp\.cluster\.(\w+)_playbook", label)
    if playbook:
        page = f"reference/playbooks/{playbook[1]}"
        page = page if page in env.found_docs else "reference/playbooks"
        return make_refnode(app.builder, node["refdoc"], page, "", content) if page in env.found_docs else None
    builtin = re.fullmatch(r"ansible_collections\.ansible\.builtin\.(\w+)", label)
    page = f"collections/ansible/builtin/{builtin[1]}.html" if builtin else ANSIBLE_PAGES.get(label)
    return nodes.reference("", "", content, internal=False, refuri=f"{ANSIBLE}/{page}") if page else None


# An element that scrolls must be able to get the keyboard focus, and there is no attribute `aria-role`.
REPAIRS = {
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    ' aria-role="button"': "",
}


def repair(app: Sphinx, error: Exception | None) -> None:
    """Repair output of Sphinx, the theme and antsibull-docs that screen readers or keyboards cannot use."""
    for page in Path(app.outdir).rglob("*.html") if error is None else ():
        text = page.read_text(encoding="utf-8")
        for wrong, right in REPAIRS.items():
            text = text.replace(wrong, right)
        page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register the functions above with Sphinx."""
    app.connect("missing-reference", elsewhere)
    app.connect("build-finished", repair)
