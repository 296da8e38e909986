# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GGUF files: what their headers say, and what the described model needs.

What reads or reckons with a model file belongs here; nothing here knows of workers or of Ansible.
Floor 1: it imports no other package; every package above may import it.
"""
