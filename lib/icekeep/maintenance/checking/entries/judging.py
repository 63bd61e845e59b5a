"""The faults among entries of one file, or of the vectors of one data file: by what they say, and what the store has."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from pyroaring import BitMap

from icekeep.errors import and_more
from icekeep.maintenance.checking.entries.listing import look_up
from icekeep.maintenance.checking.entries.meeting import Meeting, twice
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.file_classes import DATA_FILE_MISSING, DELETE_FILE_MISSING, FILE_SIZE_WRONG
from icekeep.maintenance.checking.manifest_classes import DOUBLED_FILE, TWO_VECTORS
from icekeep.maintenance.deletion.path_set import among
from icekeep.maintenance.deletion.territory import compared
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.types import StructType
from icekeep.storage.base import FileInfo, Storage
from icekeep.storage.location_keys import Keys

DATA_AND_DELETE = 306

MOVED_ON = "the table moved on while it was checked"
_MAX_TOLD = 1_000
"""So many entries of one file are told."""

Row = Mapping[str, Any]


class Judge(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is asked of entries; can be pickled.

    Attributes:
        manifest_paths: by number.
        partitions: the partition types of the specs.
        unseen: keys of files that are looked up in the store.
        gone: positions of snapshots that the table no longer has.
        whole: classes of which every fault is kept.
    """

    meeting: Meeting
    manifest_paths: tuple[str, ...]
    partitions: Mapping[int, StructType]
    storage: Storage
    unseen: Keys
    gone: BitMap
    whole: frozenset[int]

    def files(self, rows: Sequence[Row], tally: Tally) -> None:
        """Tell the faults of files, of each of which these are all entries (212, 301, 302, 303, 306)."""
        by_file = _grouped(rows, lambda row: compared(row["file_path"]))
        is_unseen = among(np.array([some[0]["key"] for some in by_file], np.int64), self.unseen)
        asked = [some[0]["file_path"] for some, ask in zip(by_file, is_unseen, strict=True) if ask]
        there = dict(zip(asked, look_up(asked, self.storage), strict=True))
        for some in by_file:
            for alike in _grouped(some, lambda row: (_is_data(row), _offset(row))):
                self._doubled(alike, tally)
            self._both(some, tally)
            if some[0]["file_path"] in there:
                self._stored(some, there[some[0]["file_path"]], tally)

    def targets(self, rows: Sequence[Row], tally: Tally) -> None:
        """Tell which data files have two vectors; these are all vectors of each of them (213)."""
        for some in _grouped(rows, lambda row: compared(row["referenced_data_file"])):
            vectors = _grouped(some, lambda row: (compared(row["file_path"]), _offset(row)))
            positions = twice(self._holding(alike) for alike in vectors)
            if not positions:
                continue
            path = some[0]["referenced_data_file"]
            told = [row for row in some if self._holding([row]) & positions]
            names = _several(f"{row['file_path']!r} at {row['content_offset']}" for row in told)
            detail = f"one snapshot has several deletion vectors for it, {names}, where it may have one"
            facts = {"referenced_data_file": path}
            tally.add(self._fault(TWO_VECTORS, path, detail, told, positions, **facts))

    def _doubled(self, rows: Sequence[Row], tally: Tally) -> None:
        positions = twice(self._holding([row]) for row in rows)
        if not positions:
            return
        told = [row for row in rows if self._holding([row]) & positions]
        names = _several(repr(self.manifest_paths[row["manifest"]]) for row in told)
        detail = f"one snapshot has it live several times, by entries of {names}, where a file is live once"
        if len({row["file_path"] for row in told}) > 1:
            detail += "; it is spelled in several ways"
        tally.add(self._fault(DOUBLED_FILE, told[0]["file_path"], detail, told, positions))

    def _both(self, rows: Sequence[Row], tally: Tally) -> None:
        data, deletes = ([row for row in rows if _is_data(row) is is_data] for is_data in (True, False))
        if not data or not deletes:
            return
        first, second = (self.manifest_paths[some[0]["manifest"]] for some in (data, deletes))
        detail = f"it is a data file in manifest {first!r} and a delete file in manifest {second!r}"
        positions = self._holding(data) & self._holding(deletes) or self._holding(rows)
        tally.add(self._fault(DATA_AND_DELETE, rows[0]["file_path"], detail, rows, positions))

    def _stored(self, rows: Sequence[Row], info: FileInfo | str | None, tally: Tally) -> None:
        path = rows[0]["file_path"]
        if isinstance(info, str):
            tally.gap(f"file {path!r}", info)
            return
        wrong = [row for row in rows if info is None or row["file_size_in_bytes"] != info.size_bytes]
        positions = self._holding(wrong) - self.gone
        if not positions:
            if wrong:
                tally.gap(f"file {path!r}", MOVED_ON)
        elif info is None:
            for is_data, number in ((True, DATA_FILE_MISSING), (False, DELETE_FILE_MISSING)):
                told = [row for row in wrong if _is_data(row) is is_data]
                if positions := self._holding(told) - self.gone:
                    tally.add(self._fault(number, path, "there is no such file", told, positions))
        elif any(row["key_metadata"] is not None for row in wrong):
            tally.gap(f"the size of file {path!r}", "it is encrypted")
        else:
            found, recorded = info.size_bytes, wrong[0]["file_size_in_bytes"]
            detail = f"it has {found} bytes where its entry says {recorded}"
            tally.add(self._fault(FILE_SIZE_WRONG, path, detail, wrong, positions, recorded=recorded, found=found))

    def _holding(self, rows: Iterable[Row]) -> BitMap:
        return self.meeting.holding(row["manifest"] for row in rows)

    def _fault(
        self, number: int, where: str, detail: str, rows: Sequence[Row], positions: BitMap, **facts: Any
    ) -> Fault:
        """A fault of some entries; facts tell of the first and of each."""
        entries = [self._told(row) for row in rows[:_MAX_TOLD]]
        return Fault(
            number=number,
            where=where,
            detail=detail,
            snapshot_id=self.meeting.oldest(positions),
            facts={
                **entries[0],
                "entries": entries,
                "entries_count": len(rows),
                "snapshots_count": len(positions),
                **facts,
            },
        )

    @cached_property
    def _codecs(self) -> PartitionCodecs:
        return PartitionCodecs(self.partitions)

    def _partition(self, row: Row) -> list[str | None]:
        """Its values as texts."""
        values = self._codecs.decode(row["spec_id"], row["partition"])
        return [None if value is None else str(value) for value in values]

    def _told(self, row: Row) -> dict[str, Any]:
        return {
            "manifest": self.manifest_paths[row["manifest"]],
            "file_path": row["file_path"],
            "content": row["content"],
            "content_offset": _offset(row),
            "content_size_in_bytes": row["content_size_in_bytes"],
            "referenced_data_file": row["referenced_data_file"],
            "spec_id": row["spec_id"],
            "partition": self._partition(row),
            "sequence_number": row["sequence_number"],
            "added_snapshot_id": row["snapshot_id"],
            "record_count": row["record_count"],
            "file_size_in_bytes": row["file_size_in_bytes"],
        }


def _grouped(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Rows of one key together, in an order that does not depend on how they came."""
    groups: defaultdict[Hashable, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["manifest"], row["file_path"], _offset(row) or 0)):
        groups[key(row)].append(row)
    return [*groups.values()]


def _is_data(row: Row) -> bool:
    return bool(row["content"] == FileContent.DATA)


def _offset(row: Row) -> int | None:
    """What tells the vectors of one Puffin file apart."""
    is_vector = row["content"] == FileContent.POSITION_DELETES and row["file_format"].lower() == "puffin"
    return row["content_offset"] if is_vector else None


def _several(names: Iterable[str]) -> str:
    """Some names in a sentence."""
    known = [*dict.fromkeys(names)]
    return f"{' and '.join(known[:2])}{and_more(known, 2)}"
