"""Sketches of single data files, kept below `.icekeep/sketches/`: a file that no delete reaches never has others.

Each run writes one Puffin file, with a blob for each column of each split of a data file that it has read. It is no part of the
table: where one is gone or damaged, the data files are read again. Files none of whose data files is live any more are removed
by a later run.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from hashlib import blake2b
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, InvalidTableError
from icekeep.formats.puffin import PuffinFooter, PuffinWriter, footer_of
from icekeep.formats.theta import BLOB_TYPE, ThetaSketch, sketch_from_bytes
from icekeep.spec.properties import own_directory
from icekeep.storage.base import DeleteStatus

_DIRECTORY = "sketches"
_PATH, _TYPE, _PART, _MAPPING = "data-file", "type", "part", "name-mapping"


class SketchedColumn(msgspec.Struct, frozen=True):
    """A column whose sketch is asked for: its field id, its type as text, and its name."""

    field_id: int
    type: str
    name: str


class SplitSketches(msgspec.Struct, frozen=True, kw_only=True):
    """The sketches of the rows of a split of a data file, in the order of the columns."""

    file_path: str
    start: int
    length: int
    sketches: tuple[ThetaSketch, ...]


class KeptSketches:
    """What earlier runs have kept of a table, for some columns.

    A kept sketch holds for its column as long as that has its type, and the table its name mapping.
    """

    def __init__(self, table: Table, columns: Sequence[SketchedColumn]) -> None:
        self._table, self._columns = table, columns
        self._directory = own_directory(table.metadata, _DIRECTORY)
        mapping = table.metadata.properties.get("schema.name-mapping.default", "")
        self._mapping = blake2b(mapping.encode(), digest_size=8).hexdigest() if mapping else ""
        self._paths: dict[str, set[str]] = {}
        # By data file: by start of a split its length, and by column where the sketch is.
        self._found: dict[str, dict[int, tuple[int, dict[int, tuple[str, int, int]]]]] = {}
        types = {column.field_id: column.type for column in columns}
        for location in self._listed():
            try:
                with table.storage.open(location) as stream:
                    footer = footer_of(stream, location)
                self._take(location, footer, types)
            except IcekeepError:
                # It may be one that another run just removed; it has no data file that is live, so far as is known here.
                continue

    def _listed(self) -> list[str]:
        try:
            return sorted(file.location for file in self._table.storage.list(self._directory))
        except IcekeepError:
            return []

    def _take(self, location: str, footer: PuffinFooter, types: Mapping[int, str]) -> None:
        paths = self._paths.setdefault(location, set())
        for blob in footer.blobs:
            said = blob.properties
            path, part = said.get(_PATH, ""), said.get(_PART, "").split("+")
            paths.add(path)
            [field_id] = blob.fields if len(blob.fields) == 1 else (-1,)
            if blob.type != BLOB_TYPE or types.get(field_id) != said.get(_TYPE) or said.get(_MAPPING) != self._mapping:
                continue
            if len(part) != 2 or not all(one.isdigit() for one in part):
                continue
            start, length = map(int, part)
            known = self._found.setdefault(path, {}).setdefault(start, (length, {}))
            if known[0] == length:
                known[1][field_id] = (location, blob.offset, blob.length)

    def has(self, path: str, size_bytes: int) -> bool:
        """Whether the sketches of all columns and all splits of a data file of this size are there."""
        parts = self._found.get(path, {})
        ends = 0
        for start, (length, places) in sorted(parts.items()):
            if start > ends or len(places) < len(self._columns):
                return False
            ends = max(ends, start + length)
        return bool(parts) and ends >= size_bytes

    def read(self, paths: Iterable[str]) -> Iterable[tuple[int, ThetaSketch]]:
        """The sketches of some data files, each with the number of its column.

        Raises:
            InvalidTableError: one is damaged.
            MissingFileError: one is gone by now.
        """
        wanted: dict[str, list[tuple[int, int, int]]] = {}
        for path in paths:
            for _, places in self._found[path].values():
                for number, column in enumerate(self._columns):
                    location, offset, length = places[column.field_id]
                    wanted.setdefault(location, []).append((offset, length, number))
        for location, blobs in wanted.items():
            with self._table.storage.open(location) as stream:
                for offset, length, number in sorted(blobs):
                    stream.seek(offset)
                    data = stream.read(length)
                    if len(data) != length:
                        raise InvalidTableError(f"sketches in {location!r} are cut short", location=location)
                    yield number, sketch_from_bytes(data)

    def keep(self, run_id: str, found: Sequence[SplitSketches]) -> None:
        """Write the sketches of splits that a run has read."""
        if not found:
            return
        with PuffinWriter(self._table.storage, f"{self._directory}/{run_id}.puffin") as writer:
            for split in found:
                for column, sketch in zip(self._columns, split.sketches, strict=True):
                    properties: dict[str, Any] = {
                        _PATH: split.file_path,
                        _TYPE: column.type,
                        _PART: f"{split.start}+{split.length}",
                        _MAPPING: self._mapping,
                    }
                    writer.add(sketch.to_bytes(), BLOB_TYPE, fields=(column.field_id,), properties=properties)

    def remove_unused(self, live: Set[str]) -> int:
        """Remove the files of earlier runs none of whose data files is live; returns how many."""
        unused = [location for location, paths in self._paths.items() if not paths & live]
        outcomes = self._table.storage.delete_many(unused) if unused else []
        return sum(outcome.status is DeleteStatus.DELETED for outcome in outcomes)
