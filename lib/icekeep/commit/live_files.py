"""Remove live files from the manifests of a base, and write manifests of new files.

A commit that appends also merges manifests: properties `commit.manifest-merge.enabled` (true),
`commit.manifest.min-count-to-merge` (100) and `commit.manifest.target-size-bytes` (8 MB). They are packed in the order of the
list, the oldest bins first, so that merged manifests stay as they are and only the newest bin grows.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial

import msgspec

from icekeep.commit.attempt import Attempt, Gatherer
from icekeep.commit.file_sets import FileSet, FilesToFind, StoredFileSet, digest_of_all, entry_digest
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.commit.manifests import (
    ChangedDeletes,
    FilterManifests,
    LastingKey,
    LiveFilesQuestion,
    ManifestReader,
    RemovalCheck,
    RemovalChecks,
    Selection,
    manifest_key,
    without_history,
)
from icekeep.commit.summary import FILE_TOTALS, SummaryBuilder, check_file_total, live_counts
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import boolean_property, whole_number
from icekeep.spec.reach import PathDigest, is_newer, own_path, own_path_digest, path_digest, sequence_number
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage

FileKey = tuple[str, int | None]
"""Location and offset, which name a file, or one deletion vector, in a snapshot."""

PathProof = Callable[[Storage, Sequence[DataFile]], Iterable[DataFile]]
"""Reads position delete files, and gives those all of whose rows are of the one path that both their bounds give.

Can be pickled; a file that cannot be read is left out.
"""


class HeadManifests(msgspec.Struct, frozen=True):
    """The manifests of a branch's head that may list live files, by what they track, in order."""

    data: tuple[ManifestFile, ...]
    deletes: tuple[ManifestFile, ...]


class KeptManifests(msgspec.Struct, frozen=True):
    """Manifests without the files that were removed.

    `paths` are the digests of the removed files' paths, `summary` has counted them; `changed` has those whose deletes of
    positions are to be carried over.
    """

    manifests: tuple[ManifestFile, ...]
    removed_count: int
    paths: frozenset[PathDigest]
    summary: SummaryBuilder
    changed: Mapping[str, ChangedDeletes] = {}


def live_among(manifests: Iterable[ManifestFile]) -> HeadManifests:
    rows = [m for m in manifests if m.may_have_live_files]
    return HeadManifests(
        data=tuple(m for m in rows if m.content is ManifestContent.DATA),
        deletes=tuple(m for m in rows if m.content is ManifestContent.DELETES),
    )


def head_manifests(attempt: Attempt, branch: str) -> list[ManifestFile]:
    """All manifests of a branch; a new snapshot may drop those that the list calls empty, since each of them was read.

    Raises `InvalidTableError` where entries, list and summary disagree on how many files there are.
    """
    head = attempt.base.head(branch)
    if head is None:
        return []
    rows = attempt.reader.manifests(head)
    totals_agree(rows, head)
    # A live file that a new snapshot leaves out is lost unnoticed, so a count in the list alone drops no manifest.
    attempt.check_counts([row for row in rows if not row.may_have_live_files])
    return rows


def live_manifests(attempt: Attempt, branch: str) -> HeadManifests:
    return live_among(head_manifests(attempt, branch))


