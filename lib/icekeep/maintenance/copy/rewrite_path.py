"""`rewrite_table_path`: a table's metadata staged for another prefix, and the list of files that a copy is made of.

    versions read -> survey -> deletes, manifests and lists staged -> metadata files staged -> the list, last

Nothing is committed, and no file of the table is changed or removed. What is staged can be thrown away at any time. Where the
staging location is given, a run that was killed is started again with it, and goes on.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import NotFoundError, UnsupportedError, UsageError, argument
from icekeep.events import SILENT, Listener, Warned, unfailing
from icekeep.maintenance.copy.files import (
    NOTHING_COPIED,
    CopiedFilesOfKind,
    CopiedKind,
    CopiedTable,
    EarlierCopy,
    change_of,
    refuse_outside,
    statistics_of,
    survey,
)
from icekeep.maintenance.copy.placing import WholeFiles, put
from icekeep.maintenance.copy.relocate import put_metadata, write_relocated
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.session import SparkSource, check_source
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.relocation import PathChange, paths_in_metadata, relocated_metadata
from icekeep.storage.base import head_many
from icekeep.storage.locations import canonical, is_location

FILE_LIST = "file-list"
_STAGING = "copy-table-staging"


class RewritePathResult(Rendered, frozen=True, kw_only=True):
    """What was staged, or would be; the first four as Iceberg's procedure returns them.

    Attributes:
        status: `planned` or `done`.
        latest_version: name of the newest metadata file that is rewritten, by which the copy can be registered.
        file_list_location: a CSV file with source and target of every file to copy; `None` where none was asked for.
        rewritten_manifest_file_paths_count: manifests that were rewritten.
        rewritten_delete_file_paths_count: position delete files that were rewritten, and deletion vectors.
        staging_location: the directory of what was staged; `None` of a plan that makes up its own.
        target_metadata_location: where the newest metadata file is once the files are copied.
        files: to copy, by kind; bytes as they are at the source.
    """

    status: str
    latest_version: str
    file_list_location: str | None
    rewritten_manifest_file_paths_count: int
    rewritten_delete_file_paths_count: int
    staging_location: str | None
    target_metadata_location: str
    files_count: int
    bytes: int
    files: tuple[CopiedFilesOfKind, ...]


class _Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata files that are rewritten, the newest first, and the one after which they begin."""

    rewritten: Mapping[str, TableMetadata]
    start: TableMetadata | None

    @property
    def end(self) -> str:
        return next(iter(self.rewritten))


def rewrite_table_path(  # noqa: PLR0913 - the arguments of Iceberg's procedure
    table: Table,
    spark: SparkSource = None,
    *,
    target_prefix: str = "",
    source_prefix: str | None = None,
    start_version: str | None = None,
    end_version: str | None = None,
    staging_location: str | None = None,
    create_file_list: bool = True,
    listener: Listener = SILENT,
) -> RewritePathResult:
    """Stage a copy of a table's metadata with other paths in it, and list what has to be copied (Iceberg's procedure).

    Metadata files, manifest lists, manifests, position delete files and deletion vectors are rewritten; data files, equality
    deletes and statistics are copied as they are, by whatever copies files. Then the copy is registered by its newest metadata
    file.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. Only where there are
            many files Spark has a part in it.
        target_prefix: what all paths begin with at the target; must be given.
        source_prefix: what they begin with now; by default the table's location.
        start_version: the metadata file, by its name or location, of which the target has a copy: only what came after it is
            rewritten and listed.
        end_version: the last metadata file to rewrite; by default the current one.
        staging_location: a directory for what is written; by default a new one below the table's metadata.
        create_file_list: whether the list of files is written.

    Raises:
        UsageError: a prefix is no location, or one lies in the other, or the staging location is the source.
        NotFoundError: the table's metadata log has no such version, or its file is gone.
        SafetyError: files of the table are not under the source prefix, which names them; or staged files of another rewrite are
            in the way.
        UnsupportedError: the table is encrypted, or unknown keys of its metadata name files.
        InvalidTableError, MissingFileError: files of the table cannot be read whole.
    """
    check_source(spark)
    source = table.metadata.location if source_prefix is None else source_prefix
    asked = _Asked(table, spark, change_of(source, target_prefix), unfailing(listener))
    with spark_run("rewrite_table_path", table.name, asked.listener):
        versions, copied = asked.surveyed(start_version, end_version)
        staging = _staging(table, staging_location, versions.end, source)
        target, placing = WholeFiles(table.storage, table.runtime), replace(copied.change, target=staging)
        relocated = write_relocated(copied, table.storage, target, placing, spark, asked.listener)
        for location, metadata in versions.rewritten.items():
            put_metadata(relocated_metadata(metadata, copied.change), target, placing.path(location))
        list_location = None
        if create_file_list:
            staged = [*relocated.deletes, *relocated.manifests, *relocated.manifest_lists, *versions.rewritten]
            pairs = {(placing.path(path), copied.change.path(path)) for path in staged}
            pairs |= {(path, copied.change.path(path)) for path in copied.plain["path"].to_pylist()}
            list_location = f"{staging.rstrip('/')}/{FILE_LIST}"
            put(target, list_location, "".join(_lines(sorted(pairs))).encode(), lambda there: False)
        return asked.result(versions, copied, "done", staging, list_location)


