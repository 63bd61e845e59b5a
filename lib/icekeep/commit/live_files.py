"""Manifests of a base with some of their files removed, and manifests of new files: what changes of files are made of.

A commit that appends merges manifests as well, once too many have piled up: properties `commit.manifest-merge.enabled` (true),
`commit.manifest.min-count-to-merge` (100) and `commit.manifest.target-size-bytes` (8 MB). They are packed in the order of the
list, the oldest bins first, so that what was merged once stays as it is and the newest bin is the one that grows.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Protocol

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.file_sets import ChangedDeletes, FileSet, FilesToFind, StoredFileSet, digest_of_all, entry_digest
from icekeep.commit.filtering import (
    Checked,
    EntryReader,
    FilterManifests,
    Gatherer,
    LastingKey,
    LeftBehind,
    LiveFilesQuestion,
    RemovalCheck,
    Selection,
    identity,
    without_history,
)
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.summary import FILE_TOTALS, SummaryBuilder, check_file_total, live_counts
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import boolean_property, whole_number
from icekeep.spec.reach import PathDigest, own_path, own_path_digest, path_digest, sequence_number
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage

FileKey = tuple[str, int | None]

PathProof = Callable[[Storage, Sequence[DataFile]], Iterable[DataFile]]
"""Reads position delete files: those all of whose rows are of the path that both their bounds are.

It can be pickled; a file that cannot be read is not among them.
"""


class Manifests(msgspec.Struct, frozen=True):
    """The manifests of a branch's head that may list live files, by what they track, in order."""

    data: tuple[ManifestFile, ...]
    deletes: tuple[ManifestFile, ...]


class KeptManifests(msgspec.Struct, frozen=True):
    """Manifests without the files that were removed, and what is to be known of these.

    `paths` are the digests of their paths, `summary` has counted them; `changed` says whose deletes of positions are not
    those that were applied, where a check let them pass.
    """

    manifests: tuple[ManifestFile, ...]
    removed_count: int
    paths: frozenset[PathDigest]
    summary: SummaryBuilder
    changed: Mapping[str, ChangedDeletes] = {}


def live_among(manifests: Iterable[ManifestFile]) -> Manifests:
    """Those of some manifests that may list live files."""
    rows = [m for m in manifests if m.may_have_live_files]
    return Manifests(
        data=tuple(m for m in rows if m.content is ManifestContent.DATA),
        deletes=tuple(m for m in rows if m.content is ManifestContent.DELETES),
    )


def head_manifests(attempt: Attempt, branch: str) -> list[ManifestFile]:
    """All manifests of a branch, none for a table without a snapshot; those may be dropped that the list calls empty.

    What a new snapshot leaves out is gone, and nobody would look for it. So the counts of a list alone drop nothing: each
    manifest that it calls empty was read. Raises `InvalidTableError` where entries, list and summary count other files.
    """
    head = attempt.base.head(branch)
    if head is None:
        return []
    rows = attempt.reader.manifests(head)
    check_totals(rows, head)
    attempt.check_counts([row for row in rows if not row.may_have_live_files])
    return rows


def live_manifests(attempt: Attempt, branch: str) -> Manifests:
    """Those of `head_manifests` that list live files."""
    return live_among(head_manifests(attempt, branch))


def check_totals(rows: Sequence[ManifestFile], snapshot: Snapshot) -> bool:
    """Hold the counts of a snapshot's manifest list against its summary, and tell whether both have all of them.

    Raises:
        InvalidTableError: they differ: the list was cut short, or one of the two is wrong.
    """
    location, summary, are_all = snapshot.manifest_list, snapshot.summary or {}, True
    where = f"snapshot {snapshot.snapshot_id}" if location is None else f"manifest list {location!r}"
    for content, listed in live_counts(rows).items():
        name = FILE_TOTALS[content]
        if name in summary and listed is not None:
            check_file_total(where, content, listed, summary[name], snapshot.snapshot_id)
        else:
            are_all = False
    return are_all


def require_spec(base: TableMetadata, spec_id: int) -> None:
    """Raise `ConflictError` if a table has lost the partition spec that new files were written with."""
    if spec_id not in base.specs_by_id:
        raise ConflictError(f"partition spec {spec_id}, which the new files were written with, is no longer there")


