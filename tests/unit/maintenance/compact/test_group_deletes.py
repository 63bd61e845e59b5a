"""A group's delete files: each once, in an order in which those of a file are a few stretches, and small when packed."""

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import UnsupportedError
from icekeep.maintenance.compact.candidates import ManyPlannedFiles, few_candidates, few_planned_files, file_columns
from icekeep.maintenance.compact.commit import read_files
from icekeep.maintenance.compact.grouping import GroupRules
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import Strategy
from icekeep.maintenance.compact.plan import GroupFiles, pack_group_files, with_deletes_once
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.planning.deletes import EVERY_PAIR, reaching
from icekeep.planning.manifests import REACHING_DELETES
from icekeep.planning.scan.plan import FewFiles
from icekeep.spec.collections import Part, PositionSet, stretches
from icekeep.spec.manifests.structs import FileContent, ManifestEntry
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.reach import applied_delete
from kit.reaching import (
    SPECS,
    TYPES,
    bounded,
    columns_of,
    entry,
    equality,
    expected,
    generated_tables,
    positions,
    table_of,
)

Entries = tuple[list[ManifestEntry], list[ManifestEntry]]
Planned = Callable[[list[ManifestEntry], list[ManifestEntry]], GroupFiles]

RULES = GroupRules(
    sizes=FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1800),
    options=RewriteDataFilesOptions(rewrite_all=True),
    strategy=Strategy(text="binpack"),
    output_specs={number: number for number in SPECS},
)


def of_driver(data: list[ManifestEntry], deletes: list[ManifestEntry]) -> GroupFiles:
    """All files of a table as one group, planned on the driver."""
    found = reaching(table_of(data), table_of(deletes), SPECS, EVERY_PAIR)
    few = FewFiles(files=table_of(data), reaching=found)
    return with_deletes_once((one.file, one.deletes) for one in few_planned_files(few_candidates(few, RULES), None))


def of_task(data: list[ManifestEntry], deletes: list[ManifestEntry]) -> GroupFiles:
    """The same of what Spark joins hand to a task."""
    rows = table_of(data)
    reached = expected(data, deletes)
    column = pa.array([reached[e.data_file.file_path] for e in data], REACHING_DELETES)
    for name in ("has_bad_size", "has_many_deletes"):
        rows = rows.append_column(name, pa.array([True] * len(data)))
    deleted = [_deleted_count(file, reached[path]) for file, path in zip(data, reached, strict=True)]
    rows = rows.append_column("deleted_count", pa.array(deleted, pa.int64()))
    columns = (*file_columns(None), "has_bad_size", "has_many_deletes", "deleted_count")
    rows = rows.select([*columns]).append_column("deletes", column)
    batches = rows.to_batches(max_chunksize=2)
    return with_deletes_once((one.file, one.deletes) for one in ManyPlannedFiles(None).read(batches))


def _deleted_count(file: ManifestEntry, reaching: list[dict[str, Any]]) -> int:
    path = file.data_file.file_path.encode()
    own = [
        one["record_count"]
        for one in reaching
        if one["content"] == FileContent.POSITION_DELETES
        and path in ((one["referenced_data_file"] or "").encode(), one["sole_path"])
    ]
    return min(sum(own), file.data_file.record_count)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[ManifestEntry], list[ManifestEntry]]:
    data, deletes = draw(generated_tables())
    # As they are packed.
    data.sort(key=lambda one: (one.data_file.spec_id, columns_of(one)["partition"], one.data_file.file_path))
    # Those that are encrypted are refused.
    return data, [replace(d, data_file=replace(d.data_file, key_metadata=None)) for d in deletes]


@pytest.mark.parametrize("planned", [of_driver, of_task])
@given(table=tables())
def test_packed_group_has_the_deletes_that_reach_each_file(planned: Planned, table: Entries) -> None:
    data, deletes = table
    files = planned(data, deletes)
    reached = {f.file_path: {*f.deletes} for f in files.files}
    names = [(d.file_path, d.content_offset) for d in files.deletes]
    by_rule = {
        path: {(d.data_file.file_path, d.data_file.content_offset) for d in found}
        for path, found in reaching_deletes(data, deletes, SPECS).items()
    }
    assert {path: {names[n] for n in some} for path, some in reached.items()} == by_rule
    assert len(names) == len({*names}) == len(set().union(*by_rule.values()))


@given(tables())
def test_tasks_make_the_same_group_as_the_driver(table: Entries) -> None:
    data, deletes = once_each(table)
    assert of_task(data, deletes) == of_driver(data, deletes)


def once_each(table: Entries) -> Entries:
    """No table lists a delete file twice."""
    data, deletes = table
    return data, [*{(d.data_file.file_path, d.data_file.content_offset): d for d in deletes}.values()]


@given(tables())
def test_removed_files_have_the_deletes_that_reach_them(table: Entries) -> None:
    data, deletes = once_each(table)
    found = {f.entry.data_file.file_path: f.applied_deletes for f in read_files(of_driver(data, deletes), TYPES)}
    assert found == {
        path: {*map(applied_delete, some)} for path, some in reaching_deletes(data, deletes, SPECS).items()
    }


def changes(count: int, files_at_once: int = 2) -> Entries:
    """A table as a CDC writer leaves it, unpartitioned: each commit adds files, deletes in each, and equality deletes."""
    data, deletes = [], []
    place: dict[str, Any] = {"spec_id": 0, "partition": ()}
    for number in range(1, count + 1):
        deletes.append(equality(f"s3://bucket/table/data/{number:05}-keys.parquet", number, **place))
        for n in range(files_at_once):
            path = f"s3://bucket/table/data/{number:05}-{n:03}.parquet"
            bounds = bounded(path.encode(), path.encode())
            data.append(entry(path, number, **place))
            # The next commit deletes more of it.
            deletes += [positions(f"{path}-positions-{more}", number + more, **bounds, **place) for more in range(3)]
    return data, deletes


@pytest.mark.parametrize("planned", [of_driver, of_task])
def test_a_file_has_few_stretches_however_many_deletes_reach_it(planned: Planned) -> None:
    data, deletes = changes(40)
    files = planned(data, deletes)
    assert sum(1 for f in files.files for _ in f.deletes) == 3 * 80 + 2 * sum(range(40))
    assert max(len(stretches(f.deletes)) for f in files.files) <= 4


@pytest.mark.slow
def test_packed_group_grows_with_files_and_not_with_pairs() -> None:
    """apache/iceberg #13674: equality deletes that reach each of many files."""
    packed, told = [], []
    for count in (100, 400):
        files = of_driver(*changes(count))
        packed.append(len(pack_group_files(files)) / count)
        told.append(len(pickle.dumps([*read_files(files, TYPES)])) / count)
    # With each pair in it, four times the files would take sixteen times as much.
    assert packed[1] < 1.5 * packed[0]
    assert told[1] < 1.5 * told[0]


def test_parts_of_several_lists_become_one() -> None:
    data, deletes = changes(3, 1)
    files = of_driver(data, deletes)
    lists = [[*files.deletes], [*files.deletes][::-1]]
    last = len(files.deletes) - 1
    again = with_deletes_once(
        (
            f,
            Part(
                lists[n % 2],
                PositionSet(f.deletes) if n % 2 == 0 else PositionSet(last - p for p in f.deletes),
            ),
        )
        for n, f in enumerate(files.files)
    )
    assert again == files


def test_task_refuses_an_encrypted_delete_file() -> None:
    with pytest.raises(UnsupportedError, match="delete file 'e' is encrypted"):
        of_task([entry("a", 1)], [equality("e", 2, key_metadata=b"k")])