def plan_rewrite_table_path(  # noqa: PLR0913 - the arguments of Iceberg's procedure
    table: Table,
    spark: SparkSource = None,
    *,
    target_prefix: str = "",
    source_prefix: str | None = None,
    start_version: str | None = None,
    end_version: str | None = None,
    staging_location: str | None = None,
    create_file_list: bool = True,
    listener: Listener = SILENT,
) -> RewritePathResult:
    """What `rewrite_table_path` would stage and list, with all checks; nothing is written. Raises as it does."""
    check_source(spark)
    source = table.metadata.location if source_prefix is None else source_prefix
    asked = _Asked(table, spark, change_of(source, target_prefix), unfailing(listener))
    with spark_run("rewrite_table_path", table.name, asked.listener):
        versions, copied = asked.surveyed(start_version, end_version)
        staging = None
        if staging_location is not None:
            staging = _staging(table, staging_location, versions.end, source)
        where = f"{staging.rstrip('/')}/{FILE_LIST}" if create_file_list and staging is not None else None
        return asked.result(versions, copied, "planned", staging, where)


class _Asked:
    """A table and the prefixes that were asked for, and what comes of them in a plan and a run alike."""

    def __init__(self, table: Table, spark: SparkSource, change: PathChange, listener: Listener) -> None:
        self._table, self._spark, self._change, self.listener = table, spark, change, listener

    def surveyed(self, start: str | None, end: str | None) -> tuple[_Versions, CopiedTable]:
        versions = self._versions(start, end)
        storage = self._table.storage
        metadata, earlier = versions.rewritten[versions.end], NOTHING_COPIED
        if versions.start is not None:
            earlier = EarlierCopy.at_source(versions.start, metadata, self._change, storage)
        copied = survey(metadata, storage, self._spark, self._change, earlier, storage)
        named = (one for old in versions.rewritten.values() for one in paths_in_metadata(old))
        refuse_outside(named, self._change)
        refuse_outside((("metadata file", one) for one in versions.rewritten), self._change)
        logged = (
            ("metadata file", one.metadata_file) for old in versions.rewritten.values() for one in old.metadata_log
        )
        refuse_outside(logged, self._change)
        return versions, copied.with_more(self._older_statistics(versions, earlier))

    def result(
        self, versions: _Versions, copied: CopiedTable, status: str, staging: str | None, list_location: str | None
    ) -> RewritePathResult:
        storage = self._table.storage
        sizes = [0 if one is None else one.size_bytes for one in head_many([*versions.rewritten], storage)]
        metadata_files = CopiedFilesOfKind(kind=CopiedKind.METADATA.value, files_count=len(sizes), bytes=sum(sizes))
        kinds = (*copied.kinds(storage), metadata_files)
        return RewritePathResult(
            status=status,
            latest_version=_name(versions.end),
            file_list_location=list_location,
            rewritten_manifest_file_paths_count=len(copied.manifests),
            rewritten_delete_file_paths_count=copied.deletes_count,
            staging_location=staging,
            target_metadata_location=self._change.path(versions.end),
            files_count=sum(one.files_count for one in kinds),
            bytes=sum(one.bytes for one in kinds),
            files=kinds,
        )

    def _versions(self, start: str | None, end: str | None) -> _Versions:
        table = self._table
        logged = [*(one.metadata_file for one in table.metadata.metadata_log), table.metadata_location]
        last = len(logged) - 1 if end is None else _position(logged, end, "end_version")
        first = -1 if start is None else _position(logged, start, "start_version")
        if start is not None and first >= last:
            raise UsageError(
                f"{argument('start_version')} {_name(logged[first])!r} is not older than {_name(logged[last])!r}, at which the "
                "rewrite ends: nothing came between them"
            )
        rewritten: dict[str, TableMetadata] = {}
        for location in reversed(logged[first + 1 : last + 1]):
            metadata = self._read(location)
            if metadata is not None:
                rewritten[location] = metadata
            elif location == logged[last]:
                raise NotFoundError(f"metadata file {location!r} is in the table's log, and is not there any more")
            else:
                self.listener.on(Warned(f"metadata file {location!r} of the log is gone, and is left out"))
        start_metadata = None if first < 0 else self._read(logged[first])
        if first >= 0 and start_metadata is None:
            raise NotFoundError(
                f"metadata file {logged[first]!r} is in the table's log, and is not there any more: what came after it is not "
                f"known; rewrite without {argument('start_version')}"
            )
        return _Versions(rewritten=rewritten, start=start_metadata)

    def _read(self, location: str) -> TableMetadata | None:
        table = self._table
        if location == table.metadata_location:
            return table.metadata
        if table.storage.head(location) is None:
            return None
        return parse_metadata(table.storage.read(location), location)

    def _older_statistics(self, versions: _Versions, earlier: EarlierCopy) -> list[tuple[str, CopiedKind, int]]:
        """Statistics files that only older metadata files name, as far as they are there still."""
        end = versions.rewritten[versions.end]
        now = {self._change.below(path) for path, _, _ in statistics_of(end)} | earlier.statistics
        older = dict.fromkeys(one for metadata in versions.rewritten.values() for one in statistics_of(metadata))
        gone = [one for one in older if self._change.below(one[0]) not in now]
        found = head_many([path for path, _, _ in gone], self._table.storage)
        return [one for one, info in zip(gone, found, strict=True) if info is not None]


