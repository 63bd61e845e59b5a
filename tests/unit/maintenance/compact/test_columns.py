"""Binpack over columns makes the groups that it makes of objects, which `groups_of_key` and `with_deletes_once` say."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import SafetyError, UnsupportedError
from icekeep.maintenance.compact.candidates import RANGE, few_candidates, few_planned_files
from icekeep.maintenance.compact.grouping import GroupRules
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import Strategy
from icekeep.maintenance.compact.plan import CandidateColumns, group_files, named_files
from icekeep.maintenance.compact.planner import IN_PLAN, BinPacker, chosen_groups
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.planning.deletes import EVERY_PAIR, reaching
from icekeep.planning.scan.plan import FewFiles
from icekeep.spec.manifests.structs import ManifestEntry
from kit.cases import cases
from kit.reaching import SPECS, TYPES, bounded, entry, equality, positions, table_of, vector
from kit.storage import MemoryStorage

METADATA: Any = SimpleNamespace(
    partition_type=TYPES.__getitem__, partition_path=lambda spec_id, values: f"{spec_id}={values!r}"
)
PLACES: list[dict[str, Any]] = [
    {"spec_id": 0, "partition": ()},
    {"spec_id": 1, "partition": ("x",)},
    {"spec_id": 1, "partition": (None,)},
    {"spec_id": 1, "partition": ("é",)},
    {"spec_id": 2, "partition": (0.5, 3)},
    {"spec_id": 2, "partition": (-1.0, None)},
    {"spec_id": 3, "partition": (None,)},
]
NAMES = ["a", "ab", "d/a", "d/é", "d/\U0001f600", "e/￿", "B"]
SIZES = st.sampled_from([0, 1, 10, 100, 650, 733, 749, 750, 900, 1800, 1801, 4000, 9000, 2**40])


def delete_file(draw: st.DrawFn, n: int, data: list[ManifestEntry], vectors: set[str]) -> ManifestEntry:
    kind, number = draw(st.sampled_from("pbboove")), draw(st.integers(1, 6))
    facts: dict[str, Any] = {"record_count": draw(st.integers(0, 9)), "file_size_in_bytes": draw(st.integers(0, 50))}
    if kind == "e":
        return equality(f"{draw(st.sampled_from('xyz'))}{n}", number, **facts, **draw(st.sampled_from(PLACES)))
    file = draw(st.sampled_from(data)).data_file
    where = {"spec_id": file.spec_id, "partition": file.partition}
    path = file.file_path.encode()
    if kind == "v" and file.file_path not in vectors:
        vectors.add(file.file_path)
        return vector(number, file.file_path, 4 + n, record_count=facts["record_count"], **where)
    if kind == "b":
        return positions(f"b{n}", number, **facts, **bounded(path, path[: draw(st.integers(1, 9))]), **where)
    named = {} if kind == "p" else {"referenced_data_file": file.file_path}
    return positions(f"{kind}{n}", number, **facts, **named, **where)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    places = draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4))
    data = []
    for n in range(draw(st.integers(1, 24))):
        records = draw(st.sampled_from([0, 1, 3, 10, 2**33]))
        file = {"file_size_in_bytes": draw(SIZES), "record_count": records, **draw(st.sampled_from(places))}
        offsets = draw(st.sampled_from([None, (4,), (4, 60)]))
        data.append(entry(f"{draw(st.sampled_from(NAMES))}{n}", draw(st.integers(1, 6)), split_offsets=offsets, **file))
    vectors: set[str] = set()
    deletes = [delete_file(draw, n, data, vectors) for n in range(draw(st.integers(0, 24)))]
    return data, deletes


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "min_input_files": st.integers(1, 6),
        "max_file_group_size_bytes": st.sampled_from([1, 500, 1500, 5000, 2**63 - 1]),
        "max_file_group_input_files": st.integers(1, 8),
        "max_files_to_rewrite": st.integers(1, 20),
        "rewrite_all": st.booleans(),
        "delete_file_threshold": st.integers(1, 4),
        "delete_ratio_threshold": st.sampled_from([0.01, 0.3, 1.0]),
    },
)


def rules_of(options: dict[str, Any], output_specs: dict[int, int]) -> GroupRules:
    return GroupRules(
        sizes=FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1800),
        options=RewriteDataFilesOptions(**options),
        strategy=Strategy(text="binpack"),
        output_specs=output_specs,
    )


def few_of(data: list[ManifestEntry], deletes: list[ManifestEntry], *, matched: bool = True) -> FewFiles:
    found = reaching(table_of(data), table_of(deletes), SPECS, EVERY_PAIR) if matched else None
    return FewFiles(files=table_of(data), reaching=found)


def packer_of(rules: GroupRules, **how: Any) -> BinPacker:
    return BinPacker(rules=rules, storage=MemoryStorage(), **{"directory": None, **how})


def planned(files: Any, rules: GroupRules) -> tuple[Any, ...]:
    packer = packer_of(rules)
    groups, left, totals = chosen_groups(files, packer, METADATA)
    found = [group_files(group, packer.storage) for group in groups]
    shown = [replace(group, packed=None, held=None) for group in groups]
    return shown, left, totals, found


@cases(400)
@given(tables(), OPTIONS, st.dictionaries(st.sampled_from([*SPECS]), st.sampled_from([*SPECS])), st.booleans())
def test_columns_make_the_groups_of_objects(
    table: tuple[list[ManifestEntry], list[ManifestEntry]],
    options: dict[str, Any],
    moved: dict[int, int],
    matched: bool,
) -> None:
    rules = rules_of(options, {**{spec_id: spec_id for spec_id in SPECS}, **moved})
    columns = few_candidates(few_of(*table, matched=matched), rules)
    assert columns.are_regular
    assert planned(columns, rules) == planned([*few_planned_files(columns, None)], rules)


@cases(100)
@given(tables(), st.data())
def test_columns_make_the_groups_of_a_saved_plan(
    table: tuple[list[ManifestEntry], list[ManifestEntry]], data: st.DataObject
) -> None:
    rules = rules_of({"rewrite_all": True}, dict.fromkeys(SPECS, 1))
    paths = data.draw(st.permutations([one.data_file.file_path for one in table[0]]))
    numbers = sorted(data.draw(st.lists(st.integers(0, 4), min_size=len(paths), max_size=len(paths))))
    only = pa.table({"file_path": [*paths, "gone"], RANGE: pa.array([*numbers, 5], pa.int32())})
    columns = few_candidates(few_of(*table), rules, only)
    assert columns.files["file_path"].to_pylist() == paths
    packer = packer_of(rules, is_of_saved_plan=True, directory=IN_PLAN)

    def grouped(files: Any) -> Any:
        try:
            groups = packer.packed(files)[0]
        except SafetyError as error:
            return str(error)
        shown = [replace(one, group=replace(one.group, packed=None, held=None)) for one in groups]
        return shown, [group_files(one.group, packer.storage) for one in groups]

    assert grouped(columns) == grouped([*few_planned_files(columns, None)])


def test_what_columns_cannot_sum_is_planned_by_objects() -> None:
    rules = rules_of({}, {spec_id: spec_id for spec_id in SPECS})
    twice = [positions("p", 7), positions("p", 7)]
    assert not few_candidates(few_of([entry("a", 1)], twice), rules).are_regular
    assert not few_candidates(few_of([entry("a", 1, file_size_in_bytes=-1)], []), rules).are_regular
    blobs = [vector(7, name, offset) for name, offset in (("a", 4), ("b", 50))]
    assert few_candidates(few_of([entry("a", 1), entry("b", 1)], blobs), rules).are_regular


def test_sizes_that_no_file_has_are_summed_exactly() -> None:
    rules = rules_of({"rewrite_all": True}, {spec_id: spec_id for spec_id in SPECS})
    data = [entry(f"f{n}", 1, file_size_in_bytes=2**62, record_count=2**62) for n in range(5)]
    columns = few_candidates(few_of(data, []), rules)
    found = planned(columns, rules)
    assert found == planned([*few_planned_files(columns, None)], rules)
    assert sum(group.bytes for group in found[0]) == 5 * 2**62


def test_named_files_are_one_per_directory_and_delete_file() -> None:
    """Locations are checked by one data file of each directory and by each delete file."""
    rules = rules_of({"rewrite_all": True}, {spec_id: spec_id for spec_id in SPECS})
    data = [entry(name, 1) for name in ("s3://b/t/1", "s3://b/t/2", "s3://b/u/1", "no directory")]
    deletes = [positions("s3://c/1", 7), positions("s3://c/2", 7), positions("s3://d/1", 7, partition=("elsewhere",))]
    groups = chosen_groups(few_candidates(few_of(data, deletes), rules), packer_of(rules), METADATA)[0]
    named = {path for some in named_files(groups, MemoryStorage()) for path in some}
    assert {path.rpartition("/")[0] for path in named} == {"", "s3://b/t", "s3://b/u", "s3://c"}
    assert len(named) == 4


def test_encrypted_files_are_refused_if_they_would_be_read() -> None:
    rules = rules_of({}, {spec_id: spec_id for spec_id in SPECS})
    data = [entry("right", 1, file_size_in_bytes=900, key_metadata=b"k"), entry("small", 1)]
    other = equality("e", 7, key_metadata=b"k", partition=("elsewhere",))
    columns = few_candidates(few_of(data, [other]), rules)
    assert isinstance(columns, CandidateColumns)
    assert np.array_equal(columns.rows, [1])
    with pytest.raises(UnsupportedError, match="data file 'right' is encrypted"):
        few_candidates(few_of(data, []), rules_of({"rewrite_all": True}, rules.output_specs))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="delete file 'f' is encrypted"):
        few_candidates(few_of(data, [other, equality("f", 7, key_metadata=b"k")]), rules)
