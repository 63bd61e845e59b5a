"""Manifest lists as Arrow columns: `spec.manifests.decode.read_manifest_list` for many lists at once.

Of the thousands of lists of a table nearly every one names the manifests that the one before it names, so rows are decoded
as columns, and made into values only where they are wanted. What looks wrong, or is beyond DataFusion, is left to that
function, which knows what to say about it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.planning.manifests.avro_decoder import Layout, NotReadError, flat_schema, read_together
from icekeep.spec.avro import AvroHeader
from icekeep.spec.manifests.decode import stored_fields
from icekeep.spec.manifests.structs import MANIFEST_FILE_FIELDS, FieldSummary, ManifestContent, ManifestFile

UNKNOWN = -1
"""The count of live files of a manifest whose list does not say."""

_CONTENTS = [int(content) for content in ManifestContent]
_REQUIRED = tuple(f.name for f in MANIFEST_FILE_FIELDS if f.required_since == 1)
_SUMMARY_FIELDS = {509: "contains_null", 518: "contains_nan", 510: "lower_bound", 511: "upper_bound"}
_NUMBERED = ("sequence_number", "min_sequence_number")


class ListedRows(msgspec.Struct, frozen=True):
    """Rows of some manifest lists, one list after another.

    Attributes:
        list_numbers: which of the lists each row is of.
        live_counts: added and existing files, or `UNKNOWN`.
        made: makes the values of some rows; raises `NotReadError` where that takes a closer look.
    """

    list_numbers: NDArray[np.int64]
    paths: pa.Array
    lengths: NDArray[np.int64]
    contents: NDArray[np.int64]
    live_counts: NDArray[np.int64]
    made: Callable[[NDArray[np.int64]], list[ManifestFile]]


def rows_of(manifests: Sequence[ManifestFile]) -> ListedRows:
    """Rows of one list that are values already."""
    live = (m.live_files_count for m in manifests)
    return ListedRows(
        np.zeros(len(manifests), np.int64),
        pa.array([m.manifest_path for m in manifests], pa.string()),
        np.array([m.manifest_length for m in manifests], np.int64),
        np.array([m.content for m in manifests], np.int64),
        np.array([UNKNOWN if count is None else count for count in live], np.int64),
        lambda rows: [manifests[row] for row in rows.tolist()],
    )


class StoredLists:
    """Reads lists of one Avro schema, which most lists of a table have to the letter."""

    def __init__(self, schema_json: bytes) -> None:
        """Prepare for lists with a schema, given as JSON.

        Raises:
            NotReadError: rows of this schema need a closer look.
        """
        try:
            self._prepare(msgspec.json.decode(schema_json))
        except (KeyError, TypeError, ValueError) as error:
            raise NotReadError(str(error)) from error

    def _prepare(self, schema: Any) -> None:
        stored = stored_fields(schema)
        flat, flat_names, _ = flat_schema(schema, "")
        known = [f for f in MANIFEST_FILE_FIELDS if f.field_id in stored]
        self._names = {f.name: flat_names[stored[f.field_id]["name"]] for f in known}
        if any(name not in self._names for name in _REQUIRED):
            raise NotReadError("it lacks a field that each row must have")
        self._kinds = {f.name: _KINDS[str(f.type)] for f in known if str(f.type) in _KINDS}
        partitions = next((stored[f.field_id] for f in known if f.name == "partitions"), None)
        self._summary_names = {} if partitions is None else _summary_names(partitions["type"])
        self._layout = Layout(flat, tuple(self._names.values()))

    def read(self, files: Sequence[tuple[bytes, AvroHeader]]) -> ListedRows:
        """The rows of some lists; each file ends on its sync marker right after its last block, whose counts hold.

        Raises:
            NotReadError: one of the lists needs a closer look, or together they have no row.
        """
        (batch, _), counts = read_together(files, self._layout)
        columns = {name: batch[flat_name] for name, flat_name in self._names.items()}
        for name, column in columns.items():
            if name in self._kinds and not self._kinds[name](column.type):
                raise NotReadError(f"field {name!r} is stored as {column.type}")
        if any(columns[name].null_count for name in _REQUIRED):
            raise NotReadError("a row lacks a field that it must have")
        contents = _numbers(columns.get("content"), batch.num_rows, 0)
        if not np.isin(contents, _CONTENTS).all():
            raise NotReadError("a row has a content that the spec does not know")
        added, existing = (columns.get(f"{status}_files_count") for status in ("added", "existing"))
        live = None if added is None or existing is None else pc.add(added.cast(pa.int64()), existing.cast(pa.int64()))
        return ListedRows(
            np.repeat(np.arange(len(counts)), counts),
            columns["manifest_path"].cast(pa.string()),
            _numbers(columns["manifest_length"], batch.num_rows, 0),
            contents,
            _numbers(live, batch.num_rows, UNKNOWN),
            lambda rows: self._made(columns, rows),
        )

    def _made(self, columns: dict[str, pa.Array], rows: NDArray[np.int64]) -> list[ManifestFile]:
        list_numbers = pa.array(rows)
        values = {name: column.take(list_numbers).to_pylist() for name, column in columns.items()}
        values["content"] = [ManifestContent(content or 0) for content in values.get("content") or [0] * len(rows)]
        for name in _NUMBERED:
            # Version 1 has no sequence numbers: readers take 0 (spec, "Reading v1 metadata for v2").
            values[name] = [number or 0 for number in values.get(name) or [0] * len(rows)]
        if "partitions" in values:
            values["partitions"] = [self._summaries(raw) for raw in values["partitions"]]
        return [ManifestFile(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]

    def _summaries(self, raw: list[dict[str, Any]] | None) -> tuple[FieldSummary, ...] | None:
        if raw is None:
            return None
        if None in raw:
            raise NotReadError("a summary of a partition field is null")
        names = self._summary_names.items()
        return tuple(FieldSummary(**{name: summary[stored] for name, stored in names}) for summary in raw)


_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "int": pa.types.is_integer,
    "long": pa.types.is_integer,
    "string": lambda type_: type_ in (pa.string(), pa.large_string(), pa.string_view()),
    "binary": lambda type_: type_ in (pa.binary(), pa.large_binary(), pa.binary_view()),
}


def _summary_names(schema: Any) -> dict[str, str]:
    """The names that a list gives to the parts of a partition field's summary, by ours."""
    array = _without_null(schema)
    record = _without_null(array["items"])
    if (array["type"], record["type"]) != ("array", "record"):
        raise NotReadError("summaries of partition fields are laid out in another way")
    stored = stored_fields(record)
    expected = {509: "boolean", 518: "boolean", 510: "bytes", 511: "bytes"}
    for field_id, kind in expected.items():
        if field_id in stored and stored[field_id]["type"] not in (kind, ["null", kind], [kind, "null"]):
            raise NotReadError("a part of a summary is stored as something else")
    if 509 not in stored:
        raise NotReadError("summaries lack a part that they must have")
    return {name: stored[field_id]["name"] for field_id, name in _SUMMARY_FIELDS.items() if field_id in stored}


def _without_null(schema: Any) -> Any:
    kinds = [kind for kind in (schema if isinstance(schema, list) else [schema]) if kind != "null"]
    if len(kinds) != 1:
        raise NotReadError(f"a field is stored as one of {len(kinds)} types")
    return kinds[0]


def _numbers(column: pa.Array | None, count: int, missing: int) -> NDArray[np.int64]:
    if column is None:
        return np.full(count, missing, np.int64)
    numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), missing).to_numpy()
    return numbers
