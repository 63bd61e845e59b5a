"""Parts of table metadata: snapshots, references, logs, statistics (spec, "Snapshots", Appendix C).

Each is a `JsonObject`, with an attribute for each key (`snapshot_id` for `snapshot-id`). Keys without an attribute are kept in
`extra` and written back unchanged, so that a commit never drops what a newer writer added.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from icekeep.decoding import from_plain
from icekeep.errors import InvalidTableError, OptionError, UsageError
from icekeep.spec.types import MAX_INT, MAX_LONG

MAIN = "main"
V = TypeVar("V", bound="JsonObject")


class JsonObject(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """One JSON object of the spec; null and absent are the same."""

    extra: Mapping[str, Any] = {}


def object_from_json(cls: type[V], value: Any, what: str) -> V:
    """Build one from decoded JSON; `what` names it in the `InvalidTableError` for another value."""
    if not isinstance(value, dict):
        raise InvalidTableError(f"{what} is {value!r}; it must be an object")
    names = _json_names(cls)
    own = {key: item for key, item in value.items() if key in names and item is not None}
    try:
        built = from_plain(own, cls)
    except msgspec.ValidationError as error:
        problem = f"{str(error)[:1].lower()}{str(error)[1:]}"
        if "[...]" in problem:
            # For a map the error does not name the key.
            not_texts = (
                f"{key!r} of its {name!r} is {entry!r}; it must be text"
                for name, item in own.items()
                for key, entry in (item.items() if isinstance(item, dict) else ())
                if not isinstance(entry, str)
            )
            problem = next(not_texts, problem)
        raise InvalidTableError(f"{what}: {problem}") from None
    if len(own) < len(value):
        extra = {key: item for key, item in value.items() if key not in names}
        return msgspec.structs.replace(built, extra=extra) if extra else built
    return built


def object_to_json(built: JsonObject) -> dict[str, Any]:
    """The non-null attributes, then the keys of `extra`."""
    out: dict[str, Any] = {}
    for key, attribute in _json_names(type(built)).items():
        value = getattr(built, attribute)
        if value is not None:
            out[key] = list(value) if isinstance(value, tuple) else value
    return out | dict(built.extra)


@cache
def _json_names(cls: type[JsonObject]) -> dict[str, str]:
    names = zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True)
    return {encoded: attribute for encoded, attribute in names if attribute != "extra"}


class Snapshot(JsonObject, frozen=True):
    """The state of a table at some time, `timestamp_ms` (epoch milliseconds): the files that its manifest list leads to.

    `manifests` (v1 only) lists manifest locations in place of a manifest list.
    """

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    sequence_number: int = 0
    manifest_list: str | None = None
    manifests: tuple[str, ...] | None = None
    summary: Mapping[str, str] | None = None
    schema_id: int | None = None
    first_row_id: int | None = None
    added_rows: int | None = None
    key_id: str | None = None

    @property
    def operation(self) -> str | None:
        """`append`, `replace`, `overwrite` or `delete`; `None` where the summary is missing (v1)."""
        return (self.summary or {}).get("operation")


class SnapshotRef(JsonObject, frozen=True):
    """A branch or a tag with its own retention (spec, "Snapshot Retention Policy"); `None` means the table's default."""

    snapshot_id: int
    type: Literal["branch", "tag"]
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None

    @property
    def is_branch(self) -> bool:
        return self.type == "branch"


_GREATEST = {"min_snapshots_to_keep": MAX_INT, "max_snapshot_age_ms": MAX_LONG, "max_ref_age_ms": MAX_LONG}
_BRANCH_LIMITS = ("min_snapshots_to_keep", "max_snapshot_age_ms")


def validated_ref(name: str, ref: SnapshotRef) -> SnapshotRef:
    """Return the reference if the spec allows it under this name, else raise `UsageError`, for a wrong limit `OptionError`."""
    if not name.strip():
        raise UsageError(f"{name!r} cannot be the name of a {ref.type}")
    if name == MAIN and not ref.is_branch:
        raise UsageError("main is a branch; it cannot become a tag")
    for limit, greatest in _GREATEST.items():
        given = getattr(ref, limit)
        if given is None:
            continue
        if limit in _BRANCH_LIMITS and not ref.is_branch:
            raise UsageError(f"{name!r} is a tag; only a branch can have {limit.replace('_', '-')}")
        if not 1 <= given <= greatest:
            raise OptionError(limit, given=given, expected=f"a whole number from 1 to {greatest}")
    return ref


def moved(ref: SnapshotRef | None, snapshot_id: int) -> SnapshotRef:
    """A reference at another snapshot with the same retention; a new branch if there was none."""
    if ref is None:
        return SnapshotRef(snapshot_id=snapshot_id, type="branch")
    return msgspec.structs.replace(ref, snapshot_id=snapshot_id)


class SnapshotLogEntry(JsonObject, frozen=True):
    """From `timestamp_ms` on, `snapshot_id` was the current snapshot."""

    timestamp_ms: int
    snapshot_id: int


class MetadataLogEntry(JsonObject, frozen=True):
    """A metadata file that was current until a later one replaced it."""

    timestamp_ms: int
    metadata_file: str


class StatisticsFile(JsonObject, frozen=True):
    """A Puffin file with statistics of one snapshot (spec, "Table Statistics"); blob metadata is kept as it is."""

    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int
    file_footer_size_in_bytes: int
    key_metadata: str | None = None
    blob_metadata: list[Any] = []


class PartitionStatisticsFile(JsonObject, frozen=True):
    """A file with statistics by partition of one snapshot (spec, "Partition Statistics")."""

    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int


# Keys of a snapshot's summary (Appendix F): those of Iceberg, of engines, and a user's own.
RESERVED = "Iceberg, an engine or icekeep writes itself"

_RESERVED = re.compile(
    r"(added|removed|deleted|total|changed|replaced|manifests|entries|partition|partitions|engine|published|source)[-.].*"
    r"|(icekeep|spark|flink|trino|presto|kafka|wap|iceberg)[-._].*"
    r"|operation|app-id|replace-partitions|trino_query_id|presto_query_id"
)


def is_reserved(key: str) -> bool:
    """Whether Iceberg, an engine or icekeep writes a key, or all keys that match a pattern with `*` at the end.

    >>> is_reserved("ticket"), is_reserved("total-records"), is_reserved("icekeep.*")
    (False, True, True)
    """
    return _RESERVED.fullmatch(key) is not None


def checked_properties(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A user's own entries in their order; raises `UsageError` for a reserved or unprintable key, or a value other than text."""
    for key, value in given.items():
        if not isinstance(key, str) or not key.strip() or not key.isprintable() or "*" in key:
            raise UsageError(f"{key!r} cannot be a key of a snapshot's summary: give printable text without `*`")
        if not isinstance(value, str):
            raise UsageError(f"the value of {key!r} in a snapshot's summary is {value!r}; give a text")
        if is_reserved(key):
            raise UsageError(
                f"{key!r} cannot be a key of your own in a snapshot's summary: it is one that {RESERVED}; choose another"
            )
    return tuple(given.items())


def carried(summary: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The entries of a summary whose keys match a pattern and are not reserved."""
    patterns = tuple(patterns)
    return {key: value for key, value in summary.items() if matching(key, patterns) is not None}


def matching(key: str, patterns: Iterable[str]) -> str | None:
    """The first pattern that a key matches, in whole or by the part before a final `*`; `None` for a reserved key."""
    if is_reserved(key):
        return None
    return next((p for p in patterns if key == p or (p.endswith("*") and key.startswith(p[:-1]))), None)
