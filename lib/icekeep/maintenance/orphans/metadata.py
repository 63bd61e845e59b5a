"""Metadata files that no metadata leads to, and what metadata in the log leads to beside the current one.

A metadata file in no log is what a commit that lost left behind, or a version that fell out of the log. It may also be that
of another table in the same place, or of another line of this one's history: then nothing here may be deleted, since that
metadata leads to files which ours does not.

Dead metadata does not stand in the way for ever: a file that was cut off while it was written leads nowhere once it is old, and
an operator may name tables that are dead by their uuid. A commit that is under way ends by itself. What a writer leaves that
wanted to make this very table once more, and found it there, leads to no file: PyIceberg's `create_table_if_not_exists` writes
the metadata of a new table before it asks the catalog, each time.

Statistics that only older metadata in the log names stay too: a rollback of the catalog may need them. Of older metadata a file
leads to nothing that is gone, or was cut off: nobody can roll back to it. Nor does one outside of the table's locations that is
not ours to read, as of a table that was moved: nothing is deleted there.
"""

import re
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.catalog.filesystem import CLOCK_GRAIN_MS, MOVED_ASIDE, VERSION_AGE_KEPT_MS, VERSIONS_KEPT
from icekeep.catalog.metadata_files import METADATA_NAME, parse_version_name
from icekeep.decoding import from_json, from_plain
from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.delete.locations import DeletableLocations, deletable_locations
from icekeep.maintenance.delete.reachable import (
    NOTHING_SEEN,
    FileKind,
    GarbageFile,
    ReachableLists,
    Reached,
    fails_closed,
    garbage_table,
    read_reached,
)
from icekeep.maintenance.orphans.listing import LISTED
from icekeep.maintenance.orphans.options import DEFAULT_AGE_MS
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.metadata import unpacked_head
from icekeep.spec.types import MIB
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage
from icekeep.storage.locations import canonical, canonical_or_text

T = TypeVar("T")

_MAX_BYTES = 4 << 30
_MAGICS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")
"""The first bytes of packed files: gzip, zstd."""
_CUT_OFF = "truncated"
"""What msgspec says of text that ends too early, and of no other."""


class CutOffError(Exception):
    """Text that ended before its JSON did, so that nobody can read it.

    What is wrong in another way may be in a format that is not known here.
    """


def parse_metadata_text(data: bytes, wanted: type[T]) -> T:
    """What is wanted of a metadata file.

    Raises:
        CutOffError: it is empty, or ends in the middle.
        msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error: it is broken in another way.
    """
    # A file that was made longer and never filled, as a crash leaves it on some disks, is as good as empty.
    if any(magic.startswith(data) for magic in _MAGICS) or not data.strip(b"\0"):
        raise CutOffError("it is empty")
    text = unzipped(data)
    try:
        return from_json(text, wanted)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if _ends_early(text):
            raise CutOffError("it ends in the middle") from error
        raise


def unzipped(data: bytes) -> bytes:
    """A metadata file's text, plain or packed, as far as it goes; raises `zlib.error` where it is broken."""
    return unpacked_head(data, _MAX_BYTES)


def _ends_early(text: bytes) -> bool:
    # A number that was cut off is no number, until one more digit follows.
    for more in (b"", b"0"):
        try:
            msgspec.json.decode(text + more)
        except msgspec.DecodeError as error:
            if _CUT_OFF in str(error):
                return True
    return False


_WHOLE_BYTES = MIB
_HEAD_BYTES = 64 << 10

_MOVED_ASIDE = re.compile(MOVED_ASIDE)

_UUID_AT_HEAD = re.compile(rb'\s*\{\s*(?:"format-version"\s*:\s*\d+\s*,\s*)?"table-uuid"\s*:\s*"([0-9A-Fa-f-]{36})"')
"""As all known writers begin; where a file begins otherwise it is read whole."""


class Sort(StrEnum):
    """What an unnamed file is taken for; the first two go, under these kinds."""

    ORPHAN = FileKind.ORPHAN.value
    METADATA = FileKind.METADATA.value
    YOUNG = "young"
    VERSION = "version"
    GONE = "gone"
    FOREIGN = "foreign"
    FORK = "fork"
    UNBORN = "unborn"
    UNFINISHED = "unfinished"


