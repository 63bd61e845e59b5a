"""Manifests of a base with some of their files removed, and manifests of new files: what changes of files are made of."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.selection import Selection
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug
from icekeep.spec.applicability import is_newer, partition_key
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata

FileKey = tuple[str, int | None]


class Manifests(msgspec.Struct, frozen=True):
    """The manifests of a branch's head that may list live files, by what they track, in order."""

    data: tuple[ManifestFile, ...]
    deletes: tuple[ManifestFile, ...]


class Kept(msgspec.Struct, frozen=True):
    """Manifests without the files that were removed, and the entries of these as the base holds them."""

    manifests: tuple[ManifestFile, ...]
    removed: tuple[ManifestEntry, ...]


def live_manifests(base: TableMetadata, branch: str, attempt: Attempt) -> Manifests:
    """The manifests of a branch; none for a table without a snapshot."""
    head = base.head(branch)
    rows = [] if head is None else [m for m in attempt.reader.manifests(head) if m.may_have_live_files]
    return Manifests(
        data=tuple(m for m in rows if m.content is ManifestContent.DATA),
        deletes=tuple(m for m in rows if m.content is ManifestContent.DELETES),
    )


def live_entries(manifests: Iterable[ManifestFile], base: TableMetadata, attempt: Attempt) -> Iterator[ManifestEntry]:
    """The live entries of manifests, one after the other."""
    for manifest in manifests:
        yield from (entry for entry in attempt.reader.entries(manifest, base) if entry.is_live)


def identity(manifest: ManifestFile) -> tuple[str, int | None]:
    """What a manifest's entries are read as: after an upgrade to version 3 a commit may give row ids to one that is kept."""
    return manifest.manifest_path, manifest.first_row_id


def file_key(file: DataFile) -> FileKey:
    """What names a file in a snapshot; the vectors of one Puffin file differ in their offset."""
    return file.file_path, file.content_offset


def remove(
    manifests: Sequence[ManifestFile],
    base: TableMetadata,
    attempt: Attempt,
    *,
    as_read: Iterable[ManifestEntry] = (),
    selected: Selection | None = None,
    first: Set[str] = frozenset(),
) -> Kept:
    """Mark live files as deleted in manifests of one content; those that hold none of them stay as they are.

    Args:
        as_read: entries that must be live as they were read: same sequence number, spec, partition and first row id.
        selected: which other files to remove.
        first: paths of manifests to look into first; only saves work.

    Raises:
        ConflictError: a file of `as_read` is not live, or not as it was read.
    """
    missing = {file_key(entry.data_file): entry for entry in as_read}
    replaced: dict[str, tuple[ManifestFile, ...]] = {}
    removed: list[ManifestEntry] = []
    for manifest in sorted(manifests, key=lambda m: m.manifest_path not in first):
        asked = selected is not None and selected.manifest(manifest)
        if not missing and not asked:
            continue
        # A file is live once in a snapshot, so each manifest takes its own away from what is still to be found.
        found: dict[FileKey, ManifestEntry] = {}
        for entry in attempt.reader.entries(manifest, base):
            if not entry.is_live:
                continue
            read = missing.get(file_key(entry.data_file))
            if (read is not None and _same(entry, read)) or (asked and selected is not None and selected.entry(entry)):
                found[file_key(entry.data_file)] = entry
        if found:
            replaced[manifest.manifest_path] = attempt.write_manifests(
                (*identity(manifest), frozenset(found)),
                _marked(attempt.reader.entries(manifest, base), found.keys(), attempt.snapshot_id),
                manifest.partition_spec_id,
                manifest.content,
            )
            removed += found.values()
            for key in found:
                missing.pop(key, None)
    if missing:
        entry = next(iter(missing.values()))
        what = "data" if entry.data_file.content is FileContent.DATA else "delete"
        raise ConflictError(
            f"{what} file {entry.data_file.file_path!r} ({len(missing)} in all) is no longer live as it was read; plan again"
        )
    kept = (m for manifest in manifests for m in replaced.get(manifest.manifest_path, (manifest,)))
    return Kept(tuple(kept), tuple(removed))