def require_format_version(base: TableMetadata, version: int) -> None:
    """Raise `ConflictError` if a table has another format version than the one that a change was planned for."""
    if version != base.format_version:
        raise ConflictError(f"the table has format version {base.format_version} now, and was read with {version}")


def raise_refusals(refusals: Mapping[str, str]) -> None:
    """Raise a `ConflictError` where data files may not be replaced; it says why of the first of them, and names all."""
    if refusals:
        raise ConflictError(refusals[min(refusals)], data_files=frozenset(refusals))


def file_key(file: DataFile) -> FileKey:
    """What names a file in a snapshot; the vectors of one Puffin file differ in their offset."""
    return file.file_path, file.content_offset


def remove(
    manifests: Sequence[ManifestFile],
    attempt: Attempt,
    *,
    as_read: FileSet = (),
    selected: Selection | None = None,
    first: Set[str] = frozenset(),
    check: RemovalCheck | None = None,
) -> KeptManifests:
    """Mark live files as deleted in manifests of one content; those that hold none of them stay as they are.

    Args:
        as_read: files that must be live as they were read: same sequence number, spec, partition and first row id.
        selected: which other files to remove.
        first: paths of manifests to look into first; only saves work.
        check: what must hold of the files that go.

    Raises:
        ConflictError: a file of `as_read` is not live, or not as it was read, or the check says so.
        InvalidTableError: a file of `as_read` is live more than once.
    """
    files: FilesToFind | StoredFileSet
    strays = frozenset[str]()
    if isinstance(as_read, StoredFileSet):
        files, first = as_read, as_read.parts.keys()
        strays = frozenset(first - {manifest.manifest_path for manifest in manifests})
    else:
        files = FilesToFind({entry_digest(entry): entry.data_file.file_path for entry in as_read}, {})
    work = FilterManifests(
        base=without_history(attempt.base),
        writer=attempt.writer,
        files=files,
        remaining_count=len(as_read),
        strays=strays,
        selected=selected,
        check=check,
    )
    likely = [
        m for m in manifests if m.manifest_path in first or (selected is not None and selected.key(m) is not None)
    ]
    filtered, checked = attempt.filtered(likely, work)
    missing_count = len(as_read) - sum(one.named_count for one in filtered.values())
    # A set that was read from manifests all of which are here is nowhere else.
    if missing_count > 0 and (strays or not isinstance(as_read, StoredFileSet)):
        asked = {identity(m) for m in likely}
        others = [m for m in manifests if identity(m) not in asked]
        more, of_others = attempt.filtered(others, msgspec.structs.replace(work, remaining_count=missing_count))
        filtered, checked = {**filtered, **more}, Checked.joined([checked, of_others])
        missing_count -= sum(one.named_count for one in more.values())
    paths = frozenset[PathDigest]().union(*(one.paths for one in filtered.values()))
    if missing_count < 0:
        raise InvalidTableError("a file that is to be removed is live more than once in the table")
    if missing_count > 0:
        raise _no_longer_live(as_read, missing_count, paths, attempt)
    raise_refusals(checked.refusals)
    return KeptManifests(
        manifests=tuple(
            new for m in manifests for new in (filtered[identity(m)].manifests if identity(m) in filtered else (m,))
        ),
        removed_count=sum(one.files_count for one in filtered.values()),
        paths=paths,
        summary=SummaryBuilder(None, *(one.summary for one in filtered.values())),
        changed=checked.changed,
    )


def _no_longer_live(as_read: FileSet, missing_count: int, removed: Set[PathDigest], attempt: Attempt) -> ConflictError:
    kind = "data"
    if isinstance(as_read, StoredFileSet):
        storage = attempt.reader.storage
        paths = (path for one in as_read.parts for path in as_read.load(storage, [one]).paths.values())
    else:
        paths = (entry.data_file.file_path for entry in as_read)
        kind = "data" if as_read[0].data_file.content is FileContent.DATA else "delete"
    missing = frozenset(path for path in paths if path_digest(path) not in removed)
    return ConflictError(
        f"{kind} file {min(missing, default='')!r} ({missing_count} in all) is no longer live as it was read",
        data_files=missing if kind == "data" and len(missing) == missing_count else frozenset(),
    )


