"""A manifest list that is gone, put together from what it must have named; only where the table's own words prove that.

What is live after a commit is what was live before, less what the commit's manifests say is gone, and what they add. A choice
among the manifests that lie beside the list fits if its numbers are those of the snapshot's summary, all of them.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from icekeep.catalog.base import Table
from icekeep.commit.live_files import FileKey
from icekeep.commit.manifest_writer import manifest_compression
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import TOTALS, totals_of
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.maintenance.repairing.lists.list_parts import Parent, Written, key_of, parent_of, written_by
from icekeep.maintenance.repairing.plan import NewList
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.spec.manifests.read import lacks_counts, read_manifest_list
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry, ManifestFile, assign_row_ids
from icekeep.spec.manifests.write import write_manifest_list
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.locations import checksum_location
from icekeep.storage.many import head_many

_NEEDED = ("total-data-files", "total-delete-files", "total-records")
_SIZE = "total-files-size"
_CREATED = "manifests-created"
_MAX_CHOSEN_FROM = 12
"""So many manifests are tried in all ways."""


class Rebuilt(Struct, frozen=True):
    """A list that can be written, and how many manifests it names that are the commit's own, and that are older."""

    new: NewList
    own_count: int
    carried_count: int


def rebuilt_list(table: Table, snapshot: Snapshot, reader: ManifestReader) -> Rebuilt:
    """Put the manifest list of a snapshot together.

    Raises:
        CannotMendError: nothing proves what it held.
    """
    _refuse_untold(snapshot)
    _refuse_checksum(table, str(snapshot.manifest_list))
    parent = parent_of(table, snapshot, reader)
    _refuse_wrong_totals(table, snapshot, parent)
    of_commit = written_by(table, snapshot, parent)
    proof = _Proof(snapshot, parent, of_commit.written)
    chosen = proof.chosen()
    if of_commit.has_gaps and of_commit.named_count > len(chosen):
        raise CannotMendError("of the manifests that its commit left some are no part of it, and others are gone")
    _refuse_missing_files(table, chosen)
    _refuse_wrong_sum(snapshot, parent, chosen, proof.carried(chosen))
    rows = _rows(table, reader, [*(one.row for one in chosen), *proof.carried(chosen)], snapshot)
    data = _encoded(table, snapshot, rows)
    return Rebuilt(NewList(location=str(snapshot.manifest_list), data=data), len(chosen), len(rows) - len(chosen))


def _refuse_untold(snapshot: Snapshot) -> None:
    summary = snapshot.summary or {}
    for name in _NEEDED:
        if not summary.get(name, "").isdecimal():
            raise CannotMendError(f"the summary of snapshot {snapshot.snapshot_id} does not say {name}")


def _refuse_checksum(table: Table, location: str) -> None:
    checksum = checksum_location(location)
    if table.storage.head(checksum) is not None:
        raise CannotMendError(
            f"{checksum!r} is the checksum of the lost list, by which Hadoop would refuse another one"
        )


def _refuse_wrong_totals(table: Table, snapshot: Snapshot, parent: Parent) -> None:
    before = table.metadata.snapshots_by_id.get(snapshot.parent_snapshot_id or 0)
    summary = {} if before is None else before.summary or {}
    files = [entry.data_file for entry in parent.live.values()]
    for name in TOTALS:
        if name in summary and summary[name] not in {str(way[name]) for way in _ways(files)}:
            raise CannotMendError(
                f"the summary of snapshot {snapshot.parent_snapshot_id}, on which it was built, has a wrong {name}"
            )


def _refuse_wrong_sum(
    snapshot: Snapshot, parent: Parent, chosen: Iterable[Written], carried: Iterable[ManifestFile]
) -> None:
    """Hold the list itself against the summary, whatever was said of the changes."""
    old = [entry.data_file for row in carried for entry in parent.entries[row.manifest_path]]
    kept = [parent.live[key].data_file for one in chosen for key in one.kept]
    added = [entry.data_file for one in chosen for entry in one.added]
    totals = totals_of([*old, *kept, *added])
    for name in _NEEDED:
        if str(totals[name]) != (snapshot.summary or {})[name]:
            raise CannotMendError(f"the list would come to {name} {totals[name]}, where its summary says otherwise")


