"""Which names below a directory are hidden, and so nobody's orphans: what engines keep for themselves while they work.

As for Iceberg a name is hidden that begins with `_` or `.`, unless it is a directory of a partition whose field has such a
name, under any spec that the table has had. The metadata of a table that was dropped and kept is not hidden: its files are not
orphans.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote_plus

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.catalog.dropped_versions import MOVED_ASIDE
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.storage.locations import canonical, parse_location

_SCHEME_AND_AUTHORITY = r"^[A-Za-z][A-Za-z0-9+.\-]*:(?://[^/]*)?"
_HIDDEN = r"(?:^|/)[_.]"


class HiddenNames(msgspec.Struct, frozen=True):
    """The rule for one listed directory; can be pickled.

    `pattern` finds the beginnings of directories that look hidden and are partitions, empty where there are none.
    """

    root_length: int
    pattern: str

    def mask(self, locations: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Which of some locations below the directory are hidden, or are directories and no files."""
        is_dropped = pc.match_substring_regex(locations, MOVED_ASIDE)
        paths = pc.replace_substring_regex(locations, _SCHEME_AND_AUTHORITY, "")
        paths = pc.replace_substring_regex(paths, "/+", "/")
        below = pc.utf8_slice_codeunits(paths, start=self.root_length)
        plain = pc.replace_substring_regex(below, self.pattern, r"\1=") if self.pattern else below
        own = pc.match_substring_regex(below, rf"(?:^|/){re.escape(OWN_DIRECTORY)}(?:/|$)")
        hidden = pc.or_(
            pc.and_not(pc.or_(pc.match_substring_regex(plain, _HIDDEN), own), is_dropped), pc.ends_with(paths, "/")
        )
        return np.asarray(hidden.to_numpy(zero_copy_only=False) if isinstance(hidden, pa.Array) else hidden.to_numpy())


def hidden_names(root: str, specs: Iterable[PartitionSpec]) -> HiddenNames:
    """The rule for files below a directory.

    Args:
        specs: all that the table has had: files of older ones are live as well.
    """
    path = parse_location(canonical(root)).path
    names = {field.name for spec in specs for field in spec.fields if field.name.startswith(("_", "."))}
    # Writers encode names for their paths, as Java does (`spec.partitioning.partition_path`).
    spelled = sorted(names | {quote_plus(name, safe="*").replace("~", "%7E") for name in names})
    pattern = rf"(^|/)(?:{'|'.join(map(_literal, spelled))})=" if spelled else ""
    return HiddenNames(len(path.rstrip("/")) + 1, pattern)


def _literal(name: str) -> str:
    """A name as a pattern of RE2, which knows fewer escapes than Python's `re` makes."""
    return "".join(c if c.isalnum() or c in "_" else f"\\x{{{ord(c):x}}}" for c in name)