def remove_deletes(
    manifests: Manifests,
    kept: KeptManifests,
    attempt: Attempt,
    *,
    as_read: tuple[ManifestEntry, ...] = (),
    selected: Selection | None = None,
    added_number: int | None = None,
    proof: PathProof | None = None,
) -> KeptManifests:
    """The delete manifests that go with data manifests: without what is named, and what removed data files leave behind.

    Delete files that are for one removed data file go with it: those that name it, and those whose bounds of paths are both
    its path, once their rows have shown that they are of no other. Where manifests are opened for that, delete files go that
    are too old for every data file that is left or added: the table's least data sequence number is worked out, and proved by
    all its data files before any delete file goes by it.

    Args:
        manifests: of the base.
        kept: its data manifests, and the data files that were removed from them.
        as_read, selected: which delete files to remove beside these, as for `remove`.
        added_number: the data sequence number that added data files are given; `None`: the commit's own.
        proof: reads these rows; without it only names count.
    """
    if kept.removed_count:
        base = attempt.base
        all_too_old: frozenset[str] = frozenset()
        least = min_data_sequence_number(kept.manifests, base, added_number)
        if any((manifest.min_sequence_number or 0) <= least for manifest in manifests.deletes):
            least = min(least, proven_min_number(kept.manifests, base, attempt, added_number))
            seeming = [m for m in manifests.deletes if m.sequence_number is not None and m.sequence_number < least]
            ranges = attempt.gathered(seeming, _number_range(base))
            all_too_old = frozenset(
                m.manifest_path
                for m, numbers in zip(seeming, ranges, strict=True)
                if numbers is not None and numbers[1] < least
            )
        else:
            # By the list none is too old; if it is wrong, some that are stay.
            least = -1
        proven: frozenset[PathDigest] = frozenset()
        if proof is not None:
            work = ProvenPaths(without_history(base), _OwnPathsIn(kept.paths), proof)
            proven = frozenset().union(*attempt.gathered(manifests.deletes, work))
        selected = LeftBehind(kept.paths, least, selected, all_too_old, proven)
    return remove(manifests.deletes, attempt, as_read=as_read, selected=selected)


def min_data_sequence_number(manifests: Iterable[ManifestFile], base: TableMetadata, added_number: int | None) -> int:
    """The least data sequence number of live data files, those of this commit included, as the manifest list says.

    It may be below that, or wrong, so that no delete file goes by it alone. `added_number` is that of added data files, `None`
    for the commit's own.
    """
    numbers = [m.min_sequence_number or 0 for m in manifests if m.may_have_live_files]
    return min([*numbers, base.next_sequence_number if added_number is None else added_number])


def proven_min_number(
    manifests: Sequence[ManifestFile], base: TableMetadata, asks: Gatherer, added_number: int | None
) -> int:
    """The same by the entries of all data manifests, whatever the list says."""
    numbers = [one[0] for one in asks.gathered(manifests, _number_range(base)) if one is not None]
    return min([*numbers, base.next_sequence_number if added_number is None else added_number])


def _number_range(base: TableMetadata) -> LiveFilesQuestion[tuple[int, int] | None]:
    return LiveFilesQuestion.of(base, LastingKey("number range"), _range_of_numbers)


def _range_of_numbers(live: Iterator[ManifestEntry]) -> tuple[int, int] | None:
    """The least and the greatest data sequence number; `None` where a manifest has no live file."""
    numbers = {sequence_number(entry) for entry in live}
    return (min(numbers), max(numbers)) if numbers else None


class OwnPaths(Protocol):
    """Which delete files are to be read; can be pickled, and `key` is equal where the answers are."""

    @property
    def key(self) -> Hashable:
        """See above."""

    def asks(self, entry: ManifestEntry) -> bool:
        """Whether a live delete file goes if all its rows are of the path that its bounds are."""


class ProvenPaths(msgspec.Struct, frozen=True):
    """The delete files of a manifest, by their `own_path_digest`, that are asked for and whose rows show what bounds say."""

    base: TableMetadata
    asked: OwnPaths
    proof: PathProof

    @property
    def key(self) -> Hashable:
        return "proven", self.asked.key

    def run(self, manifest: ManifestFile, reader: EntryReader) -> frozenset[PathDigest]:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        files = [entry.data_file for entry in live if self.asked.asks(entry)]
        proven = self.proof(reader.storage, files) if files else ()
        return frozenset(map(own_path_digest, proven))