def totals_agree(rows: Sequence[ManifestFile], snapshot: Snapshot) -> bool:
    """Compare the counts of a snapshot's manifest list with its summary; returns whether both have all counts.

    Raises `InvalidTableError` where they differ: the list was cut short, or one of the two is wrong.
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
    if spec_id not in base.specs_by_id:
        raise ConflictError(f"partition spec {spec_id}, which the new files were written with, is no longer there")


def require_format_version(base: TableMetadata, version: int) -> None:
    if version != base.format_version:
        raise ConflictError(f"the table has format version {base.format_version} now, and was read with {version}")


def raise_refusals(refusals: Mapping[str, str]) -> None:
    """Raise a `ConflictError` that gives the reason for the first of the data files, and names all of them."""
    if refusals:
        raise ConflictError(refusals[min(refusals)], data_files=frozenset(refusals))


def file_key(file: DataFile) -> FileKey:
    """Identifies a file in a snapshot; the vectors of one Puffin file differ in their offset."""
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
    """Mark live files as deleted in manifests of one content; manifests without such files stay as they are.

    Raises `ConflictError` where a file of `as_read` is not live as it was read or `check` refuses one, `InvalidTableError`
    where a file of `as_read` is live more than once.

    Args:
        as_read: files that must be live as they were read: same sequence number, spec, partition and first row id.
        selected: which other files to remove.
        first: paths of manifests to look into first; only saves work.
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
        asked = {manifest_key(m) for m in likely}
        others = [m for m in manifests if manifest_key(m) not in asked]
        more, of_others = attempt.filtered(others, msgspec.structs.replace(work, remaining_count=missing_count))
        filtered, checked = {**filtered, **more}, RemovalChecks.joined([checked, of_others])
        missing_count -= sum(one.named_count for one in more.values())
    paths = frozenset[PathDigest]().union(*(one.paths for one in filtered.values()))
    if missing_count < 0:
        raise InvalidTableError("a file that is to be removed is live more than once in the table")
    if missing_count > 0:
        raise _no_longer_live(as_read, missing_count, paths, attempt)
    raise_refusals(checked.refusals)
    return KeptManifests(
        manifests=tuple(
            new
            for m in manifests
            for new in (filtered[manifest_key(m)].manifests if manifest_key(m) in filtered else (m,))
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
    manifests: HeadManifests,
    kept: KeptManifests,
    attempt: Attempt,
    *,
    as_read: tuple[ManifestEntry, ...] = (),
    selected: Selection | None = None,
    added_number: int | None = None,
    proof: PathProof | None = None,
) -> KeptManifests:
    """The delete manifests without the files that are named or selected, and those that removed data files leave behind.

    Delete files of one removed data file go with it: those that name it, and those whose bounds of paths both give its path,
    once their rows have proven it. Delete files go as well that are too old for every data file that is left or added: by the
    table's least data sequence number, as all entries of its data files have it.

    Args:
        manifests: of the base.
        kept: its data manifests, and the data files that were removed from them.
        as_read, selected: which other delete files to remove, as for `remove`.
        added_number: the data sequence number of added data files; `None`: the commit's own.
        proof: reads rows of delete files; without it only names count.
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
            # By the list none is too old; where it is wrong, some of those stay.
            least = -1
        proven, paths_digest = frozenset[PathDigest](), digest_of_all(kept.paths)
        if proof is not None:
            key, is_asked = ("proven", "own paths in", paths_digest), partial(_has_own_path_in, kept.paths)
            work = ProvenPaths(without_history(base), key, is_asked, proof)
            proven = frozenset().union(*attempt.gathered(manifests.deletes, work))
        digests = paths_digest, digest_of_all(proven)
        selected = LeftBehind(kept.paths, least, selected, all_too_old, proven, digests)
    return remove(manifests.deletes, attempt, as_read=as_read, selected=selected)


class LeftBehind(msgspec.Struct, frozen=True):
    """A `Selection` of the delete files that apply to removed data files alone, or are too old for every data file that is left.

    Attributes:
        paths: `path_digest` of the removed data files.
        min_sequence_number: the least data sequence number of the data files that are left.
        all_too_old: paths of manifests all of whose live files are too old, by their entries.
        proven: `own_path_digest` of delete files that do not name their data file, and whose rows are all of that one.
        digests: of `paths` and `proven`.
    """

    paths: frozenset[PathDigest]
    min_sequence_number: int
    other: Selection | None
    all_too_old: frozenset[str]
    proven: frozenset[PathDigest]
    digests: tuple[bytes, bytes]

    def key(self, manifest: ManifestFile) -> Hashable:
        if manifest.manifest_path in self.all_too_old:
            # All go, whatever else is asked, in each attempt whose base proves it again (`remove_deletes`).
            return "all too old"
        return "left", self.digests, self.min_sequence_number, None if self.other is None else self.other.key(manifest)

    def entry(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        own: str | bytes | None = file.referenced_data_file
        if own is None and self.proven and own_path_digest(file) in self.proven:
            own = own_path(file)
        if own is not None and path_digest(own) in self.paths:
            return True
        return not is_newer(entry, self.min_sequence_number) or (self.other is not None and self.other.entry(entry))


def min_data_sequence_number(manifests: Iterable[ManifestFile], base: TableMetadata, added_number: int | None) -> int:
    """The least data sequence number of live and added data files by the manifest list.

    The true one may be greater, or the list wrong, so this alone proves no delete file too old. `added_number`: of added data
    files; `None`: the commit's own.
    """
    numbers = [m.min_sequence_number or 0 for m in manifests if m.may_have_live_files]
    return min([*numbers, base.next_sequence_number if added_number is None else added_number])


def proven_min_number(
    manifests: Sequence[ManifestFile], base: TableMetadata, asks: Gatherer, added_number: int | None
) -> int:
    """As `min_data_sequence_number`, by the entries of all data manifests."""
    numbers = [one[0] for one in asks.gathered(manifests, _number_range(base)) if one is not None]
    return min([*numbers, base.next_sequence_number if added_number is None else added_number])


def _number_range(base: TableMetadata) -> LiveFilesQuestion[tuple[int, int] | None]:
    return LiveFilesQuestion.of(base, LastingKey("number range"), _range_of_numbers)


def _range_of_numbers(live: Iterator[ManifestEntry]) -> tuple[int, int] | None:
    """The least and the greatest data sequence number; `None` where a manifest has no live file."""
    numbers = {sequence_number(entry) for entry in live}
    return (min(numbers), max(numbers)) if numbers else None


class ProvenPaths(msgspec.Struct, frozen=True):
    """A `Gathering` of `own_path_digest`: of the live delete files that `is_asked` selects and `proof` confirms.

    `is_asked` is a `partial` of a module's function; `key` is equal where the answers are.
    """

    base: TableMetadata
    key: Hashable
    is_asked: Callable[[ManifestEntry], bool]
    proof: PathProof

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> frozenset[PathDigest]:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        files = [entry.data_file for entry in live if self.is_asked(entry)]
        proven = self.proof(reader.storage, files) if files else ()
        return frozenset(map(own_path_digest, proven))


def _has_own_path_in(paths: Set[PathDigest], entry: ManifestEntry) -> bool:
    """Whether a delete file names no data file, and its bounds give one of these paths."""
    own = own_path(entry.data_file) if entry.data_file.referenced_data_file is None else None
    return own is not None and path_digest(own) in paths


def add(
    files: Iterable[DataFile],
    attempt: Attempt,
    summary: SummaryBuilder,
    *,
    content: ManifestContent = ManifestContent.DATA,
    sequence_number: int | None = None,
    key: Hashable = "added",
) -> list[ManifestFile]:
    """Count new files, all of one content, in the summary, and write manifests of them for each partition spec.

    Args:
        sequence_number: their data sequence number; `None`: the commit's own.
        key: distinguishes these files from others that an attempt of the commit adds.
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
    """As `add`, for files each with its data sequence number."""
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
    """Manifests are merged in bins of about `target_bytes`; the newest bin only once it has `min_count` manifests."""

    min_count: int
    target_bytes: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> "MergePolicy | None":
        """From table properties; `None` where they turn merging off; raises `PropertyError` where they are wrong."""
        properties = metadata.properties
        if not boolean_property(properties, "commit.manifest-merge.enabled", default=True):
            return None
        # A number below two is as good as two: a single manifest is never merged.
        min_count = whole_number(properties, "commit.manifest.min-count-to-merge", 100, least=None)
        return cls(min_count, manifest_target_bytes(metadata))


def merged(manifests: Sequence[ManifestFile], attempt: Attempt) -> list[ManifestFile]:
    """The manifests of one content of a new snapshot, newest first, with those merged that `MergePolicy` says.

    Only manifests of one partition spec are merged. Those with an unknown transform or unknown fields, whose values a merge
    would lose, stay as they are, and those whose spec the table has lost.
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