def _position(logged: Sequence[str], version: str, name: str) -> int:
    """The last place of a version in the log, by its location or its name."""
    for position in reversed(range(len(logged))):
        if version in (logged[position], _name(logged[position])):
            return position
    raise NotFoundError(
        f"{argument(name)} {version!r} is not in the table's metadata log, which goes from {_name(logged[0])!r} to "
        f"{_name(logged[-1])!r}",
        version=version,
    )


def _staging(table: Table, location: str | None, end: str, source_prefix: str) -> str:
    if location is None:
        return f"{end.rpartition('/')[0]}/{_STAGING}-{table.runtime.new_uuid()}/"
    if not is_location(location):
        raise UsageError(
            f"{argument('staging_location')} {location!r} is no location; give it as SCHEME://PATH or /PATH"
        )
    if canonical(location) == canonical(source_prefix):
        raise UsageError(
            f"{argument('staging_location')} {location!r} is the source prefix, where the table's own files have these names; "
            "give another directory"
        )
    return location.rstrip("/") + "/"


def _lines(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The lines of the list, as Iceberg's procedure writes them: nothing is quoted."""
    for source, target in pairs:
        for path in (source, target):
            if "," in path or "\n" in path or "\r" in path:
                raise UnsupportedError(
                    f"path {path!r} has a comma or a line break, and the list of files quotes nothing; use copy_table, which "
                    "needs no list",
                    location=path,
                )
        yield f"{source},{target}\n"


def _name(location: str) -> str:
    return location.rpartition("/")[2]
