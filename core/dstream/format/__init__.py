"""Bytes on disk to dataclasses and back. No I/O. ``docs/format.md`` is the normative text."""
