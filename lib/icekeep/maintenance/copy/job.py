"""`copy_table`: a table, or what was added to it since, copied to another prefix, store or catalog, and published there.

    target looked at -> survey -> data files copied -> deletes, manifests and lists written there -> metadata file -> registered

Nobody sees the copy before it is registered, which is the last step, and nothing at the source is changed. Each file is put in
its own place, whole or not at all, and only where nothing else is: a copy that was killed is started again, and goes on with
what is missing. An increment is one commit to the copy, which must be as this job has left it.
"""

import uuid
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier, format_identifier
from icekeep.catalog.metadata_files import compression_suffix
from icekeep.commit.retry import commit
from icekeep.errors import (
    IcekeepError,
    NotFoundError,
    SafetyError,
    UsageError,
    argument,
)
from icekeep.events import BYTES, SILENT, Listener, StepAdvanced, StepFinished, StepStarted, unfailing
from icekeep.maintenance.copy.files import (
    NOTHING_COPIED,
    CopiedFilesOfKind,
    CopiedTable,
    EarlierCopy,
    change_of,
    refuse_outside,
    survey,
)
from icekeep.maintenance.copy.increment import (
    OWN_PROPERTIES,
    SOURCE_PREFIX,
    SOURCE_UUID,
    SOURCE_VERSION,
    STATE,
    TARGET_PREFIX,
    Increment,
    increment_updates,
    state_of,
)
from icekeep.maintenance.copy.placing import WholeFiles, copy_file
from icekeep.maintenance.copy.relocate import put_metadata, write_relocated
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.maintenance.register import register_table
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.session import SparkSource, check_source, limits_of, started
from icekeep.planning.spark.tasks import finished_tasks
from icekeep.rendered import Rendered
from icekeep.spec.collections import packed
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import metadata_directory
from icekeep.spec.relocation import PathChange, paths_in_metadata, relocated_metadata
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical, requests_at_once

_STEP = "copying files"
_TASK_BYTES = 256 << 20
_TASK_FILES = 200


class CopyResult(Rendered, frozen=True, kw_only=True):
    """What was copied, or would be.

    Attributes:
        status: `planned` or `done`.
        target_table: the copy's name, with that of its catalog.
        target_location: of the copy.
        metadata_location: of the copy as it is published; `None` before.
        source_version: the metadata file of the source that the copy is of.
        is_increment: whether a copy that was made before is updated.
        snapshots_count: that are new in the copy.
        files_count, bytes: of what the copy, or the increment, consists of, without its metadata file; bytes as at the source.
        copied_files_count, copied_bytes: files that were copied as they are; others were at the target already, or hold paths and
            were rewritten.
        files: by kind.
    """

    status: str
    target_table: str
    target_location: str
    metadata_location: str | None
    source_version: str
    is_increment: bool
    snapshots_count: int
    files_count: int
    bytes: int
    copied_files_count: int
    copied_bytes: int
    files: tuple[CopiedFilesOfKind, ...]


def copy_table(  # noqa: PLR0913 - where to, and how
    table: Table,
    catalog: Catalog,
    identifier: str | Identifier,
    spark: SparkSource = None,
    *,
    location: str | None = None,
    source_prefix: str | None = None,
    increment: bool = False,
    verify: bool = False,
    listener: Listener = SILENT,
) -> CopyResult:
    """Copy a table as it is now, with all its snapshots, branches, tags and statistics, and register the copy.

    The copy is a table of its own, with another uuid. It starts a new metadata log.

    Args:
        catalog: takes the copy, and reaches the files there by its own properties. It may be the table's own catalog.
        identifier: the name of the copy; its namespace must exist.
        spark: a session, or a function that starts one; by default the session that runs, or a new one. Only where there is much
            to copy Spark has a part in it.
        location: the prefix of the copy's files; by default the catalog's for a table of this name.
        source_prefix: what all paths of the table begin with; by default its location.
        increment: update a copy that was made before with what is new since.
        verify: read each copied file once more, and compare its checksum with that of the source.

    Raises:
        UsageError: another table has the name; or the two prefixes lie in each other.
        NotFoundError: there is no such namespace, or no copy to update.
        SafetyError: files of the table are not under the source prefix, or another file is in the place of one of the copy, or
            another table lies there; or the copy to update has been changed since by others. Nothing was overwritten.
        ConflictError: others have changed the copy meanwhile.
        UnsupportedError: the table is encrypted; or the increment cannot be made as a commit.
        InvalidTableError, MissingFileError: files of the table cannot be read whole.
        UnavailableError: a store or a catalog failed; run it again.
        OutcomeUnknownError: the copy may or may not be published; run it again.
    """
    work = _Copying(table, catalog, as_identifier(identifier), spark, location, source_prefix, unfailing(listener))
    with spark_run("copy_table", table.name, work.listener):
        target = work.looked_at(increment=increment)
        if target.is_done:
            return work.result(target, None, "done")
        copied = work.surveyed(target)
        done = work.transferred(copied, target, verify=verify)
        placed = WholeFiles(target.storage, table.runtime)
        write_relocated(copied, table.storage, placed, target.change, spark, work.listener)
        return work.result(target, copied, "done", work.published(target, placed), done)


