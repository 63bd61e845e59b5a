"""What others did to manifests that a rewrite replaces, followed at the cost of what they touched.

Replaced manifests may be gone from a base: another commit has deleted a file in them, merged them, replaced their files.
Each of their files then is in a manifest that has come since, or not in the table any more. So much is read: the manifests
that are gone, which older snapshots still list, those that have come and may hold files as old, and the rewrite's own in
which a file lies that was removed.

Manifests of one partition spec and content have their files among themselves: each such kind is followed by itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain
from typing import Any

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.file_sets import Digest, digest_of, live_twice
from icekeep.commit.filtering import EntryReader, identity, without_history
from icekeep.commit.partition_ranges import PartitionRanges
from icekeep.errors import ConflictError, InvalidTableError, MissingFileError
from icekeep.spec.applicability import PartitionKey, partition_key
from icekeep.spec.manifests.inspection import lacks_counts
from icekeep.spec.manifests.structs import (
    DATA_FILE_FIELDS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot

_READ_MAX_COUNT = 200_000
"""Beyond so many entries it is faster to plan again."""

_FILE_FACTS = tuple(name for name in DataFile.__struct_fields__ if name != "partition")
_UNWRITTEN = tuple((f.field_id, f.name) for f in DATA_FILE_FIELDS if not f.until and f.name in _FILE_FACTS)
"""Fields that no version writes any more; entries that have them keep them."""

_ENCODER = msgspec.msgpack.Encoder()
_Kind = tuple[int, ManifestContent]


class Followed(msgspec.Struct, frozen=True):
    """The manifests of a base that go, and those in their place: they list the same live files."""

    replaced: tuple[ManifestFile, ...]
    added: tuple[ManifestFile, ...]


def followed(
    replaced: Sequence[ManifestFile],
    added: Sequence[ManifestFile],
    current: Sequence[ManifestFile],
    start: Snapshot,
    attempt: Attempt,
) -> Followed:
    """What to replace in the attempt's base, and by what, where some of `replaced` are gone from it.

    Manifests that hold files which others removed are written again without these. A manifest that has come and carries
    files of those that are gone is replaced too, and what else it holds goes into another: so its files stay where the
    rewrite has put them.

    Args:
        replaced, added: as they were planned; the entries of `added` are existing ones that leave nothing to be inherited.
        current: the manifests of the base.
        start: the snapshot that was read, which listed `replaced`.

    Raises:
        ConflictError: what became of the files cannot be told any more, is too much to read, or is more than where they
            are listed.
    """
    base, here = attempt.base, {identity(m) for m in current}
    gone = [m for m in replaced if identity(m) not in here]
    _check_definitions(gone, base)
    with _or_expired():
        come = _come_since(start, current, {_kind(m) for m in gone}, attempt)
    _check_count([*gone, *come])
    out, new, come_of = [m for m in replaced if identity(m) in here], _by_kind(added), _by_kind(come)
    for kind, lost in _by_kind(gone).items():
        moves = _moves(lost, come_of[kind], attempt)
        out += moves.carriers
        new[kind] = [*_without(new[kind], moves.removed, attempt), *_beside(kind, lost, moves, attempt)]
    return Followed(tuple(out), tuple(chain(*new.values())))


class _File(msgspec.Struct, frozen=True):
    """What is compared of a live file: a digest of all that its entry says, and where it lies."""

    facts: Digest
    partition: PartitionKey


class _Files(msgspec.Struct, frozen=True):
    """The live files of a manifest by the digests of what names them; `also` are the unwritten fields that some have."""

    by_name: Mapping[Digest, _File]
    also: frozenset[int]


class _Moves(msgspec.Struct, frozen=True):
    """What became of the files of manifests that are gone.

    Attributes:
        known: the digests of their names.
        removed: those that are not in the table any more, or not where was looked.
        carriers: manifests that have come and list some of them, or nothing that is live.
        mixed: those of the carriers that list other files, too.
        also: the unwritten fields that some of these have.
    """

    known: AbstractSet[Digest]
    removed: Mapping[Digest, _File]
    carriers: tuple[ManifestFile, ...]
    mixed: tuple[ManifestFile, ...]
    also: frozenset[int]


class _LiveFiles(msgspec.Struct, frozen=True):
    """The live files of a manifest."""

    base: TableMetadata

    @property
    def key(self) -> str:
        return "live files"

    def run(self, manifest: ManifestFile, reader: EntryReader) -> _Files:
        found: dict[Digest, _File] = {}
        also: set[int] = set()
        for entry in reader.entries(manifest, self.base):
            if not entry.is_live:
                continue
            file = entry.data_file
            name = _name(file)
            if name in found:
                raise live_twice(file.file_path)
            found[name] = _File(_facts(entry), partition_key(file))
            also.update(field_id for field_id, field in _UNWRITTEN if getattr(file, field) is not None)
        return _Files(found, frozenset(also))


def _name(file: DataFile) -> Digest:
    """What names a file in a snapshot; the vectors of one Puffin file differ in their offset."""
    return digest_of((file.file_path, file.content_offset))


def _facts(entry: ManifestEntry) -> Digest:
    """Equal for entries that say the same, inherited values and all; only the status may differ, and the order of maps."""
    file = entry.data_file
    values = [_in_order(getattr(file, name)) for name in _FILE_FACTS]
    numbers = entry.snapshot_id, entry.sequence_number, entry.file_sequence_number
    return blake2b(_ENCODER.encode((numbers, partition_key(file), values)), digest_size=16).digest()


def _in_order(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, Mapping) else value


def _check_definitions(gone: Sequence[ManifestFile], base: TableMetadata) -> None:
    if missing := {m.partition_spec_id for m in gone} - base.specs_by_id.keys():
        raise ConflictError(f"partition spec {min(missing)} of replaced manifests is no longer there; plan again")
    if base.next_row_id is not None and any(m.content is ManifestContent.DATA and m.first_row_id is None for m in gone):
        # All that the new manifests say of these files is older than the ids.
        raise ConflictError("files of replaced manifests were given row ids since they were read; plan again")


def _come_since(
    start: Snapshot, current: Sequence[ManifestFile], kinds: AbstractSet[_Kind], attempt: Attempt
) -> list[ManifestFile]:
    """The manifests of some kinds that the snapshot which was read does not list, and that may hold a file as old as it.

    To pass one over loses nothing: its files stay in it, and count as removed.
    """
    listed = {identity(m) for m in attempt.reader.manifests(start)}
    come = [m for m in current if _kind(m) in kinds and identity(m) not in listed]
    come = [attempt.reader.completed(m, attempt.base) if lacks_counts(m) else m for m in come]
    return [m for m in come if not m.may_have_live_files or (m.min_sequence_number or 0) <= start.sequence_number]


def _check_count(manifests: Iterable[ManifestFile]) -> None:
    count = sum(m.live_files_count or 0 for m in manifests)
    if count > _READ_MAX_COUNT:
        raise ConflictError(f"{count} files would have to be read to follow what others have changed; plan again")


def _moves(gone: Sequence[ManifestFile], come: Sequence[ManifestFile], attempt: Attempt) -> _Moves:
    """What became of the files of `gone`, as `come` tell."""
    work = _LiveFiles(without_history(attempt.base))
    with _or_expired():
        lost = attempt.gathered(gone, work)
    known = {name: file for files in lost for name, file in files.by_name.items()}
    if len(known) < sum(len(files.by_name) for files in lost):
        raise _in_two_manifests()
    live = [m for m in come if m.may_have_live_files]
    carriers, mixed, also = [m for m in come if not m.may_have_live_files], [], set[int]()
    found: set[Digest] = set()
    for manifest, files in zip(live, attempt.gathered(live, work), strict=True):
        carried = files.by_name.keys() & known.keys()
        if not carried:
            continue
        if any(files.by_name[name].facts != known[name].facts for name in carried):
            raise ConflictError(
                f"manifest {manifest.manifest_path!r} does not say the same of files as was read of them; plan again"
            )
        if found & carried:
            raise _in_two_manifests()
        found |= carried
        carriers.append(manifest)
        if len(carried) < len(files.by_name):
            mixed.append(manifest)
            also |= files.also
    removed = {name: file for name, file in known.items() if name not in found}
    return _Moves(known.keys(), removed, tuple(carriers), tuple(mixed), frozenset(also))


def _without(
    added: Sequence[ManifestFile], removed: Mapping[Digest, _File], attempt: Attempt
) -> Iterator[ManifestFile]:
    """New manifests of one kind; those that hold removed files are written again without them."""
    partitions = {values for _, values in (file.partition for file in removed.values())}
    base = attempt.base
    may_hold = [any(map(PartitionRanges(m, base).may_hold, partitions)) for m in added]
    candidates = [m for m, may in zip(added, may_hold, strict=True) if may]
    _check_count(candidates)
    readable = [_readable(m, base) for m in candidates]
    found = dict(
        zip(map(identity, candidates), attempt.gathered(readable, _LiveFiles(without_history(base))), strict=True)
    )
    for manifest in added:
        files = found.get(identity(manifest))
        held = frozenset() if files is None else files.by_name.keys() & removed.keys()
        if files is None or not held:
            yield manifest
            continue
        yield from attempt.write_manifests(
            ("without", manifest.manifest_path, frozenset(held)),
            _existing([_readable(manifest, base)], held, attempt),
            manifest.partition_spec_id,
            manifest.content,
            files.also,
        )


def _beside(kind: _Kind, gone: Sequence[ManifestFile], moves: _Moves, attempt: Attempt) -> tuple[ManifestFile, ...]:
    """Manifests of what carriers list beside the files of those that are gone."""
    if not moves.mixed:
        return ()
    key = "beside", frozenset(map(identity, moves.mixed)), frozenset(map(identity, gone))
    return attempt.write_manifests(key, _existing(moves.mixed, moves.known, attempt), *kind, moves.also)


def _existing(
    manifests: Iterable[ManifestFile], left_out: AbstractSet[Digest], attempt: Attempt
) -> Iterator[ManifestEntry]:
    """The live entries of manifests as existing ones, without some files."""
    for manifest in manifests:
        for entry in attempt.reader.entries(manifest, attempt.base):
            if entry.is_live and _name(entry.data_file) not in left_out:
                yield msgspec.structs.replace(entry, status=Status.EXISTING)


def _readable(manifest: ManifestFile, base: TableMetadata) -> ManifestFile:
    """A manifest that is not committed yet, with what its entries would inherit: they have all of it themselves.

    But version 1 has no sequence numbers, and row ids count only where the manifest has one.
    """
    has_row_ids = base.next_row_id is not None and manifest.content is ManifestContent.DATA
    return msgspec.structs.replace(
        manifest,
        sequence_number=0 if base.format_version == 1 else manifest.sequence_number,
        first_row_id=0 if has_row_ids else None,
    )


@contextmanager
def _or_expired() -> Iterator[None]:
    """What only older snapshots list may be gone at any time."""
    try:
        yield
    except MissingFileError as error:
        raise ConflictError(f"what was read has expired since ({error.message}); plan again") from error


def _by_kind(manifests: Iterable[ManifestFile]) -> dict[_Kind, list[ManifestFile]]:
    kinds: dict[_Kind, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        kinds[_kind(manifest)].append(manifest)
    return kinds


def _kind(manifest: ManifestFile) -> _Kind:
    return manifest.partition_spec_id, manifest.content


def _in_two_manifests() -> InvalidTableError:
    return InvalidTableError("a file is live in two manifests of the table; they cannot be rewritten")
