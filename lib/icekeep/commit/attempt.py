"""A change, and one attempt to apply it to a base: the manifests it reads, and those it writes for a new snapshot.

A change reads its base and writes manifests through an `Attempt`, and does nothing else. `CommitFiles` keeps the manifests
that an attempt wrote and the answers it got, for the attempts after it. Each attempt has a manifest list of its own.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any, BinaryIO, Protocol, TypeVar

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.file_sets import entry_digest
from icekeep.commit.manifest_writer import ManifestWriter
from icekeep.commit.manifests import (
    Filtered,
    FilterManifests,
    Gathering,
    LastingKey,
    LiveFilesQuestion,
    ManifestKey,
    ManifestReader,
    MergeManifests,
    RemovalChecks,
    manifest_key,
    read_as,
    without_history,
)
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import THIS_TABLE, InvalidTableError, UnsupportedError, UsageError, shown_command, table_at
from icekeep.runtime import Runtime, new_snapshot_id
from icekeep.spec.manifests.read import lacks_counts
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile, assign_row_ids
from icekeep.spec.manifests.write import write_manifest_list
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import manifest_list_location, manifest_location
from icekeep.spec.snapshots import MAIN, Snapshot, carried, moved
from icekeep.spec.types import MAX_LONG
from icekeep.spec.updates import AddSnapshot, SetSnapshotRef, Update, low_counters
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import Overlay, StorageWrapper

T = TypeVar("T")


class Change(Protocol):
    """A change to a table: a value that can be applied to any base."""

    def apply(self, base: TableMetadata, attempt: "Attempt") -> tuple[Update, ...]:
        """Work out, from this base alone, the updates that make the change; none if there is nothing to change.

        May be called again with a newer base. Writes nothing but manifests and manifest lists, through `attempt`. Raises
        `ConflictError` where the change does not apply to the base.
        """


def noting_storage(storage: Storage, made: list[str]) -> Storage:
    """The storage; the location of each file written through it is appended to `made` once the file exists.

    A location that turned out to be taken is not appended: that file is another writer's. Only the storage is pickled.
    """
    return _NotingStorage(storage, made)


class _NotingStorage(StorageWrapper):
    def __init__(self, inner: Storage, made: list[str]) -> None:
        super().__init__(inner)
        self._made = made

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        with self.inner.write(location) as stream:
            yield stream
        self._made.append(location)


class CommitFiles:
    """The files that one commit has written so far, and the results that its later attempts reuse.

    Attributes:
        written: its manifests, lists and delete files, each once it exists.
        producer, own: summary keys that name the producer of the snapshot, and further ones.
        carried_keys: summary keys that are copied from the parent snapshot.
        named: by manifest list, which of the commit's own manifests and delete files it names.
        filtered: results of filtering, each with the key of the check that its removed files passed.
        checked: by the key of a check, its results.
        answers: by the key of a question, its answers by manifest.
    """

    def __init__(
        self,
        storage: Storage,
        commit_uuid: str,
        producer: Mapping[str, str] | None = None,
        *,
        own: Mapping[str, str] | None = None,
        carried_keys: Sequence[str] = (),
    ) -> None:
        self.written: list[str] = []
        self.reach_through(storage)
        self.commit_uuid = commit_uuid
        self.producer, self.own, self.carried_keys = producer or {}, own or {}, carried_keys
        self.named: dict[str, frozenset[str]] = {}
        self.filtered: dict[Hashable, tuple[Filtered, Hashable]] = {}
        self.checked: dict[Hashable, RemovalChecks] = {}
        self.answers: dict[Hashable, dict[Hashable, Any]] = {}
        self.numbers = count()
        self._kept: dict[Hashable, tuple[ManifestFile, ...]] = {}

    def reach_through(self, storage: Storage) -> None:
        """Write through another storage from here on: a catalog may hand out credentials that expire."""
        self.storage = noting_storage(storage, self.written)

    def once(self, key: Hashable, write: Callable[[], Iterable[ManifestFile]]) -> tuple[ManifestFile, ...]:
        if key not in self._kept:
            self._kept[key] = tuple(write())
        return self._kept[key]

    def write(self, location: str, data: bytes) -> None:
        with self.storage.write(location) as stream:
            stream.write(data)


class Attempt:
    def __init__(
        self,
        base: TableMetadata,
        number: int,
        snapshot_id: int,
        files: CommitFiles,
        reader: ManifestReader,
        runtime: Runtime,
    ) -> None:
        self.base = base
        self.snapshot_id = snapshot_id
        self.reader = reader
        self.now_ms = runtime.now_ms()
        self._number = number
        self._files = files
        self._delete_files: frozenset[str] = frozenset()
        self._locations = (manifest_location(base, files.commit_uuid, number) for number in files.numbers)

    @cached_property
    def writer(self) -> ManifestWriter:
        """Raises `PropertyError` where a property of the base is wrong."""
        return ManifestWriter.of(self.base, self.snapshot_id, self._files.storage)

    def write_manifests(
        self,
        key: Hashable,
        entries: Iterable[ManifestEntry],
        spec_id: int,
        content: ManifestContent = ManifestContent.DATA,
    ) -> tuple[ManifestFile, ...]:
        """Write entries of one partition spec as manifests of about `commit.manifest.target-size-bytes`.

        An earlier attempt's manifests with the same `key` are reused, and then `entries` is not iterated.
        """
        # Manifests of another format version are no use to a base that was upgraded meanwhile.
        key = (key, spec_id, content, self.base.format_version)
        return self._files.once(key, lambda: self.writer.write(entries, spec_id, content, self._locations))

    def merged(
        self, manifests: Sequence[ManifestFile], spec_id: int, content: ManifestContent
    ) -> tuple[ManifestFile, ...]:
        """Merge manifests of one spec and content into fewer; those of an earlier attempt are reused."""
        key = ("merged", *map(manifest_key, manifests), spec_id, content, self.base.format_version)
        work = MergeManifests(base=without_history(self.base), writer=self.writer, spec_id=spec_id, content=content)
        return self._files.once(key, lambda: self.reader.merged(manifests, work, self._locations))

    def check_counts(self, manifests: Sequence[ManifestFile]) -> None:
        """As `ManifestReader.check_counts`, each manifest once in a commit."""
        checked = self._files.answers.setdefault("counts", {})
        todo = [manifest for manifest in manifests if manifest not in checked]
        if todo:
            self.reader.check_counts(todo, self.base)
            checked.update(dict.fromkeys(todo))

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        """The answer of each manifest, in order; those that an earlier attempt has asked are not read."""
        answers = self._files.answers.setdefault(work.key, {})
        todo = [manifest for manifest in manifests if read_as(manifest) not in answers]
        if todo:
            answers.update(zip(map(read_as, todo), self.reader.gathered(todo, work), strict=True))
        return [answers[read_as(manifest)] for manifest in manifests]

    def ask_live_files(
        self, manifests: Sequence[ManifestFile], key: Hashable, answer: Callable[[Iterator[ManifestEntry]], T]
    ) -> list[T]:
        return self.gathered(manifests, LiveFilesQuestion.of(self.base, key, answer))

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests
    ) -> tuple[dict[ManifestKey, Filtered], RemovalChecks]:
        """Filter manifests of one content; those that an earlier attempt has filtered are read for a new check alone.

        Returns the results of the manifests that were filtered, and of the check of the removed files.
        """
        if not manifests:
            return {}, RemovalChecks()
        files, check = self._files, None if work.check is None else work.check.key
        questions = {manifest_key(m): work.question(m) for m in manifests}
        earlier = {i: files.filtered[question] for i, question in questions.items() if question in files.filtered}
        done = {i: filtered for i, (filtered, passed) in earlier.items() if passed == check or not filtered.files_count}
        todo = [m for m in manifests if manifest_key(m) not in done]
        shares = []
        if todo:
            work = msgspec.structs.replace(
                work,
                remaining_count=work.remaining_count - sum(filtered.named_count for filtered in done.values()),
                filtered_before={i: filtered for i, (filtered, _) in earlier.items() if i not in done},
            )
            shares = self.reader.filtered(todo, work, self._locations)
        # Tasks write through storages of their own.
        others = {m.manifest_path for m in todo}.union(files.written)
        for share in shares:
            done.update(share.filtered)
            new = share.written(others)
            files.written += new
            others.update(new)
        checked = RemovalChecks.joined(
            [files.checked.get(check, RemovalChecks()), *(share.checked for share in shares)]
        )
        if not checked.refusals:
            files.checked[check] = checked
            files.filtered.update({questions[i]: (filtered, check) for i, filtered in done.items()})
        return done, checked

    def leave_out(self, manifests: Iterable[ManifestFile]) -> None:
        """Have manifests removed that were written before the commit began, unless a later attempt lists them and lands."""
        written, noted = self._files.written, set(self._files.written)
        written += [path for path in dict.fromkeys(m.manifest_path for m in manifests) if path not in noted]

    def delete_file_written(self, location: str) -> None:
        """Have a delete file removed unless an attempt lands that names it."""
        self._files.written.append(location)

    def name_delete_files(self, locations: Iterable[str]) -> None:
        """Note that the attempt's snapshot names these delete files, so that they are kept if it lands."""
        self._delete_files |= frozenset(locations)

    def snapshot_updates(
        self,
        operation: str,
        manifests: Iterable[ManifestFile],
        summary: SummaryBuilder,
        *,
        branch: str = MAIN,
    ) -> tuple[Update, ...]:
        """Write the manifest list of a new snapshot on top of a branch; returns the updates that add and publish it."""
        base, files = self.base, self._files
        ref = base.refs.get(branch)
        if ref is not None and not ref.is_branch:
            raise UsageError(f"{branch!r} is a tag; only a branch can be committed to", ref=branch)
        if base.is_encrypted:
            raise UnsupportedError(
                f"{table_at(base.location)} is encrypted, and icekeep writes no encrypted files; nothing was changed"
            )
        parent = base.head(branch)
        # The totals of a parent without a summary (v1) are unknown; they are zero only where there is no parent.
        before = None if parent is None else parent.summary or {}
        rows, next_row_id = self._rows(manifests)
        location = manifest_list_location(base, self.snapshot_id, self._number, files.commit_uuid)
        snapshot = Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=base.next_sequence_number,
            # Time rises in a table's history, whatever the clocks of its writers show, up to the greatest `long`.
            timestamp_ms=max(
                self.now_ms, base.last_updated_ms, 0 if parent is None else min(parent.timestamp_ms + 1, MAX_LONG)
            ),
            manifest_list=location,
            summary={
                **carried(before or {}, files.carried_keys),
                **files.own,
                **summary.build(operation, before, files.commit_uuid),
                **files.producer,
            },
            schema_id=base.current_schema_id,
            first_row_id=base.next_row_id,
            added_rows=None if next_row_id is None else next_row_id - (base.next_row_id or 0),
        )
        writer = self.writer
        data = write_manifest_list(
            rows, snapshot, format_version=writer.format_version, codec=writer.codec, level=writer.level
        )
        files.named[location] = (frozenset(m.manifest_path for m in rows) & {*files.written}) | self._delete_files
        files.write(location, data)
        return AddSnapshot(snapshot), SetSnapshotRef(branch, moved(ref, self.snapshot_id))

    def _rows(self, manifests: Iterable[ManifestFile]) -> tuple[list[ManifestFile], int | None]:
        """The rows of a manifest list, and the table's next row id where it has one (version 3)."""
        base = self.base
        least_row_id = low_counters(base).get("next_row_id")
        # Some writers leave the counter behind; what is added by it has the ids of rows that are there.
        if least_row_id is not None:
            raise InvalidTableError(
                f"{table_at(base.location)} has next-row-id {base.next_row_id}, and row ids up to "
                f"{least_row_id - 1} are given out: new files would get ids that other rows have; run "
                f"`{shown_command('repair', '--table', THIS_TABLE, '--fault', '128')}` first",
                location=base.location,
            )
        rows = []
        for row in manifests:
            # A list of version 1 may leave counts out that later versions require and row ids are assigned by.
            is_short = base.format_version > 1 and lacks_counts(row)
            rows.append(self.reader.completed(row, base) if is_short else row)
        if base.next_row_id is None:
            return rows, None
        self._check_rows_counts(rows)
        return assign_row_ids(rows, base.next_row_id)

    def _check_rows_counts(self, rows: Sequence[ManifestFile]) -> None:
        """Read all manifests without a first row id: row ids assigned by counts that are too low would overlap."""
        numbered = [
            row
            for row in rows
            if row.content is ManifestContent.DATA
            and row.first_row_id is None
            and row.added_snapshot_id != self.snapshot_id
        ]
        counts = self.ask_live_files(numbered, LastingKey("live rows"), _records_count)
        for row, rows_count in zip(numbered, counts, strict=True):
            listed = (row.added_rows_count or 0) + (row.existing_rows_count or 0)
            if listed != rows_count:
                raise InvalidTableError(
                    f"manifest {row.manifest_path!r} holds {rows_count} live rows, but its manifest list says {listed}, and row "
                    f"ids would be given out by that; run `{shown_command('repair', '--table', THIS_TABLE, '--fault', '205')}`, "
                    "which corrects the list",
                    location=row.manifest_path,
                )