def plan_copy_table(  # noqa: PLR0913 - where to, and how
    table: Table,
    catalog: Catalog,
    identifier: str | Identifier,
    spark: SparkSource = None,
    *,
    location: str | None = None,
    source_prefix: str | None = None,
    increment: bool = False,
    verify: bool = False,
    listener: Listener = SILENT,
) -> CopyResult:
    """What `copy_table` would copy, with the checks that read metadata alone; nothing is written. Raises as it does."""
    work = _Copying(table, catalog, as_identifier(identifier), spark, location, source_prefix, unfailing(listener))
    with spark_run("copy_table", table.name, work.listener):
        target = work.looked_at(increment=increment)
        return work.result(target, None if target.is_done else work.surveyed(target), "planned")


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the copy goes, and what is to be there.

    Attributes:
        existing: the copy that was made before.
        wanted: the metadata that the copy is to have; its uuid is that of `existing`, if there is one.
        storage: reaches the files of the copy.
    """

    change: PathChange
    existing: Table | None
    wanted: TableMetadata
    storage: Storage
    is_done: bool = False


class _Copying:
    """One run over a source, from the look at the target to the publication."""

    def __init__(
        self,
        table: Table,
        catalog: Catalog,
        identifier: Identifier,
        spark: SparkSource,
        location: str | None,
        source_prefix: str | None,
        listener: Listener,
    ) -> None:
        check_source(spark)
        self._source, self._catalog, self._identifier, self._spark = table.refresh(), catalog, identifier, spark
        self._location, self._prefix, self.listener = location, source_prefix, listener
        self._name = f"{catalog.name}.{format_identifier(identifier)}"

    def looked_at(self, *, increment: bool) -> _Target:
        """Look at the target, and refuse what cannot come to a good end before anything is copied."""
        try:
            existing = self._catalog.load(self._identifier)
        except NotFoundError:
            self._catalog.list_tables(self._identifier[:-1])
            existing = None
        if existing is not None:
            return self._earlier(existing, increment=increment)
        if increment:
            raise NotFoundError(
                f"there is no table {self._name!r} that could be updated; copy the table without {argument('increment')} first"
            )
        prefix = self._source.metadata.location if self._prefix is None else self._prefix
        if self._location is None and canonical(prefix) != canonical(self._source.metadata.location):
            raise UsageError(
                f"{argument('source_prefix')} {prefix!r} is not the table's location; give the {argument('location')} that takes "
                "its place"
            )
        location = self._catalog.default_location(self._identifier) if self._location is None else self._location
        change = change_of(prefix, location)
        own = self._wanted(change, self._uuid_of("table", change))
        place = Table(self._identifier, own, "", self._catalog.storage, self._catalog)
        try:
            neighbours(place, listener=self.listener, is_listed=False)
        except SafetyError as error:
            raise SafetyError(f"table {self._name!r} cannot be put there: {error.message}", **error.facts) from error
        return _Target(change=change, existing=None, wanted=own, storage=self._catalog.storage)

    def _earlier(self, existing: Table, *, increment: bool) -> _Target:
        said = existing.metadata.properties
        if said.get(STATE) is None or said.get(SOURCE_UUID) != str(self._source.metadata.table_uuid):
            raise UsageError(
                f"there is a table {self._name!r}, which is no copy of {self._source.full_name!r}; give another name"
            )
        change = change_of(said.get(SOURCE_PREFIX, ""), said.get(TARGET_PREFIX, ""))
        if self._prefix is not None and self._prefix.rstrip("/") != change.source.rstrip("/"):
            raise UsageError(f"the copy {self._name!r} was made with {argument('source_prefix')} {change.source!r}")
        if self._location is not None and canonical(self._location) != canonical(change.target):
            raise UsageError(f"the copy {self._name!r} lies at {change.target!r}; an increment goes there")
        if said[STATE] != state_of(existing.metadata):
            raise SafetyError(
                f"table {self._name!r} is not as the last copy has left it: others have changed it since, and would lose "
                "that; it was left as it is; copy the table to another name and place"
            )
        is_done = said.get(SOURCE_VERSION) == self._source.metadata_location
        if not is_done and not increment:
            raise UsageError(
                f"there is a copy {self._name!r} of an earlier version of the table; give {argument('increment')} to update it"
            )
        wanted = self._wanted(change, existing.metadata.table_uuid)
        return _Target(change=change, existing=existing, wanted=wanted, storage=existing.storage, is_done=is_done)

    def _wanted(self, change: PathChange, table_uuid: str | None) -> TableMetadata:
        source = self._source.metadata
        refuse_outside(paths_in_metadata(source), change)
        own = {
            SOURCE_UUID: str(source.table_uuid),
            SOURCE_VERSION: self._source.metadata_location,
            SOURCE_PREFIX: change.source,
            TARGET_PREFIX: change.target,
        }
        properties = {key: value for key, value in source.properties.items() if not key.startswith(OWN_PROPERTIES)}
        metadata = replace(source, metadata_log=(), table_uuid=table_uuid, properties=properties)
        metadata = relocated_metadata(metadata, change)
        return replace(metadata, properties={**metadata.properties, **own, STATE: state_of(metadata)})

    def _uuid_of(self, what: str, change: PathChange) -> str:
        """A uuid that is the same for the same source and target, so that a copy that is started again writes the same files."""
        source = self._source
        text = "\0".join((what, str(source.metadata.table_uuid), source.metadata.location, change.target))
        if what != "table":
            text += f"\0{source.metadata_location}"
        return str(uuid.UUID(bytes=blake2b(text.encode(), digest_size=16).digest(), version=4))

    def surveyed(self, target: _Target) -> CopiedTable:
        source, earlier = self._source, NOTHING_COPIED
        if target.existing is not None:
            earlier = EarlierCopy.at_target(target.existing.metadata, target.change, target.storage)
        copied = survey(source.metadata, source.storage, self._spark, target.change, earlier, target.storage)
        if target.existing is not None:
            # What cannot be committed is refused before anything is copied.
            increment_updates(target.existing.metadata, target.wanted)
        return copied

    def transferred(self, copied: CopiedTable, target: _Target, *, verify: bool) -> "_Transferred":
        """Copy the files that hold no paths; returns how many were not there."""
        source, plain = self._source, copied.plain
        files = [*zip(plain["path"].to_pylist(), plain["size_bytes"].to_pylist(), strict=True)]
        total = sum(size for _, size in files)
        limits = limits_of(self._spark)
        session = None if total <= limits.rewrite_bytes else started(self._spark)
        work = _Transfer(
            source=source.storage,
            target=WholeFiles(target.storage, source.runtime),
            change=target.change,
            verify=verify,
        )
        threads = requests_at_once([target.change.source, target.change.target])
        # Few files are shared out among all threads, too.
        turns = 1 if session is not None else 4 * threads
        most_bytes, most_files = min(_TASK_BYTES, total // turns + 1), min(_TASK_FILES, len(files) // turns + 1)
        tasks = [*packed(files, (lambda file: file[1], most_bytes), (lambda _: 1, most_files))]
        self.listener.on(StepStarted(_STEP, total, BYTES))
        files_count = copied_bytes = 0
        answers = finished_tasks(session, tasks, _copy_some, work, step=_STEP, threads=threads)
        for number, answer in answers:
            if isinstance(answer, IcekeepError):
                answers.close()
                raise answer
            files_count, copied_bytes = files_count + answer.files_count, copied_bytes + answer.bytes
            self.listener.on(StepAdvanced(_STEP, sum(size for _, size in tasks[number])))
        self.listener.on(StepFinished(_STEP, counted(files_count, "files")))
        return _Transferred(files_count=files_count, bytes=copied_bytes)

    def published(self, target: _Target, storage: Storage) -> Table:
        if target.existing is not None:
            return commit(target.existing, Increment(target.wanted), listener=self.listener).table
        name = f"00000-{self._uuid_of('version', target.change)}{compression_suffix(target.wanted)}.metadata.json"
        metadata_location = f"{metadata_directory(target.wanted)}/{name}"
        put_metadata(target.wanted, storage, metadata_location)
        return register_table(self._catalog, self._identifier, metadata_location, listener=self.listener)

    def result(
        self,
        target: _Target,
        copied: CopiedTable | None,
        status: str,
        published: Table | None = None,
        done: "_Transferred | None" = None,
    ) -> CopyResult:
        kinds = () if copied is None else copied.kinds(self._source.storage)
        now = published or (target.existing if target.is_done else None)
        return CopyResult(
            status=status,
            target_table=self._name,
            target_location=target.wanted.location,
            metadata_location=None if now is None else now.metadata_location,
            source_version=self._source.metadata_location,
            is_increment=target.existing is not None,
            snapshots_count=0 if copied is None else len(copied.snapshots),
            files_count=sum(one.files_count for one in kinds),
            bytes=sum(one.bytes for one in kinds),
            copied_files_count=0 if done is None else done.files_count,
            copied_bytes=0 if done is None else done.bytes,
            files=kinds,
        )


class _Transferred(msgspec.Struct, frozen=True, kw_only=True):
    files_count: int
    bytes: int


class _Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks need; can be pickled."""

    source: Storage
    target: WholeFiles
    change: PathChange
    verify: bool


def _copy_some(files: Sequence[tuple[str, int]], work: _Transfer) -> _Transferred:
    copied = [
        copy_file(work.source, path, work.target, work.change.path(path), size, verify=work.verify)
        for path, size in files
    ]
    return _Transferred(files_count=sum(size > 0 for size in copied), bytes=sum(copied))
