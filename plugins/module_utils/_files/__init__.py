# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on a host: how they are downloaded, compared and recorded.

Code for files of any kind belongs here; code that is special to a release or a model does not.
Floor 1: it imports no other package; every package above may import it.
"""
