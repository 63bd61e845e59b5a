"""Which manifests of a table are rewritten, by size, overlap and a filter, and which stay."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.retry import commit
from icekeep.errors import ExpressionError, NotFoundError, UsageError
from icekeep.maintenance.manifests.candidates import ManifestCandidates, ManifestGroup
from icekeep.maintenance.manifests.rules import COLUMNS, manifests_that_match
from icekeep.planning.transcode import PartitionPart, RecordTarget
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Operation, Predicate
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.transforms import UnknownTransform
from icekeep.spec.types import LONG, STRING
from icekeep.spec.values import value_to_bytes
from kit.cases import for_each
from kit.manifests import field_of, with_schema
from kit.rewritten_manifests import chosen, listed, live_in, staged
from kit.storage import HookedStorage
from kit.strategies import manifest_files
from kit.tables import BY_KIND, add, data_file, memory_table, set_ref
from kit.tables import COLUMNS as TABLE_COLUMNS


def only(found: ManifestCandidates) -> ManifestGroup:
    [group] = found.groups
    return group


def of_kinds(*commits: Iterable[str], **properties: str) -> Any:
    """A table by kind with a manifest for each commit, each with a file of some kinds."""
    table = memory_table(spec=BY_KIND, commit__manifest_merge__enabled="false", **properties)
    for number, kinds in enumerate(commits):
        table = add(table, *(data_file(f"{number}-{kind}", partition=(kind,)) for kind in kinds))
    return table


def names(manifests: Iterable[ManifestFile]) -> list[str]:
    return [manifest.manifest_path for manifest in manifests]


def swapped(table: Any, gone: list[ManifestFile], came: list[ManifestFile]) -> Any:
    """The table with some manifests in the place of others."""
    unnumbered = [replace(m, sequence_number=None, added_snapshot_id=None, first_row_id=None) for m in came]
    change = RewriteManifests(replaced=tuple(gone), added=tuple(unnumbered))
    return commit(table, change, runtime=table.catalog.runtime).table


def with_field(table: Any, manifest: ManifestFile, change: Callable[[Any], Any]) -> Any:
    """The table whose one manifest has been written with another schema."""
    own = staged(table, "own", live_in(table, manifest))
    data = with_schema(table.storage.read(own.manifest_path), change)
    location = f"{own.manifest_path.removesuffix('.avro')}-changed.avro"
    table.storage.create(location, data)
    return swapped(table, [manifest], [replace(own, manifest_path=location, manifest_length=len(data))])


def sized(table: Any, target_bytes: int) -> Any:
    """The table with another target size, its manifests as they are."""
    properties = {**table.metadata.properties, "commit.manifest.target-size-bytes": str(target_bytes)}
    return replace(table, metadata=replace(table.metadata, properties=properties))


def walled(*commits: Iterable[str]) -> Any:
    """A table with one more manifest, the last one, of 400 kinds that begin with m, which has the size that it should."""
    table = of_kinds(*commits, [f"m{n:04}" for n in range(400)])
    lengths = sorted(m.manifest_length for m in listed(table))
    return sized(table, lengths[-1] - lengths[0])


def unknown(schema: Any) -> Any:
    field_of(schema, 143).update({"field-id": 9143, "name": "of_tomorrow"})
    return schema


# What is chosen.


def test_small_manifests_are_one_run_the_oldest_first():
    table = of_kinds("ab", "bc", "ca")
    found = chosen(table)
    [run] = only(found).runs
    assert names(run.manifests) == names(reversed(listed(table)))
    assert run.target == RecordTarget(
        partition=table.metadata.partition_type(0), format_version=2, sort=(PartitionPart(0, STRING),)
    )
    assert (run.expected_count, found.target_bytes, found.snapshot_id) == (
        1,
        8 << 20,
        table.metadata.current_snapshot_id,
    )
    assert sorted(names(found.replaced)) == sorted(names(found.listed)) == sorted(names(listed(table)))
    assert only(found).listed == tuple(listed(table))


def test_well_sized_manifests_are_walls_between_runs():
    table = walled("ab", "ba", "xy", "yx")
    wall = next(m for m in listed(table) if m.live_files_count == 400)
    found = chosen(table)
    assert [len(run.manifests) for run in only(found).runs] == [2, 2]
    assert wall.manifest_path not in names(found.replaced)
    assert wall in only(found).listed


def test_manifests_without_live_files_go():
    table = of_kinds("a", "b", "c")
    removed = frozenset(entry.data_file.file_path for entry in live_in(table, listed(table)[0]))
    table = commit(table, DeleteFiles(paths=removed), runtime=table.catalog.runtime).table
    found = chosen(table)
    [empty] = only(found).empty
    assert empty.live_files_count == 0
    assert empty.manifest_path in names(found.replaced)
    assert empty not in only(found).listed
    assert len(only(found).rewritten) == 2


def test_a_branch_is_looked_at_by_its_head():
    table = of_kinds("ab", "bc")
    head = table.metadata.current_snapshot_id
    table = set_ref(table, "audit", head, kind="branch")
    table = add(table, data_file("late", partition=("a",)))
    assert (len(chosen(table).listed), len(chosen(table, branch="audit").listed)) == (3, 2)
    assert chosen(table, branch="audit").snapshot_id == head
    table = set_ref(table, "v1", head)
    with pytest.raises(UsageError, match="v1"):
        chosen(table, branch="v1")
    with pytest.raises(NotFoundError, match="nowhere"):
        chosen(table, branch="nowhere")


def test_sort_by_bounds_measures_overlap_by_lower_bounds():
    """Sorted by id already, whatever the partitions are: there is nothing to gain but the count."""
    table = memory_table(spec=BY_KIND, commit__manifest_merge__enabled="false")
    for number in range(3):
        bounds = [{1: value_to_bytes(LONG, 10 * number + step)} for step in (0, 5)]
        kinds = [replace(data_file(f"{number}-{b}", partition=("ab"[b],)), lower_bounds=bounds[b]) for b in (0, 1)]
        table = add(table, *kinds)
    lengths = [m.manifest_length for m in listed(table)]
    empty = staged(table, "empty", []).manifest_length
    table = sized(table, max(lengths) - empty)
    assert chosen(table, sort_by="id").replaced == []
    assert len(chosen(table).replaced) == 3


# What rewriting would lose.


def test_manifests_with_fields_that_are_not_known_are_left_alone():
    table = of_kinds("ab", "bc", "ca")
    table = with_field(table, listed(table)[1], unknown)
    odd = next(m for m in listed(table) if m.manifest_path.endswith("-changed.avro"))
    found = chosen(table)
    assert only(found).left_alone_count == 1
    assert odd.manifest_path not in names(found.replaced)
    assert len(found.replaced) == 2
    assert odd in only(found).listed


def test_what_is_left_alone_joins_no_runs_across_a_wall():
    table = walled("ab", "ba", "ab", "xy", "yx")
    target_bytes = chosen(table).target_bytes
    table = sized(with_field(table, listed(table)[-1], unknown), target_bytes)
    found = chosen(table)
    assert only(found).left_alone_count == 1
    assert [len(run.manifests) for run in only(found).runs] == [2, 2]


def test_values_of_an_unknown_transform_are_left_alone():
    table = of_kinds("ab", "bc")
    spec = replace(BY_KIND, fields=tuple(replace(f, transform=UnknownTransform("zorder[3]")) for f in BY_KIND.fields))
    metadata = replace(table.metadata, partition_specs=(spec,))
    odd = replace(table, metadata=metadata)
    found = chosen(odd)
    assert (found.replaced, only(found).left_alone_count) == ([], 2)


# Errors.


def test_a_target_size_that_is_none_is_an_error():
    with pytest.raises(UsageError, match="target-size-bytes"):
        chosen(of_kinds("a", commit__manifest__target_size_bytes="0"))


def test_no_manifest_is_read_to_leave_all_as_they_are():
    table = of_kinds("ab")
    read: list[str] = []
    watched = HookedStorage(table.storage, before=lambda operation, location: read.append(location))
    table = replace(table, storage=watched)
    chosen(table)
    assert [name for name in read if "snap" not in name] == []


DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS


def metadata() -> TableMetadata:
    """A table whose snapshot 7 is two days old; snapshot 5 has expired."""
    made = new_table_metadata(
        schema=TABLE_COLUMNS, spec=UNPARTITIONED, location="file:/t", table_uuid="u", now_ms=NOW_MS
    )
    snapshot = Snapshot(snapshot_id=7, timestamp_ms=NOW_MS - 2 * DAY_MS, manifest_list="file:/t/l.avro")
    return msgspec.structs.replace(made, snapshots=(snapshot,))


FULL = ManifestFile(
    manifest_path="file:/t/metadata/a.avro",
    manifest_length=1000,
    partition_spec_id=2,
    added_snapshot_id=7,
    content=ManifestContent.DELETES,
    sequence_number=9,
    min_sequence_number=4,
    added_files_count=1,
    existing_files_count=20,
    deleted_files_count=300,
    added_rows_count=11,
    existing_rows_count=220,
    deleted_rows_count=3300,
)
BARE = ManifestFile(manifest_path="b", manifest_length=1, partition_spec_id=0, added_snapshot_id=5)


def matches(where: Any, manifest: ManifestFile = FULL) -> bool:
    return manifests_that_match(where, [manifest], metadata(), NOW_MS) == [manifest]


@for_each(
    "where",
    [
        "manifest_path = 'file:/t/metadata/a.avro'",
        "manifest_path LIKE 'file:/t/%'",
        "manifest_length = 1000",
        "manifest_length < 1001",
        "partition_spec_id IN (2, 3)",
        "content = 'deletes'",
        "sequence_number = 9",
        "min_sequence_number = 4",
        "added_snapshot_id = 7",
        "added_at = TIMESTAMP '1970-04-09T00:00:00Z'",
        "added_at < now - 1d",
        "added_at < today - 1",
        "added_files_count = 1",
        "existing_files_count = 20",
        "deleted_files_count = 300",
        "live_files_count = 21",
        "added_rows_count = 11",
        "existing_rows_count = 220",
        "deleted_rows_count = 3300",
        "NOT manifest_length < 1000 AND (content = 'data' OR live_files_count BETWEEN 20 AND 22)",
    ],
)
def test_a_filter_asks_what_the_list_says(where: str):
    assert matches(where)
    assert not matches(f"NOT ({where})")


@for_each(
    "where", ["live_files_count = 21", "live_files_count != 21", "NOT live_files_count < 5", "added_rows_count >= 0"]
)
def test_null_matches_no_comparison(where: str):
    assert not matches(where, BARE)
    assert matches("live_files_count IS NULL AND added_rows_count IS NULL AND sequence_number IS NULL", BARE)


def test_the_time_of_a_snapshot_that_expired_is_null():
    assert matches("added_at IS NULL", BARE)
    assert not matches("added_at < now", BARE)
    assert matches("added_at IS NULL", msgspec.structs.replace(FULL, added_snapshot_id=None))


def test_an_expression_is_taken_as_well_as_text():
    assert matches(Predicate(Operation.GT, "manifest_length", (999,)))
    assert not matches(Predicate(Operation.GT, "manifest_length", (1000,)))


def test_manifests_keep_their_order():
    rows = [msgspec.structs.replace(BARE, manifest_path=name, manifest_length=n) for n, name in enumerate("dacb")]
    found = manifests_that_match("manifest_length != 1", rows, metadata(), NOW_MS)
    assert [row.manifest_path for row in found] == ["d", "c", "b"]
    assert manifests_that_match(ALWAYS_TRUE, rows, metadata(), NOW_MS) == rows


def test_who_names_another_column_is_told_the_columns():
    with pytest.raises(ExpressionError) as caught:
        matches("length > 3")
    assert caught.value.message == f"manifests have no column 'length'; their columns are {', '.join(COLUMNS)}"
    assert caught.value.facts == {"column": "length"}


@pytest.mark.parametrize("where", ["manifest_length >", "manifest_length = 'small'", "added_at IS NAN"])
def test_a_text_that_is_no_filter_is_refused(where: str):
    with pytest.raises(ExpressionError):
        matches(where)


@given(st.lists(manifest_files(), max_size=5), st.integers(0, 2**40))
def test_filter_and_its_negation_partition_the_manifests(rows: list[ManifestFile], limit: int):
    """A manifest with an unknown count of live files matches no filter on that count."""
    small = manifests_that_match(f"manifest_length < {limit}", rows, metadata(), NOW_MS)
    large = manifests_that_match(f"NOT manifest_length < {limit}", rows, metadata(), NOW_MS)
    assert small == [row for row in rows if row.manifest_length < limit]
    assert large == [row for row in rows if row.manifest_length >= limit]
    few = manifests_that_match("live_files_count < 5", rows, metadata(), NOW_MS)
    assert few == [row for row in rows if row.live_files_count is not None and row.live_files_count < 5]
