"""Table properties: readers of each kind of value, which raise `PropertyError` for a wrong one.

Case does not matter where Iceberg Java ignores it. Spaces do: Java refuses them or takes the value for another one. Two groups of
properties are read here as a whole: which metrics are kept of each column (`write.metadata.metrics.*`), and where files go
(`write.data.path` and the like; spec, Appendix F "Path Construction").
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeVar

import mmh3
import msgspec

from icekeep.errors import PropertyError, UnsupportedError, argument
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder
from icekeep.spec.transforms import Day, Hour, Identity, Month, Truncate, Year
from icekeep.spec.types import ListType, MapType, NestedField, PrimitiveType, StructType, Type, child_fields

V = TypeVar("V")

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def wrong_property(key: str, text: str, remedy: str) -> PropertyError:
    """The error for a value that a property cannot take; `remedy` completes "set ..."."""
    return PropertyError(f"table property {argument(repr(key))} is {text!r}; set {remedy}", property=key)


def choice(properties: Mapping[str, str], key: str, default: str, choices: Mapping[str, V]) -> V:
    """One of `choices` by name, whose case does not matter; raises `PropertyError` for any other text."""
    text = properties.get(key, default)
    name = text.lower()
    if name not in choices:
        *others, last = map(repr, choices)
        raise wrong_property(key, text, f"{', '.join(others)} or {last}")
    return choices[name]


def boolean_property(properties: Mapping[str, str], key: str, default: bool) -> bool:
    """`true` or `false`; raises `PropertyError` for anything else, which Java silently takes for false."""
    text = properties.get(key)
    return default if text is None else choice(properties, key, text, {"true": True, "false": False})


def is_true(properties: Mapping[str, str], key: str, default: bool) -> bool:
    """Whether a property is `true`; anything else is false, as in Java.

    For properties that let files be deleted: false is the safe value, and an error might come after a commit has landed.
    """
    return properties.get(key, str(default)).lower() == "true"


def whole_number(
    properties: Mapping[str, str], key: str, default: int, least: int | None = 0, most: int | None = None
) -> int:
    """A whole number as Java reads it, digits with an optional sign; raises `PropertyError` for one out of bounds too."""
    text = properties.get(key)
    if text is None:
        return default
    value = int(text) if _WHOLE.fullmatch(text) else None
    if value is None or (least is not None and value < least) or (most is not None and value > most):
        limits = "" if least is None else f", {least} or more" if most is None else f", {least} to {most}"
        raise wrong_property(key, text, f"a whole number{limits}")
    return value


def retry_number(properties: Mapping[str, str], key: str, default: int) -> int:
    """A number of retries or milliseconds to wait; below 0 means 0, as in Java's retries."""
    return max(0, whole_number(properties, key, default, least=None))


def probability(properties: Mapping[str, str], key: str, default: float) -> float:
    """A number above 0 and below 1; raises `PropertyError` for anything else."""
    text = properties.get(key)
    if text is None:
        return default
    value = float(text) if _DECIMAL.fullmatch(text) else 0.0
    if not 0 < value < 1:
        raise wrong_property(key, text, "a number between 0 and 1")
    return value


_METRICS_DEFAULT = "write.metadata.metrics.default"
_METRICS_COLUMN = "write.metadata.metrics.column."
_METRICS_LIMIT = "write.metadata.metrics.max-inferred-column-defaults"
_DEFAULT_LIMIT = 100
_TRUNCATE = re.compile(r"truncate\(([0-9]{1,9})\)")
_ORDERED = (Identity, Truncate, Year, Month, Day, Hour)


class MetricsMode(msgspec.Struct, frozen=True):
    """The metrics kept of one column.

    Attributes:
        counts: of values, nulls and NaNs, and the size in bytes.
        bounds: lower and upper bounds as well.
        length: the most code points or bytes of a bound of text or bytes; no limit if None.
    """

    counts: bool
    bounds: bool
    length: int | None = None


