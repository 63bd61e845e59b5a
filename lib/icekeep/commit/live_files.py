"""Manifests of a base with some of their files removed, and manifests of new files: what changes of files are made of.

Merge the manifests of a table when too many have piled up, as part of a commit that adds one more.

Properties `commit.manifest-merge.enabled` (true), `commit.manifest.min-count-to-merge` (100) and
`commit.manifest.target-size-bytes` (8 MB). Manifests are packed in the order of the list, the oldest bins first, so that
what was merged once stays as it is and the newest bin is the one that grows.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Protocol

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.file_sets import ChangedDeletes, FileSet, StoredFileSet, Wanted, count_of, digest_of_all, wanted_of
from icekeep.commit.filtering import (
    Checked,
    EntryReader,
    Filtered,
    FilterManifests,
    Gatherer,
    Identity,
    LastingKey,
    LeftBehind,
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


def live_manifests(base: TableMetadata, branch: str, attempt: Attempt) -> Manifests:
    """The manifests of a branch that list live files; none for a table without a snapshot; raises as `head_manifests`."""
    return live_among(head_manifests(base, branch, attempt))


def head_manifests(base: TableMetadata, branch: str, attempt: Attempt) -> list[ManifestFile]:
    """All manifests of a branch, of which those may be dropped that the list calls empty: each of these was read.

    What a new snapshot leaves out is gone, and nobody would look for it, so the counts of a list alone drop nothing.

    Raises:
        InvalidTableError: a manifest has live files that the list does not count, or the summary of the snapshot counts other
            files than the list.
    """
    head = base.head(branch)
    if head is None:
        return []
    rows = attempt.reader.manifests(head)
    check_totals(rows, head)
    attempt.check_counts([row for row in rows if not row.may_have_live_files])
    return rows


def check_totals(rows: Sequence[ManifestFile], snapshot: Snapshot) -> bool:
    """Hold the counts of a snapshot's manifest list against its summary, and tell whether both have all of them.

    Raises:
        InvalidTableError: they differ: the list was cut short, or one of the two is wrong.
    """
    said, summary, are_all = snapshot.manifest_list, snapshot.summary or {}, True
    where = f"snapshot {snapshot.snapshot_id}" if said is None else f"manifest list {said!r}"
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


def live_among(manifests: Iterable[ManifestFile]) -> Manifests:
    """Those of some manifests that may list live files."""
    rows = [m for m in manifests if m.may_have_live_files]
    return Manifests(
        data=tuple(m for m in rows if m.content is ManifestContent.DATA),
        deletes=tuple(m for m in rows if m.content is ManifestContent.DELETES),
    )


def file_key(file: DataFile) -> FileKey:
    """What names a file in a snapshot; the vectors of one Puffin file differ in their offset."""
    return file.file_path, file.content_offset


def remove(
    manifests: Sequence[ManifestFile],
    base: TableMetadata,
    attempt: Attempt,
    *,
    as_read: FileSet = (),
    selected: Selection | None = None,
    first: Set[str] = frozenset(),
    check: RemovalCheck | None = None,
) -> KeptManifests:
    """Mark live files as deleted in manifests of one content; those that hold none of them stay as they are.

    What was found in a manifest is not looked for again by later attempts.

    Args:
        as_read: files that must be live as they were read: same sequence number, spec, partition and first row id.
        selected: which other files to remove.
        first: paths of manifests to look into first; only saves work.
        check: what must hold of the files that go.

    Raises:
        ConflictError: a file of `as_read` is not live, or not as it was read, or the check says so.
        InvalidTableError: a file of `as_read` is live more than once.
    """
    total = count_of(as_read)
    files: Wanted | StoredFileSet
    if isinstance(as_read, StoredFileSet):
        files, recorded = as_read, frozenset(as_read.parts)
        strays = recorded - {manifest.manifest_path for manifest in manifests}
        may_be_elsewhere = bool(strays)
    else:
        files, recorded, strays, may_be_elsewhere = wanted_of(as_read), frozenset(first), frozenset[str](), True
    work = FilterManifests(
        base=without_history(base),
        writer=attempt.writer,
        files=files,
        remaining_count=total,
        strays=strays,
        selected=selected,
        check=check,
    )
    likely = [m for m in manifests if m.manifest_path in recorded or (selected is not None and selected.manifest(m))]
    found, checked = attempt.filtered(likely, work)
    missing_count = total - _wanted_count(found)
    if missing_count > 0 and may_be_elsewhere:
        asked = {identity(m) for m in likely}
        others = [m for m in manifests if identity(m) not in asked]
        more, of_others = attempt.filtered(others, msgspec.structs.replace(work, remaining_count=missing_count))
        found, checked = {**found, **more}, Checked.joined([checked, of_others])
        missing_count = total - _wanted_count(found)
    kept = _kept(manifests, found)
    _check_found(as_read, missing_count, kept, attempt)
    raise_refusals(checked.refusals)
    return msgspec.structs.replace(kept, changed=checked.changed)


def raise_refusals(refusals: Mapping[str, str]) -> None:
    """Raise a `ConflictError` where data files may not be replaced; it says why of the first of them, and names all."""
    if refusals:
        raise ConflictError(refusals[min(refusals)], data_files=frozenset(refusals))


def remove_deletes(  # noqa: PLR0913 - what goes, what is left, and who looks
    manifests: Manifests,
    kept: KeptManifests,
    base: TableMetadata,
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
        as_read: delete files to remove, as for `remove`.
        selected: which other delete files to remove.
        added_number: the data sequence number that added data files are given; `None`: the commit's own.
        proof: who reads these rows; without it only names count.

    Raises:
        ConflictError: a file of `as_read` is not live, or not as it was read.
    """
    if kept.removed_count:
        all_too_old: frozenset[str] = frozenset()
        least = min_data_sequence_number(kept.manifests, base, added_number)
        if any((manifest.min_sequence_number or 0) <= least for manifest in manifests.deletes):
            least = min(least, proven_min_number(kept.manifests, base, attempt, added_number))
            seeming = [m for m in manifests.deletes if m.sequence_number is not None and m.sequence_number < least]
            found = attempt.gathered(seeming, _NumberRange(without_history(base)))
            all_too_old = frozenset(
                m.manifest_path
                for m, numbers in zip(seeming, found, strict=True)
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
    return remove(manifests.deletes, base, attempt, as_read=as_read, selected=selected)


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
    found = asks.gathered(manifests, _NumberRange(without_history(base)))
    numbers = [numbers[0] for numbers in found if numbers is not None]
    return min([*numbers, base.next_sequence_number if added_number is None else added_number])


def add(
    files: Iterable[DataFile],
    base: TableMetadata,
    attempt: Attempt,
    summary: SummaryBuilder,
    *,
    content: ManifestContent = ManifestContent.DATA,
    sequence_number: int | None = None,
    key: Hashable = "added",
) -> list[ManifestFile]:
    """Count new files, all of them data files or all delete files, and write manifests of them for each partition spec.

    Args:
        key: what tells these files from others that an attempt of the commit may add.

    Raises:
        ConflictError: a partition spec that they were written with is no longer there.
    """
    by_spec: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if (file.content is FileContent.DATA) is not (content is ManifestContent.DATA):
            raise IcekeepBug(
                f"{file.file_path!r} is added to manifests of {content.name.lower()}, and holds {file.content.name.lower()}"
            )
        summary.add(file)
        by_spec[file.spec_id].append(file)
    added: list[ManifestFile] = []
    for spec_id, of_spec in by_spec.items():
        require_spec(base, spec_id)
        entries = (ManifestEntry(status=Status.ADDED, data_file=f, sequence_number=sequence_number) for f in of_spec)
        added += attempt.write_manifests(key, entries, spec_id, content)
    return added


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
    """Those of some data files, by the digests of their paths."""

    paths: Set[PathDigest]

    @property
    def key(self) -> Hashable:
        return "own paths in", digest_of_all(self.paths)

    def asks(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        own = own_path(file) if file.referenced_data_file is None else None
        return own is not None and path_digest(own) in self.paths


class _NumberRange(msgspec.Struct, frozen=True):
    """The least and the greatest data sequence number of the live files of a manifest; `None` where it has none."""

    base: TableMetadata

    @property
    def key(self) -> Hashable:
        return LastingKey("number range")

    def run(self, manifest: ManifestFile, reader: EntryReader) -> tuple[int, int] | None:
        numbers = {sequence_number(entry) for entry in reader.entries(manifest, self.base) if entry.is_live}
        return (min(numbers), max(numbers)) if numbers else None


def _kept(manifests: Sequence[ManifestFile], found: Mapping[Identity, Filtered]) -> KeptManifests:
    summary = SummaryBuilder()
    for filtered in found.values():
        summary.absorb(filtered.summary)
    return KeptManifests(
        manifests=tuple(
            new for m in manifests for new in (found[identity(m)].manifests if identity(m) in found else (m,))
        ),
        removed_count=sum(filtered.files_count for filtered in found.values()),
        paths=frozenset().union(*(filtered.paths for filtered in found.values())),
        summary=summary,
    )


def _wanted_count(found: Mapping[Identity, Filtered]) -> int:
    return sum(filtered.wanted_count for filtered in found.values())


def _check_found(as_read: FileSet, missing_count: int, kept: KeptManifests, attempt: Attempt) -> None:
    """Raise where not each named file was found, or one more than once."""
    if missing_count == 0:
        return
    if missing_count < 0:
        raise InvalidTableError("a file that is to be removed is live more than once in the table")
    missing = frozenset(path for path in _paths(as_read, attempt) if path_digest(path) not in kept.paths)
    what = "delete" if isinstance(as_read, tuple) and as_read[0].data_file.content is not FileContent.DATA else "data"
    raise ConflictError(
        f"{what} file {min(missing, default='')!r} ({missing_count} in all) is no longer live as it was read",
        data_files=missing if what == "data" and len(missing) == missing_count else frozenset(),
    )


def _paths(as_read: FileSet, attempt: Attempt) -> Iterator[str]:
    if isinstance(as_read, StoredFileSet):
        for manifest_path in as_read.parts:
            yield from as_read.load(attempt.reader.storage, [manifest_path]).paths.values()
    else:
        yield from (entry.data_file.file_path for entry in as_read)


ENABLED = "commit.manifest-merge.enabled"
MIN_COUNT = "commit.manifest.min-count-to-merge"
_MIN_COUNT_DEFAULT = 100


class MergePolicy(msgspec.Struct, frozen=True):
    """When manifests are merged: bins of about `target_bytes`; the newest bin only once it has `min_count` manifests."""

    min_count: int
    target_bytes: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> "MergePolicy | None":
        """What a table's properties say, `None` where they turn merging off; raises `PropertyError` where they are wrong."""
        properties = metadata.properties
        if not boolean_property(properties, ENABLED, default=True):
            return None
        # Of fewer than two none is merged, whatever a number below that says.
        return cls(whole_number(properties, MIN_COUNT, _MIN_COUNT_DEFAULT, least=None), manifest_target_bytes(metadata))


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
        for bin_ in _bins_from_the_end(group, policy.target_bytes):
            is_newest = manifests[0] in bin_
            if is_known and len(bin_) > 1 and (not is_newest or len(bin_) >= policy.min_count):
                out += _merged(bin_, spec_id, content, attempt)
            else:
                out += bin_
    return out


def _merged(
    manifests: Sequence[ManifestFile], spec_id: int, content: ManifestContent, attempt: Attempt
) -> list[ManifestFile]:
    known = [m for m in manifests if not attempt.reader.header(m).unknown_field_ids]
    left_alone = [m for m in manifests if m not in known]
    return [*(attempt.merged(known, spec_id, content) if len(known) > 1 else known), *left_alone]


def _bins_from_the_end(manifests: Sequence[ManifestFile], target_bytes: int) -> list[list[ManifestFile]]:
    """Neighbours in bins of at most the target, filled from the oldest on; bins and manifests stay in their order."""
    bins = [*packed(reversed(manifests), (lambda m: m.manifest_length, target_bytes))]
    return [bin_[::-1] for bin_ in reversed(bins)]