SORTED = pa.schema([*LISTED, pa.field("kind", pa.string()), pa.field("reason", pa.string())])
"""Unnamed files with their `Sort`; what is wrong about metadata that stops the run is the `reason`."""


class MetadataFileSorter(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the table; can be pickled.

    Attributes:
        table_uuid: `None` for a table of version 1 that has none: then every metadata file in no log is a stranger's.
        metadata_location: of the current metadata file.
        last_sequence_number: which the current metadata has.
        head_ms: when that file was written, by the store's clock.
        before_ms: files written before are old enough.
        last_version: the number in the current file's name, if catalogs may find the table by it.
        now_ms: the earlier of the clocks.
        living: runs that are at work: files with such a name in theirs are not old enough, whatever their age.
        table_location: where the table lies, in canonical form.
        columns: the names of its top-level columns, in each of its schemas.
        ignored_uuids: in lower case, of tables whose old metadata leads nowhere; that of this table means old metadata that is
            further on than the current one.
    """

    table_uuid: str | None
    metadata_location: str
    last_sequence_number: int
    head_ms: int
    before_ms: int
    last_version: int | None
    now_ms: int
    storage: Storage
    table_location: str = ""
    columns: frozenset[tuple[str, ...]] = frozenset()
    living: frozenset[str] = frozenset()
    ignored_uuids: tuple[str, ...] = ()

    def sort(self, files: pa.RecordBatch) -> pa.RecordBatch:
        """Files of `LISTED` that no metadata leads to, as rows of `SORTED`.

        Raises:
            UnavailableError, UsageError: a metadata file could not be looked at.
        """
        is_old = pc.fill_null(pc.less(files["modified_ms"], self.before_ms), False)
        for run in self.living:
            is_old = pc.and_not(is_old, pc.match_substring(files["location"], run))
        kinds = pc.if_else(is_old, Sort.ORPHAN.value, Sort.YOUNG.value)
        reasons = pa.nulls(files.num_rows, pa.string())
        is_metadata = pc.match_substring_regex(files["location"], METADATA_NAME)
        if is_metadata.true_count:
            described = files.select(["location", "size_bytes", "modified_ms"]).filter(is_metadata).to_pylist()
            with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(described))) as pool:
                answers = [*pool.map(lambda file: self._judged(**file), described)]
            kinds = pc.replace_with_mask(kinds, is_metadata, pa.array([kind.value for kind, _ in answers]))
            found = pa.array([reason for _, reason in answers], pa.string())
            reasons = pc.replace_with_mask(reasons, is_metadata, found)
        return pa.record_batch([*files.columns, kinds, reasons], schema=SORTED)

    def _judged(self, location: str, size_bytes: int | None, modified_ms: int | None) -> tuple[Sort, str | None]:
        try:
            found = self._read(location, size_bytes, modified_ms)
        except MissingFileError:
            return Sort.GONE, None
        except CutOffError as error:
            if modified_ms is None or modified_ms >= min(self.before_ms, self.now_ms - DEFAULT_AGE_MS):
                return Sort.UNFINISHED, f"{location!r} cannot be read ({error}): it may still be written"
            return self._leading_nowhere(location, modified_ms), None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error) as error:
            return Sort.FOREIGN, f"{location!r} cannot be read ({first_line(error)})"
        return self._judged_by_table(found, location, modified_ms)

    def _judged_by_table(self, found: "_Document", location: str, modified_ms: int | None) -> tuple[Sort, str | None]:
        """What whole metadata is taken for, by the table that it is of."""
        if found.table_uuid is None:
            return Sort.FOREIGN, f"{location!r} has no table-uuid"
        uuid = found.table_uuid.lower()
        is_ours = self.table_uuid is not None and uuid == self.table_uuid.lower()
        is_young = modified_ms is None or modified_ms >= self.before_ms
        is_ignored = uuid in self.ignored_uuids and not is_young
        if not is_ours and not is_ignored:
            if self._is_unborn(found):
                return Sort.UNBORN, None
            return Sort.FOREIGN, f"{location!r} is of table {found.table_uuid}"
        if is_ours and not is_ignored and self._is_ahead(found):
            if is_young:
                return Sort.UNFINISHED, f"{location!r} descends from the current metadata: a commit may be under way"
            return Sort.FORK, f"{location!r}"
        if is_young:
            return Sort.YOUNG, None
        return self._leading_nowhere(location, modified_ms), None

    def _leading_nowhere(self, location: str, modified_ms: int | None) -> Sort:
        is_version = modified_ms is not None and may_be_found_by_name(
            location, modified_ms, self.last_version, self.now_ms
        )
        # What a drop has moved aside stays for `register`.
        return Sort.VERSION if is_version or _MOVED_ASIDE.search(location) else Sort.METADATA

    def _read(self, location: str, size_bytes: int | None, modified_ms: int | None) -> "_Document":
        # What came before the current file cannot descend from it: of that only the table's id matters, which comes first.
        may_descend = modified_ms is None or modified_ms >= self.head_ms - CLOCK_GRAIN_MS
        if not may_descend and size_bytes is not None and size_bytes > _WHOLE_BYTES:
            with self.storage.open(location) as stream:
                match = _UUID_AT_HEAD.match(unzipped(stream.read(_HEAD_BYTES)))
            if match is not None:
                return _Document(table_uuid=match[1].decode())
        return parse_metadata_text(self.storage.read(location), _Document)

    def _is_ahead(self, found: "_Document") -> bool:
        """Whether metadata descends from ours, or is further on than it, while ours does not know of it."""
        ours = canonical(self.metadata_location)
        # One more is what an attempt to commit has that lost to changes without snapshots.
        return found.last_sequence_number > self.last_sequence_number + 1 or any(
            _is_location(entry.metadata_file, ours) for entry in found.metadata_log or ()
        )

    def _is_unborn(self, found: "_Document") -> bool:
        """Whether metadata is of another table that was to be this one, and never had a snapshot, nor another state.

        Should it live in another catalog for all that, then its next metadata, with its first snapshot, lies beside it.
        """
        try:
            first = from_plain(msgspec.structs.asdict(found), _FirstState)
        except msgspec.ValidationError:
            return False
        has_places = any(name.startswith("write.") and name.endswith("path") for name in first.properties or ())
        return (
            not (first.snapshots or found.metadata_log or found.last_sequence_number or has_places)
            and first.current_snapshot_id in (None, -1)
            and _is_location(first.location.rstrip("/"), self.table_location)
            and first.columns in self.columns
        )


def may_be_found_by_name(location: str, modified_ms: int, last_version: int | None, now_ms: int) -> bool:
    """Whether a catalog may still take a metadata file for a version of its table: then it stays, though it is in no log."""
    version = parse_version_name(location.rpartition("/")[2])
    if version is None:
        return False
    return last_version is None or version > last_version - VERSIONS_KEPT or modified_ms >= now_ms - VERSION_AGE_KEPT_MS


class _Entry(msgspec.Struct):
    metadata_file: str = msgspec.field(name="metadata-file", default="")


class _Column(msgspec.Struct):
    name: str = ""


class _Schema(msgspec.Struct):
    fields: list[_Column] = []


class _Document(msgspec.Struct, rename="kebab"):
    """Of a metadata file what tells whose it is; what only a table's first state is asked for may be anything."""

    table_uuid: str | None = None
    last_sequence_number: int = 0
    metadata_log: list[_Entry] | None = None
    location: Any = None
    current_snapshot_id: Any = None
    snapshots: Any = None
    properties: Any = None
    schemas: Any = None
    schema: Any = None


class _FirstState(msgspec.Struct):
    location: str
    current_snapshot_id: int | None
    snapshots: list[Any] | None
    properties: dict[str, Any] | None
    schemas: list[_Schema] | None
    schema: _Schema | None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of the columns of a table that has had one schema; `schema` is that of version 1."""
        all_of = self.schemas or ([] if self.schema is None else [self.schema])
        return tuple(column.name for column in all_of[0].fields) if len(all_of) == 1 else None


def _is_location(text: str, key: str) -> bool:
    try:
        return canonical(text) == key
    except IcekeepError:
        return False


_HELD_BYTES = 256 * MIB
"""How many bytes of older metadata are held at once: one file may take hundreds of megabytes while it is read."""

_GROWTH = 11
"""About how much more than its file a packed text of metadata takes, and the file itself."""


def reached_by(
    table: Table, spark: SparkSource, *, trust_manifest_list: bool, since: ReachableLists = NOTHING_SEEN
) -> Reached:
    """What a table leads to, through the metadata in its log as well; raises as `read_reached`.

    Args:
        since: what was read before, and is left out.
    """
    metadata, storage = table.metadata, table.storage
    reached = read_reached(
        metadata, table.metadata_location, storage, spark, trust_manifest_list=trust_manifest_list, since=since
    )
    logged = dict.fromkeys(entry.metadata_file for entry in metadata.metadata_log)
    with fails_closed():
        statistics = _statistics_of([one for one in logged if one not in since.metadata_files], table)
    older = garbage_table(GarbageFile(FileKind.STATISTICS, one) for some in statistics.values() for one in some)
    seen = msgspec.structs.replace(reached.seen, metadata_files=since.metadata_files.union(statistics))
    return msgspec.structs.replace(reached, named=pa.concat_tables([reached.named, older]), seen=seen)


def former_statistics(table: Table, reached: Reached) -> pa.Array:
    """The locations of statistics that are reached through older metadata alone: they were taken off the table since."""
    metadata = table.metadata
    paths = [file.statistics_path for file in metadata.statistics]
    paths += [file.statistics_path for file in metadata.partition_statistics]
    current = {*map(canonical_or_text, paths)}
    named = reached.named.filter(pc.equal(reached.named["kind"], FileKind.STATISTICS.value))["location"]
    former = dict.fromkeys(one for one in named.to_pylist() if canonical_or_text(one) not in current)
    return pa.array(former, pa.string())


class _Named(msgspec.Struct):
    statistics_path: str = msgspec.field(name="statistics-path", default="")


class _Statistics(msgspec.Struct):
    """Of a metadata file only what names statistics."""

    statistics: list[_Named] | None = None
    partition_statistics: list[_Named] | None = msgspec.field(name="partition-statistics", default=None)


def _statistics_of(locations: Sequence[str], table: Table) -> dict[str, list[str]]:
    """The statistics that each of some older metadata files names; those that nobody can read are left out.

    Raises what keeps a file of it from being read, unless that is gone.
    """
    if not locations:
        return {}
    own, storage = deletable_locations(table), table.storage
    with ThreadPoolExecutor(_files_at_once(table)) as pool:
        found = pool.map(lambda location: _statistics_named_by(location, own, storage), locations)
        return {location: files for location, files in zip(locations, found, strict=True) if files is not None}


def _files_at_once(table: Table) -> int:
    """How many metadata files are read at a time, by the size of the newest: those before it are about as large."""
    newest = table.storage.head(table.metadata_location)
    file_bytes = 1 if newest is None else max(1, newest.size_bytes)
    return max(1, min(REQUESTS_AT_ONCE, _HELD_BYTES // (_GROWTH * file_bytes)))


def _statistics_named_by(location: str, own: DeletableLocations, storage: Storage) -> list[str] | None:
    try:
        data = storage.read(location)
    except MissingFileError:
        return None
    except (UsageError, UnsupportedError):
        if own.holds(location):
            raise
        return None
    try:
        found = parse_metadata_text(data, _Statistics)
    except CutOffError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error) as error:
        raise InvalidTableError(
            f"{location!r} in the metadata log cannot be read ({first_line(error)}); if it is broken for good, move it away",
            location=location,
        ) from error
    files = (*(found.statistics or ()), *(found.partition_statistics or ()))
    return [file.statistics_path for file in files if file.statistics_path]