NONE = MetricsMode(counts=False, bounds=False)
COUNTS = MetricsMode(counts=True, bounds=False)
FULL = MetricsMode(counts=True, bounds=True)
DEFAULT = MetricsMode(counts=True, bounds=True, length=16)
"""`truncate(16)`."""


def metrics_modes(
    properties: Mapping[str, str], schema: Schema, sort_order: SortOrder | None = None
) -> dict[int, MetricsMode]:
    """The mode of every primitive field of a schema, by field id, as Iceberg Java's `MetricsConfig` chooses it.

    Where no property sets a default and the schema has more columns than `max-inferred-column-defaults`, only that many
    get metrics: of each struct its own fields before those nested in them. Columns that the table is sorted by keep
    bounds even then. Keys that name no column of the schema are ignored, since columns come and go.

    An invalid mode is a `PropertyError`: Java takes it for the default, which would cost pruning for years unnoticed.
    """
    fields = {f.field_id: f for f in schema.fields_by_id.values() if isinstance(f.type, PrimitiveType)}
    default = _mode(properties, _METRICS_DEFAULT, DEFAULT)
    modes: dict[int, MetricsMode] = {}
    if _METRICS_DEFAULT not in properties:
        limit = whole_number(properties, _METRICS_LIMIT, _DEFAULT_LIMIT, least=None)
        # As in Java, where a limit below 0 counts as not set.
        limit = limit if limit >= 0 else _DEFAULT_LIMIT
        if _counted(schema.as_struct()) > limit:
            default = NONE
            modes = dict.fromkeys(islice(_by_precedence(schema.as_struct()), limit), DEFAULT)
    for field in () if sort_order is None else sort_order.fields:
        if isinstance(field.transform, _ORDERED):
            modes[field.source_id] = default if default.bounds else DEFAULT
    for key in properties:
        if key.startswith(_METRICS_COLUMN):
            # Read for missing columns too, so that mistakes show.
            mode = _mode(properties, key, default)
            modes[schema.ids_by_name.get(key.removeprefix(_METRICS_COLUMN), 0)] = mode
    return {field_id: modes.get(field_id, default) for field_id in fields}


def _mode(properties: Mapping[str, str], key: str, default: MetricsMode) -> MetricsMode:
    text = properties.get(key)
    if text is None:
        return default
    match text.lower():
        case "none":
            return NONE
        case "counts":
            return COUNTS
        case "full":
            return FULL
    truncate = _TRUNCATE.fullmatch(text.lower())
    if truncate is None or int(truncate[1]) < 1:
        raise wrong_property(key, text, "'none', 'counts', 'full', or 'truncate(N)' with N of 1 or more")
    return msgspec.structs.replace(DEFAULT, length=int(truncate[1]))


def _counted(type_: Type) -> int:
    """The number of columns that counts for the limit: primitives, and structs that are fields of structs."""
    if isinstance(type_, ListType | MapType):
        return sum(isinstance(c.type, PrimitiveType) + _counted(c.type) for c in child_fields(type_))
    return sum(isinstance(c.type, PrimitiveType | StructType) + _counted(c.type) for c in child_fields(type_))


def _by_precedence(type_: Type) -> Iterator[int]:
    """Ids of primitive fields in the order in which they get metrics: shallow ones first."""
    children: tuple[NestedField, ...] = child_fields(type_)
    for child in children:
        if isinstance(child.type, PrimitiveType):
            yield child.field_id
    for child in children:
        yield from _by_precedence(child.type)


OWN_DIRECTORY = ".icekeep"
"""The directory of icekeep's own files in a table; the dot hides it from every engine's orphan removal."""

_DATA_PATH = "write.data.path"
_PROVIDER = "write.location-provider.impl"
_HASH_BITS = 20


class DataLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where a table's new data files go.

    Attributes:
        directory: the one above all of them, without a slash at the end.
        hashed: whether directories named by a hash of the rest of the path spread them over an object store's key space.
        partitioned_paths: whether the partition's values are in the path; they always are without hashing.
        context: the last two names of the table's location, which distinguish tables that share one `directory`.
    """

    directory: str
    hashed: bool = False
    partitioned_paths: bool = True
    context: str = ""

    def location(self, file_name: str, partition_path: str = "") -> str:
        """The location of a new data file by its name, which must be unique in the table."""
        path = "/".join(filter(None, [partition_path if self.partitioned_paths else "", file_name]))
        if not self.hashed:
            return f"{self.directory}/{path}"
        # The low bits of the path's hash as names of directories: three of 4 bits, then one of 8.
        bits = format(mmh3.hash(path.encode(), signed=False) % 2**_HASH_BITS, f"0{_HASH_BITS}b")
        directories = "/".join((bits[:4], bits[4:8], bits[8:12], bits[12:]))
        if self.context or self.partitioned_paths:
            return "/".join([self.directory, *filter(None, [directories, self.context, path])])
        # Without a partition's directory below it, the last part of the hash would be a directory for each file.
        return f"{self.directory}/{directories}-{path}"


def data_layout(table_location: str, properties: Mapping[str, str]) -> DataLayout:
    """Read the table properties that say where data files go, as Iceberg Java reads them.

    Raises `PropertyError` for an invalid or withdrawn property, `UnsupportedError` for a location provider in Java code.
    """
    if _PROVIDER in properties:
        raise UnsupportedError(
            f"table property {_PROVIDER!r} is {properties[_PROVIDER]!r}: code that icekeep cannot run says where data files "
            "go; remove the property",
            property=_PROVIDER,
        )
    table_location = table_location.rstrip("/")
    hashed = boolean_property(properties, "write.object-storage.enabled", default=False)
    withdrawn = (*(["write.object-storage.path"] if hashed else []), "write.folder-storage.path")
    for key in () if properties.get(_DATA_PATH) else withdrawn:
        if key in properties:
            raise PropertyError(
                f"table property {key!r} was withdrawn; set {_DATA_PATH!r} to {properties[key]!r} instead", property=key
            )
    directory = _directory(table_location, properties, _DATA_PATH, "data")
    if not hashed:
        return DataLayout(directory=directory)
    context = ""
    if not directory.startswith(table_location):
        # The last two names of the table's location, its own and usually its namespace's.
        path = table_location.partition("://")[2].partition("/")[2] if "://" in table_location else table_location
        context = "/".join([name for name in path.split("/") if name][-2:])
    return DataLayout(
        directory=directory,
        hashed=True,
        partitioned_paths=boolean_property(properties, "write.object-storage.partitioned-paths", default=True),
        context=context,
    )


def data_directory(metadata: TableMetadata) -> str:
    """The directory of new data files, without a slash at the end."""
    return _directory(metadata.location, metadata.properties, _DATA_PATH, "data")


def metadata_directory(metadata: TableMetadata) -> str:
    """The directory of new metadata files, manifests and manifest lists, without a slash at the end."""
    return _directory(metadata.location, metadata.properties, "write.metadata.path", "metadata")


def manifest_location(metadata: TableMetadata, commit_uuid: str, number: int) -> str:
    """The location of the `number`th manifest of one commit."""
    return f"{metadata_directory(metadata)}/{commit_uuid}-m{number}.avro"


def manifest_list_location(metadata: TableMetadata, snapshot_id: int, attempt: int, commit_uuid: str) -> str:
    """The location of the manifest list of one attempt to commit a snapshot."""
    return f"{metadata_directory(metadata)}/snap-{snapshot_id}-{attempt}-{commit_uuid}.avro"


def own_directory(metadata: TableMetadata, name: str) -> str:
    """One of icekeep's own directories of a table, such as `plans`."""
    return f"{metadata.location.rstrip('/')}/{OWN_DIRECTORY}/{name}"


def _directory(table_location: str, properties: Mapping[str, str], property_name: str, default: str) -> str:
    text = properties.get(property_name, "")
    path = text.rstrip("/")
    if ":/" in text or text.startswith("/"):
        return path
    return f"{table_location.rstrip('/')}/{path or default}"
