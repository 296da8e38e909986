# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files on a host: how they are downloaded, compared and recorded.

What any file needs belongs here; what is special to a release or to a model does not.
Floor 1: it imports no other package; every package above may import it.
"""
