"""Generated tables of data files and delete files of each kind, and what reaches what by the pure rule."""

import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.planning.manifests import ENTRIES, REACHING_DELETES, SOLE_PATH
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.reach import (
    in_another_partition,
    is_deletion_vector,
    is_global,
    may_name,
    only_data_file,
    own_path,
    partition_key,
)
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.spec.transforms import Identity, Transform, Void
from icekeep.spec.types import DOUBLE, INT, STRING, NestedField, PrimitiveType, StructType
from kit.strategies import partition_tuples

FIELDS = [field.name for field in REACHING_DELETES.value_type]


def _spec(spec_id: int, *transforms: Transform) -> PartitionSpec:
    fields = (
        PartitionField(source_id=n, field_id=999 + n, name=f"p{n}", transform=t) for n, t in enumerate(transforms, 1)
    )
    return PartitionSpec(spec_id=spec_id, fields=tuple(fields))


def _partition_type(*types: PrimitiveType) -> StructType:
    return StructType(tuple(NestedField(field_id=1000 + n, name=f"p{n}", type=t) for n, t in enumerate(types)))


# Spec 0 is unpartitioned, 3 as well, since all its fields were dropped (v1).
SPECS = {0: _spec(0), 1: _spec(1, Identity()), 2: _spec(2, Identity(), Identity()), 3: _spec(3, Void())}
TYPES = {
    0: _partition_type(),
    1: _partition_type(STRING),
    2: _partition_type(DOUBLE, INT),
    3: _partition_type(STRING),
}
CODECS = {spec_id: PartitionCodec(type_) for spec_id, type_ in TYPES.items()}


def entry(path: str, number: int, content: FileContent = FileContent.DATA, **file: Any) -> ManifestEntry:
    facts = {"spec_id": 1, "partition": ("x",), "file_format": "PARQUET", "record_count": 3, "file_size_in_bytes": 100}
    return ManifestEntry(
        status=Status.EXISTING,
        snapshot_id=1,
        sequence_number=number,
        file_sequence_number=number,
        data_file=DataFile(file_path=path, content=content, **{**facts, **file}),
    )


def positions(path: str, number: int, **file: Any) -> ManifestEntry:
    return entry(path, number, FileContent.POSITION_DELETES, **file)


def equality(path: str, number: int, **file: Any) -> ManifestEntry:
    return entry(path, number, FileContent.EQUALITY_DELETES, **{"equality_ids": (1, 5), **file})


def vector(number: int, named: str | None, offset: int = 4, **file: Any) -> ManifestEntry:
    blob = {"referenced_data_file": named, "content_offset": offset, "content_size_in_bytes": 40}
    return positions(file.pop("path", "v.puffin"), number, **{"file_format": "puffin", **blob, **file})


def bounded(lower: bytes | None, upper: bytes | None) -> dict[str, Any]:
    field_id = DELETE_FILE_PATH.field_id
    return {
        "lower_bounds": {1: b"other"} if lower is None else {field_id: lower},
        "upper_bounds": None if upper is None else {1: b"other", field_id: upper},
    }


def columns_of(entry: ManifestEntry) -> dict[str, Any]:
    """An entry under the names of `ENTRIES`."""
    file = entry.data_file
    made = {"manifest_path": "m.avro", "partition": CODECS.get(file.spec_id, CODECS[1]).encode(file.partition)}
    for name in ENTRIES.names:
        if name not in made:
            value = getattr(entry if name in ManifestEntry.__struct_fields__ else file, name)
            made[name] = list(value.items()) if isinstance(value, dict) else value
    return made


def table_of(entries: list[ManifestEntry]) -> pa.Table:
    """Entries as planning holds them."""
    return pa.Table.from_pylist([columns_of(entry) for entry in entries], schema=ENTRIES)


def reaching_by_rule(data: list[ManifestEntry], deletes: list[ManifestEntry]) -> dict[str, tuple[ManifestEntry, ...]]:
    """What `matched_deletes.reaching_deletes` must give, and raise: each pair by itself, as the spec words it."""
    found: dict[str, tuple[ManifestEntry, ...]] = {}
    for delete in deletes:
        is_global(delete.data_file, SPECS)
        only_data_file(delete.data_file)
    for entry in data:
        path = entry.data_file.file_path
        reaching = [delete for delete in deletes if _reaches(delete, entry)]
        vectors = [delete for delete in reaching if is_deletion_vector(delete.data_file)]
        if len(vectors) > 1:
            raise InvalidTableError(f"data file {path!r} has {len(vectors)} deletion vectors; it may have one")
        found[path] = tuple(
            delete
            for delete in reaching
            if not vectors or delete is vectors[0] or delete.data_file.content is FileContent.EQUALITY_DELETES
        )
    return found