Gatherer = Attempt | ManifestReader
"""Asks manifests, and gives their answers in order; an attempt remembers them."""


def _records_count(live: Iterable[ManifestEntry]) -> int:
    return sum(entry.data_file.record_count for entry in live)


class RemovedDeletes(msgspec.Struct, frozen=True):
    """A delete manifest, and the entries of its live files that a change would remove."""

    manifest: ManifestFile
    entries: tuple[ManifestEntry, ...]


def removed_deletes(change: Callable[[], Change], table: Table, branch: str) -> list[RemovedDeletes]:
    """The delete files that a change would remove from a branch: it is applied in memory, and nothing is committed.

    `change` is not called for a branch without delete files.
    """
    base, runtime, storage = table.metadata, table.runtime, Overlay(table.storage)
    reader, head = ManifestReader(storage), base.head(branch)

    def delete_manifests(snapshot: Snapshot) -> list[ManifestFile]:
        rows = reader.manifests(snapshot)
        return [row for row in rows if row.content is ManifestContent.DELETES and row.may_have_live_files]

    before = [] if head is None else delete_manifests(head)
    if not before:
        return []
    files = CommitFiles(storage, str(runtime.new_uuid()))
    attempt = Attempt(base, 1, new_snapshot_id(runtime, base.snapshots_by_id), files, reader, runtime)
    added = [update.snapshot for update in change().apply(base, attempt) if isinstance(update, AddSnapshot)]
    if not added:
        return []
    after = {manifest_key(row): row for row in delete_manifests(added[-1])}
    new = (after[key] for key in after.keys() - map(manifest_key, before))
    kept = {entry_digest(entry) for row in new for entry in reader.entries(row, base) if entry.is_live}
    removed = []
    for manifest in before:
        if manifest_key(manifest) not in after:
            live = (entry for entry in reader.entries(manifest, base) if entry.is_live)
            removed.append(RemovedDeletes(manifest, tuple(entry for entry in live if entry_digest(entry) not in kept)))
    return removed