def _refuse_missing_files(table: Table, chosen: Iterable[Written]) -> None:
    """The files of an attempt that failed may be gone."""
    files = [entry.data_file for one in chosen for entry in one.added]
    found = head_many([file.file_path for file in files], table.storage)
    for file, info in zip(files, found, strict=True):
        if info is None or info.size_bytes != file.file_size_in_bytes:
            raise CannotMendError(f"file {file.file_path!r}, which it would add, is not there, or has another size")


class _Fit(Struct, frozen=True):
    """What is live by a choice that fits: the same for choices by which readers have the same rows and row ids."""

    outcome: Hashable
    knows_ids: bool


class _Proof:
    """Holds choices of the commit's manifests against the summary."""

    def __init__(self, snapshot: Snapshot, parent: Parent, written: Sequence[Written]) -> None:
        self._snapshot, self._parent, self._written = snapshot, parent, written
        self._summary: Mapping[str, str] = snapshot.summary or {}
        self._before = _ways([entry.data_file for entry in parent.live.values()])
        self._sums = {
            one.row.manifest_path: (
                _ways([entry.data_file for entry in one.added]),
                _ways([parent.live[key].data_file for key in one.gone]),
            )
            for one in written
        }

    def chosen(self) -> Sequence[Written]:
        """The manifests that the list named, or others by which exactly the same is live; raises `CannotMendError`."""
        found: dict[_Fit, Sequence[Written]] = {}
        for choice in self._choices():
            fit = self._fit(choice)
            if fit is not None:
                found.setdefault(fit, choice)
        if not found:
            raise CannotMendError(
                f"no choice of the {len(self._written)} manifests that its commit left comes to what its summary says"
            )
        if len(found) > 1:
            raise CannotMendError(
                f"{len(found)} choices of manifests come to what its summary says, and differ in files"
            )
        [(fit, choice)] = found.items()
        if not fit.knows_ids:
            raise CannotMendError("it numbered the rows of several manifests, and the order of these is not known")
        return choice

    def carried(self, chosen: Iterable[Written]) -> list[ManifestFile]:
        """The rows of the parent's manifests whose live files no chosen manifest tells of."""
        told = {self._parent.manifest_of[key] for one in chosen for key in (*one.kept, *one.gone)}
        return [
            row
            for row in self._parent.rows
            if row.manifest_path not in told and self._parent.entries[row.manifest_path]
        ]

    def _choices(self) -> Iterator[Sequence[Written]]:
        """All of them; and every other choice, but where that could only come to the same."""
        every = tuple(self._written)
        yield every
        if self._fit(every) is not None and not any(one.keeps_unnumbered for one in every):
            # Without one that adds or removes files the counts are others; without one that only carries, its files are
            # carried by the parent's manifests, as they are.
            return
        if len(every) > _MAX_CHOSEN_FROM:
            raise CannotMendError(
                f"its commit left {len(every)} manifests, not all of which fit, and {_MAX_CHOSEN_FROM} are tried at most"
            )
        for size in reversed(range(len(every))):
            yield from combinations(every, size)

    def _fit(self, chosen: Sequence[Written]) -> _Fit | None:
        if not self._counts_fit(chosen):
            return None
        gone = [key for one in chosen for key in one.gone]
        added = [entry for one in chosen for entry in one.added]
        return self._numbered(chosen, gone, added) if self._files_fit(chosen, gone, added) else None

    def _counts_fit(self, chosen: Sequence[Written]) -> bool:
        created = self._summary.get(_CREATED)
        if created not in (None, str(len(chosen))) and not self._is_replaced_by_parent(chosen):
            return False
        # Where nothing is told of files, their bytes have to be what they were.
        if not chosen and self._parent.live and _SIZE not in self._summary:
            return False
        sums = [self._sums[one.row.manifest_path] for one in chosen]
        new, old = ([_summed(some[which][way] for some in sums) for way in range(2)] for which in range(2))
        before = self._before
        for total, (adding, removing) in TOTALS.items():
            is_size = total == _SIZE
            after = [str(b[total] + n[total] - o[total]) for b, n, o in zip(before, new, old, strict=True)]
            if total in self._summary and self._summary[total] not in after:
                return False
            for key, ways in ((adding, new), (removing, old)):
                if is_size and key not in self._summary:
                    continue
                if self._summary.get(key, "0") not in {str(way[total]) for way in ways}:
                    return False
        return True

    def _is_replaced_by_parent(self, chosen: Sequence[Written]) -> bool:
        """Whether the parent's manifests stand for others, of names that do not say the commit, which hold the same files."""
        return not chosen and self._snapshot.operation == "replace"

    def _files_fit(self, chosen: Sequence[Written], gone: Iterable[FileKey], added: Iterable[ManifestEntry]) -> bool:
        """Each file is told of once, and of a manifest of the parent all files or none."""
        told = [key for one in chosen for key in (*one.kept, *one.gone)]
        new = [*map(key_of, added)]
        if len({*told}) < len(told) or len({*new}) < len(new):
            return False
        if {*new} & (self._parent.live.keys() - {*gone}):
            return False
        times = Counter(self._parent.manifest_of[key] for key in told)
        return all(len(self._parent.entries[path]) == count for path, count in times.items())

    def _numbered(
        self, chosen: Sequence[Written], gone: Iterable[FileKey], added: Iterable[ManifestEntry]
    ) -> _Fit | None:
        """With the rows that it numbered (spec, "First Row ID Assignment"), which it says how many they are."""
        files = (frozenset(gone), frozenset(map(repr, added)))
        if self._snapshot.first_row_id is None:
            return _Fit((files, ()), knows_ids=True)
        carried = self.carried(chosen)
        rows = [
            row
            for row in (*(one.row for one in chosen), *carried)
            if row.content is ManifestContent.DATA and row.first_row_id is None
        ]
        room = {row.manifest_path: (row.added_rows_count or 0) + (row.existing_rows_count or 0) for row in rows}
        if sum(room.values()) != self._snapshot.added_rows and not (self._is_replaced_by_parent(chosen) and not room):
            return None
        inheriting = [(path, ids) for path, ids in self._inheriting(chosen, carried) if path in room and ids]
        knows_ids = not inheriting or sum(count > 0 for count in room.values()) == 1
        return _Fit((files, tuple(ids for _, ids in inheriting)), knows_ids=knows_ids)

    def _inheriting(
        self, chosen: Iterable[Written], carried: Iterable[ManifestFile]
    ) -> Iterator[tuple[str, tuple[FileKey, ...]]]:
        """By manifest the files, in order, that inherit a row id."""
        for one in chosen:
            yield one.row.manifest_path, one.inheriting
        for row in carried:
            entries = self._parent.entries[row.manifest_path]
            yield row.manifest_path, tuple(key_of(e) for e in entries if e.data_file.first_row_id is None)