def _reaches(delete: ManifestEntry, data: ManifestEntry) -> bool:
    file, path = delete.data_file, data.data_file.file_path
    is_everywhere, only = is_global(file, SPECS), only_data_file(file)
    number, of_data = delete.sequence_number or 0, data.sequence_number or 0
    is_newer = number > of_data if file.content is FileContent.EQUALITY_DELETES else number >= of_data
    if only not in (None, path) or not is_newer:
        return False
    if is_everywhere:
        return True
    is_elsewhere = partition_key(file) != partition_key(data.data_file)
    if is_elsewhere and only is not None:
        raise in_another_partition(file.file_path, path)
    return not is_elsewhere and (file.content is FileContent.EQUALITY_DELETES or may_name(file, path))


def expected(data: list[ManifestEntry], deletes: list[ManifestEntry]) -> dict[str, list[dict[str, Any]]]:
    """What the column `deletes` of each data file must be."""

    def order(delete: ManifestEntry) -> tuple[Any, ...]:
        offset = delete.data_file.content_offset
        return delete.sequence_number, delete.data_file.file_path, -1 if offset is None else offset

    def fields(delete: ManifestEntry) -> dict[str, Any]:
        columns, file = columns_of(delete), delete.data_file
        ids = columns["equality_ids"]
        sole = own_path(file) if file.referenced_data_file is None else None
        known = {"equality_ids": None if ids is None else list(ids), SOLE_PATH.name: sole}
        return {name: columns[name] for name in ENTRIES.names if name in FIELDS} | known

    reaching = reaching_by_rule(data, deletes)
    return {path: [fields(d) for d in sorted(found, key=order)] for path, found in reaching.items()}


_NUMBERS = st.integers(1, 6)
_NAMES = st.sampled_from(["a", "ab", "abc", "b", "é", "\U0001f600", "B"])


def _one_nan(partition: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(math.nan if isinstance(value, float) and math.isnan(value) else value for value in partition)


@st.composite
def generated_tables(draw: st.DrawFn) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    """Data files in a few partitions, and delete files of each kind that break no rule."""
    places = [
        {"spec_id": spec_id, "partition": _one_nan(draw(partition_tuples(TYPES[spec_id])))}
        for spec_id in draw(st.lists(st.sampled_from([0, 1, 1, 2, 2, 2, 3]), min_size=1, max_size=4))
    ]
    place = st.sampled_from(places)
    data = [entry(name, draw(_NUMBERS), **draw(place)) for name in sorted(draw(st.sets(_NAMES, max_size=5)))]
    deletes: list[ManifestEntry] = []
    for n in range(draw(st.integers(0, 8))):
        kind, number = (
            draw(st.sampled_from(["positions", "bounds", "equality", "of one file", "vector"])),
            draw(_NUMBERS),
        )
        named = draw(st.sampled_from(data)).data_file if data else None
        if kind == "equality":
            deletes.append(equality(f"d{n}", number, key_metadata=b"k", **draw(place)))
        elif kind == "bounds":
            low, high = sorted(draw(st.tuples(_NAMES, _NAMES)))
            cut = st.sampled_from([None, 1, 2, 9])
            lower, upper = (None if (n := draw(cut)) is None else text.encode()[:n] for text in (low, high))
            deletes.append(positions(f"d{n}", number, **bounded(lower, upper), **draw(place)))
        elif kind == "positions" or named is None:
            deletes.append(positions(f"d{n}", number, **draw(place)))
        else:
            where = {"spec_id": named.spec_id, "partition": named.partition}
            path = draw(st.sampled_from([named.file_path, named.file_path, "gone"]))
            if kind == "of one file":
                deletes.append(positions(f"d{n}", number, referenced_data_file=path, **where))
            elif not any(d.data_file.content_offset and d.data_file.referenced_data_file == path for d in deletes):
                deletes.append(vector(number, path, 4 + n, **where))
    return data, deletes


A = entry("a", 5)

REFUSED = [
    ([vector(7, "a"), vector(8, "a", 50)], "data file 'a' has 2 deletion vectors; it may have one"),
    (
        [vector(7, "a", partition=("y",))],
        "delete file 'v.puffin' is for data file 'a', which has another partition spec or partition",
    ),
    (
        [positions("p", 7, referenced_data_file="a", spec_id=3)],
        "delete file 'p' is for data file 'a', which has another partition spec or partition",
    ),
    ([vector(7, None)], "the deletion vector in 'v.puffin' does not say which data file it is for"),
    ([equality("e", 7, spec_id=9)], "delete file 'e' has partition spec 9, which is not there"),
    ([positions("p", 7, spec_id=9)], "delete file 'p' has partition spec 9, which is not there"),
]
"""Delete files that no table with `A` may have, and what is said of them."""
