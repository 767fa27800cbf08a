"""A node's extents on its own disk, shared by its processes without a daemon.

``cache.py`` is the way in. ``record.py`` and ``layout.py`` are the bytes and names on disk,
``policy.py`` decides what is admitted and what goes, by ``lifetimes.py`` where readers know their
plan, ``segment.py`` and ``folder.py`` do the I/O.
docs/cache.md tells why it is made so.
"""