def remove_deletes(
    manifests: Manifests,
    kept: Kept,
    base: TableMetadata,
    attempt: Attempt,
    *,
    as_read: Iterable[ManifestEntry] = (),
    selected: Selection | None = None,
    added_number: int | None = None,
) -> Kept:
    """The delete manifests that go with data manifests: without what is named, and what removed data files leave behind.

    Delete files that are for one removed data file go with it. Where manifests are opened for that, delete files go that
    are too old for every data file that is left or added; the table's least data sequence number is worked out anew.

    Args:
        manifests: of the base.
        kept: its data manifests, and the data files that were removed from them.
        as_read: delete files to remove, as for `remove`.
        selected: which other delete files to remove.
        added_number: the data sequence number that added data files are given; null: the commit's own.

    Raises:
        ConflictError: a file of `as_read` is not live, or not as it was read.
    """
    as_read = tuple(as_read)
    if not kept.removed:
        return remove(manifests.deletes, base, attempt, as_read=as_read, selected=selected)
    gone = {entry.data_file.file_path for entry in kept.removed}
    least = _least_sequence_number(kept.manifests, base, added_number)

    def is_left_behind(entry: ManifestEntry) -> bool:
        if entry.data_file.referenced_data_file in gone or not is_newer(entry, least):
            return True
        return selected is not None and selected.entry(entry)

    return remove(manifests.deletes, base, attempt, as_read=as_read, selected=Selection(lambda _: True, is_left_behind))


def add(
    files: Iterable[DataFile],
    base: TableMetadata,
    attempt: Attempt,
    summary: SummaryBuilder,
    *,
    content: ManifestContent = ManifestContent.DATA,
    sequence_number: int | None = None,
) -> list[ManifestFile]:
    """Count new files, all of them data files or all delete files, and write manifests of them for each partition spec.

    Raises:
        ConflictError: a partition spec that they were written with is no longer there.
    """
    by_spec: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if (file.content is FileContent.DATA) is not (content is ManifestContent.DATA):
            raise IcekeepBug(f"{file.file_path!r} is added as what it is not: it holds {file.content.name.lower()}")
        summary.add(file)
        by_spec[file.spec_id].append(file)
    added: list[ManifestFile] = []
    for spec_id, of_spec in by_spec.items():
        if spec_id not in base.specs_by_id:
            raise ConflictError(f"partition spec {spec_id}, which the new files were written with, is no longer there")
        entries = (ManifestEntry(status=Status.ADDED, data_file=f, sequence_number=sequence_number) for f in of_spec)
        added += attempt.write_manifests("added", entries, spec_id, content)
    return added


def _least_sequence_number(manifests: Iterable[ManifestFile], base: TableMetadata, added_number: int | None) -> int:
    """The least data sequence number of live data files, those of this commit included (its own where none is said)."""
    numbers = [m.min_sequence_number or 0 for m in manifests if m.may_have_live_files]
    return min([*numbers, base.next_sequence_number if added_number is None else added_number])


def _same(entry: ManifestEntry, read: ManifestEntry) -> bool:
    return (
        entry.sequence_number == read.sequence_number
        and partition_key(entry.data_file) == partition_key(read.data_file)
        and entry.data_file.first_row_id == read.data_file.first_row_id
    )


def _marked(entries: Iterator[ManifestEntry], removed: Set[FileKey], snapshot_id: int) -> Iterator[ManifestEntry]:
    """Removed files as deleted by this snapshot, the other live ones as existing; what was deleted before is dropped."""
    for entry in entries:
        if not entry.is_live:
            continue
        if file_key(entry.data_file) in removed:
            yield msgspec.structs.replace(entry, status=Status.DELETED, snapshot_id=snapshot_id)
        else:
            yield msgspec.structs.replace(entry, status=Status.EXISTING)