class _OwnPathsIn(msgspec.Struct, frozen=True):
    """The delete files of some data files, by the digests of their paths."""

    paths: Set[PathDigest]

    @property
    def key(self) -> Hashable:
        return "own paths in", digest_of_all(self.paths)

    def asks(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        own = own_path(file) if file.referenced_data_file is None else None
        return own is not None and path_digest(own) in self.paths


def add(
    files: Iterable[DataFile],
    attempt: Attempt,
    summary: SummaryBuilder,
    *,
    content: ManifestContent = ManifestContent.DATA,
    sequence_number: int | None = None,
    key: Hashable = "added",
) -> list[ManifestFile]:
    """Count new files, all of them data files or all delete files, and write manifests of them for each partition spec.

    Args:
        sequence_number: the data sequence number that they are given; `None`: the commit's own.
        key: what tells these files from others that an attempt of the commit may add.
    """
    return add_numbered(((file, sequence_number) for file in files), attempt, summary, content=content, key=key)


def add_numbered(
    files: Iterable[tuple[DataFile, int | None]],
    attempt: Attempt,
    summary: SummaryBuilder,
    *,
    content: ManifestContent,
    key: Hashable = "added",
) -> list[ManifestFile]:
    """The same for files each with its data sequence number."""
    by_spec: dict[int, list[ManifestEntry]] = defaultdict(list)
    for file, number in files:
        if (file.content is FileContent.DATA) is not (content is ManifestContent.DATA):
            raise IcekeepBug(
                f"{file.file_path!r} is added to manifests of {content.name.lower()}, and holds {file.content.name.lower()}"
            )
        summary.add(file)
        by_spec[file.spec_id].append(ManifestEntry(status=Status.ADDED, data_file=file, sequence_number=number))
    added: list[ManifestFile] = []
    for spec_id, entries in by_spec.items():
        require_spec(attempt.base, spec_id)
        added += attempt.write_manifests(key, entries, spec_id, content)
    return added


class MergePolicy(msgspec.Struct, frozen=True):
    """When manifests are merged: bins of about `target_bytes`; the newest bin only once it has `min_count` manifests."""

    min_count: int
    target_bytes: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> "MergePolicy | None":
        """What a table's properties say, `None` where they turn merging off; raises `PropertyError` where they are wrong."""
        properties = metadata.properties
        if not boolean_property(properties, "commit.manifest-merge.enabled", default=True):
            return None
        # Of fewer than two none is merged, whatever a number below that says.
        min_count = whole_number(properties, "commit.manifest.min-count-to-merge", 100, least=None)
        return cls(min_count, manifest_target_bytes(metadata))


def merged(manifests: Sequence[ManifestFile], attempt: Attempt) -> list[ManifestFile]:
    """The manifests of one kind of a new snapshot, newest first, with those merged that its table wants merged.

    Only manifests of one partition spec are merged (`filtering.MergeManifests`). Those that hold what we do not know, the
    values of a transform or fields of their own, stay as they are: merged they would lose it. So do those whose spec the table
    has lost.
    """
    policy = MergePolicy.of(attempt.base)
    if policy is None or not manifests:
        return list(manifests)
    by_spec: dict[tuple[int, ManifestContent], list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        by_spec[manifest.partition_spec_id, manifest.content].append(manifest)
    out: list[ManifestFile] = []
    for (spec_id, content), group in by_spec.items():
        spec = attempt.base.specs_by_id.get(spec_id)
        is_known = spec is not None and not spec.has_unknown_transform
        # Bins are filled from the oldest manifest on; bins and manifests stay in their order.
        bins = [*packed(reversed(group), (lambda m: m.manifest_length, policy.target_bytes))]
        for bin_ in (one[::-1] for one in reversed(bins)):
            is_newest = manifests[0] in bin_
            if not is_known or len(bin_) < 2 or (is_newest and len(bin_) < policy.min_count):
                out += bin_
                continue
            mergeable = [m for m in bin_ if not attempt.reader.header(m).unknown_field_ids]
            out += attempt.merged(mergeable, spec_id, content) if len(mergeable) > 1 else mergeable
            out += [m for m in bin_ if m not in mergeable]
    return out
