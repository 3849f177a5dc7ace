"""The table of all entries."""

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.gallery import heads, networks, scans
from benchmarks.gallery.entry import Entry

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {entry.name: entry for file in (scans, networks, heads) for entry in file.ENTRIES}
)
"""By name, in the order of the page."""