def _summed(totals: Iterable[Mapping[str, int]]) -> Counter[str]:
    found = Counter[str]()
    for one in totals:
        found.update(one)
    return found


def _ways(files: Sequence[DataFile]) -> tuple[Counter[str], Counter[str]]:
    """The totals of files; engines count of a vector its file, or its own bytes."""
    totals = totals_of(files)
    return totals, Counter({**totals, _SIZE: sum(file.own_bytes for file in files)})


def _rows(
    table: Table, reader: ManifestReader, rows: Sequence[ManifestFile], snapshot: Snapshot
) -> Sequence[ManifestFile]:
    """With counts where the table's version needs them, and numbered."""
    metadata = table.metadata
    try:
        if metadata.format_version > 1:
            rows = [reader.completed(row, metadata) if lacks_counts(row) else row for row in rows]
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
    return rows if snapshot.first_row_id is None else assign_row_ids(rows, snapshot.first_row_id)[0]


def _encoded(table: Table, snapshot: Snapshot, rows: Sequence[ManifestFile]) -> bytes:
    metadata, location = table.metadata, str(snapshot.manifest_list)
    codec, level = manifest_compression(metadata.properties)
    data = write_manifest_list(rows, snapshot, format_version=metadata.format_version, codec=codec, level=level)
    if read_manifest_list(data, location) != [*rows]:
        raise CannotMendError("what would be written is not what is read back")
    return data
