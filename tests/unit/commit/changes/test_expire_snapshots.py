import msgspec
import pytest
from msgspec.structs import replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, NotFoundError, UsageError
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.retention import Expired, RetentionPolicy, select_expired
from icekeep.spec.schema import Schema
from icekeep.spec.updates import (
    AssertRefSnapshotId,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    SetCurrentSchema,
    SetProperties,
)
from kit.changes import run
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.runtime import START_MS
from kit.tables import BY_KIND, EVENTS, add, data_file, files, ids, live, memory_table, set_ref, stored, swap

DAY_MS = 86_400_000
OLD = RetentionPolicy(older_than_ms=START_MS + 100 * DAY_MS, retain_last=1)


@pytest.fixture
def table(catalog):
    """Four snapshots a day apart."""
    table = memory_table(catalog)
    for name in "abcd":
        table = add(table, name)
        catalog.runtime.pass_ms(DAY_MS)
    return table


def expire(table, policy=OLD, **options):
    reader = options.pop("reader", None)
    change = ExpireSnapshots(policy=policy, now_ms=table.catalog.runtime.now_ms(), **options)
    return run(table, change, reader=reader)


def test_old_snapshots_go_and_their_files_stay_where_they_are(catalog, table):
    before = stored(catalog)
    result = expire(table)
    assert ids(result.table) == [table.metadata.current_snapshot_id]
    assert live(result.table) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert result.snapshot_id is None
    assert before <= stored(catalog)
    assert len(stored(catalog) - before) == 1


def test_every_reference_must_be_where_the_policy_saw_it(table):
    table = set_ref(table, "v1", ids(table)[1])
    expire(table)
    requirements, _ = table.catalog.swaps[-1]
    assert {r for r in requirements if isinstance(r, AssertRefSnapshotId)} == {
        AssertRefSnapshotId("main", ids(table)[3]),
        AssertRefSnapshotId("v1", ids(table)[1]),
    }


def test_nothing_old_enough_is_no_commit(catalog, table):
    swaps = len(catalog.swaps)
    assert expire(table, RetentionPolicy(older_than_ms=0)).changed is False
    assert len(catalog.swaps) == swaps


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_ref_created_after_planning_protects_snapshot(table, kind):
    # iceberg-go #672, seaweedfs #10774: an expiration that decided on an older base dropped the new reference in silence.
    table.catalog.follow(after(lambda: set_ref(table, "audit", ids(table)[1], kind)))
    result = expire(table)
    assert "audit" in result.table.metadata.refs
    assert ids(result.table) == [ids(table)[1], ids(table)[3]]
    assert live(result.table, "audit") == {"a": 1, "b": 1}


def test_ref_dropped_after_planning_no_longer_protects(table):
    table = set_ref(table, "audit", ids(table)[1])
    table.catalog.follow(after(lambda: swap(table, RemoveSnapshotRef("audit"))))
    assert ids(expire(table).table) == [ids(table)[3]]


def test_a_branch_that_others_moved_meanwhile_keeps_its_new_head(table):
    table = set_ref(table, "audit", ids(table)[0], "branch")
    table.catalog.follow(after(lambda: add(table, "theirs", branch="audit")))
    result = expire(table)
    theirs = result.table.metadata.refs["audit"].snapshot_id
    assert set(ids(result.table)) == {ids(table)[3], theirs}
    assert live(result.table, "audit") == {"a": 1, "theirs": 1}


def test_an_append_meanwhile_stays_and_moves_what_counts_as_last(table):
    table.catalog.follow(after(lambda: add(table, "theirs")))
    result = expire(table)
    assert live(result.table) == {"a": 1, "b": 1, "c": 1, "d": 1, "theirs": 1}
    assert len(ids(result.table)) == 1


def test_min_snapshots_set_after_planning_counts(table):
    """A table property that keeps more snapshots applies though it was set after planning."""
    keep_all = SetProperties({"history.expire.min-snapshots-to-keep": "3"})
    table.catalog.follow(after(lambda: swap(table, keep_all)))
    result = expire(table, RetentionPolicy(older_than_ms=OLD.older_than_ms))
    assert ids(result.table) == ids(table)[1:]


def test_ages_are_measured_from_start_of_run(catalog, table):
    """Retries do not make snapshots older: ages are measured against one moment."""
    slow = after(lambda: catalog.runtime.pass_ms(50 * DAY_MS), then=CONFLICTS)
    catalog.follow(slow)
    # The younger two are less than five days old, the default age, when the run begins.
    catalog.runtime.pass_ms(2 * DAY_MS)
    result = expire(table, RetentionPolicy())
    assert ids(result.table) == ids(table)[1:]


def test_aged_ref_expires_with_its_snapshot(table):
    table = set_ref(table, "short", ids(table)[1], max_ref_age_ms=1)
    result = expire(table)
    assert result.table.metadata.refs.keys() == {"main"}
    assert ids(result.table) == [ids(table)[3]]
    assert [type(u).__name__ for u in table.catalog.swaps[-1][1]] == ["RemoveSnapshotRef", "RemoveSnapshots"]


def test_named_snapshot_tagged_by_others_is_not_expired(table):
    table.catalog.follow(after(lambda: set_ref(table, "audit", ids(table)[1])))
    with pytest.raises(UsageError, match="it is the head of 'audit'"):
        expire(table, RetentionPolicy(older_than_ms=0, snapshot_ids=(ids(table)[1],)))
    assert ids(table.catalog.load(EVENTS)) == ids(table)


def test_a_snapshot_that_is_named_and_not_there_is_not_found(table):
    with pytest.raises(NotFoundError, match="no snapshot 4711"):
        expire(table, RetentionPolicy(older_than_ms=0, snapshot_ids=(4711,)))


def evolved(catalog, *, default_spec_id=1):
    """A table that was partitioned by `kind`, and then lost both the partitioning and the column; a file of each time."""
    table = memory_table(catalog, spec=BY_KIND)
    table = add(table, data_file("old", partition=("x",)))
    without_kind = Schema(fields=tuple(f for f in table.metadata.schema.fields if f.name != "kind"), schema_id=1)
    metadata = msgspec.structs.replace(
        table.metadata,
        schemas=(*table.metadata.schemas, without_kind),
        current_schema_id=1,
        partition_specs=(BY_KIND, msgspec.structs.replace(UNPARTITIONED, spec_id=1)),
        default_spec_id=default_spec_id,
    )
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, metadata)
    catalog.runtime.pass_ms(DAY_MS)
    return add(table, data_file("new", spec_id=1))


def test_schemas_and_specs_stay_unless_asked_for(catalog):
    result = expire(evolved(catalog))
    assert len(result.table.metadata.snapshots) == 1
    assert len(result.table.metadata.schemas) == 2
    assert len(result.table.metadata.partition_specs) == 2


def test_a_spec_in_use_stays_with_its_schema(catalog):
    # Without the column's type the manifest could not be read any more, and every later commit would fail.
    table = evolved(catalog)
    result = expire(table, clean_expired_metadata=True)
    metadata = result.table.metadata
    assert len(metadata.snapshots) == 1
    assert {s.spec_id for s in metadata.partition_specs} == {0, 1}
    assert {s.schema_id for s in metadata.schemas} == {0, 1}
    assert metadata.partition_type(0) == table.metadata.partition_type(0)
    assert live(add(result.table, data_file("more", spec_id=1))) == {"old": 1, "new": 1, "more": 1}


def test_unused_spec_and_schema_are_removed_on_request(catalog):
    table = evolved(catalog)

    class WithoutOldFile:
        def apply(self, base, attempt):
            kept = [m for m in attempt.reader.manifests(base.current_snapshot) if m.partition_spec_id == 1]
            return attempt.snapshot_updates("delete", kept, SummaryBuilder())

    catalog.runtime.pass_ms(DAY_MS)
    table = run(table, WithoutOldFile()).table
    table = expire(table, clean_expired_metadata=True).table
    # The spec alone needs the schema, and goes with it.
    assert [s.spec_id for s in table.metadata.partition_specs] == [1]
    assert [s.schema_id for s in table.metadata.schemas] == [1]
    assert live(catalog.load(EVENTS)) == {"new": 1}
    assert expire(table, clean_expired_metadata=True).changed is False


def without_compared_column(catalog, *, tagged=False, promoted=False):
    """A table of which rows were deleted by `kind`, which was dropped since; `promoted`: a schema after the first changed it."""
    table = add(memory_table(catalog), "old")
    kind = table.metadata.schema.ids_by_name["kind"]
    deletes = replace(
        data_file("deletes"), content=FileContent.EQUALITY_DELETES, equality_ids=(kind,), sort_order_id=None
    )
    table = run(table, RowDelta(added_deletes=(deletes,))).table
    if tagged:
        table = set_ref(table, "audit", table.metadata.current_snapshot_id)
    schema = table.metadata.schema
    others = [f for f in schema.fields if f.name != "kind"]
    newer = [replace(f, doc="newer") if f.name == "kind" else f for f in schema.fields]
    schemas = [schema, *([replace(schema, schema_id=1, fields=tuple(newer))] if promoted else [])]
    schemas.append(replace(schema, schema_id=len(schemas), fields=tuple(others)))
    metadata = replace(table.metadata, schemas=tuple(schemas), current_schema_id=schemas[-1].schema_id)
    catalog.drop(EVENTS)
    table = add(catalog.create(EVENTS, metadata), "new")
    catalog.runtime.pass_ms(DAY_MS)
    return table


def schema_ids(table):
    return [schema.schema_id for schema in table.metadata.schemas]


def without_deletes(table):
    class WithoutDeletes:
        def apply(self, base, attempt):
            kept = [
                m for m in attempt.reader.manifests(base.current_snapshot) if m.content is not ManifestContent.DELETES
            ]
            return attempt.snapshot_updates("delete", kept, SummaryBuilder())

    table = run(table, WithoutDeletes()).table
    table.catalog.runtime.pass_ms(DAY_MS)
    return table


def test_schema_of_live_equality_delete_column_is_kept(catalog):
    table = expire(without_compared_column(catalog), clean_expired_metadata=True).table
    assert (len(ids(table)), schema_ids(table)) == (1, [0, 1])
    table = expire(without_deletes(table), clean_expired_metadata=True).table
    assert (len(ids(table)), schema_ids(table)) == (1, [1])


def test_schema_is_kept_for_deletes_despite_wrong_counts(catalog):
    """Deletes of any retained snapshot keep the schema, though list counts say that nothing is live."""
    table = without_deletes(without_compared_column(catalog, tagged=True))
    tagged = table.metadata.snapshot(table.metadata.refs["audit"].snapshot_id)
    reader = Claiming(catalog.storage)
    assert [m.may_have_live_files for m in reader.manifests(tagged)] == [False, False]
    table = expire(table, clean_expired_metadata=True, reader=reader).table
    assert (len(ids(table)), schema_ids(table)) == (2, [0, 1])


def test_newest_schema_with_deleted_column_is_kept(catalog):
    """Of two schemas with a column that equality deletes compare, the newer one stays."""
    table = without_compared_column(catalog, promoted=True)
    assert schema_ids(expire(table, clean_expired_metadata=True).table) == [1, 2]
    # Where a snapshot that stays has the older one, the newer one says still what the column is.
    table = without_compared_column(MemoryCatalog(), tagged=True, promoted=True)
    assert schema_ids(expire(table, clean_expired_metadata=True).table) == [0, 1, 2]


class Claiming(ManifestReader):
    """Reads lists that say of no manifest that it has live files."""

    def manifests(self, snapshot):
        return [replace(m, added_files_count=0, existing_files_count=0) for m in super().manifests(snapshot)]

    def entries(self, manifest, metadata):
        return super().entries(replace(manifest, added_files_count=None, existing_files_count=None), metadata)


def test_unreferenced_schema_is_removed_only_on_request(catalog):
    table = memory_table(catalog)
    newer = msgspec.structs.replace(table.metadata.schema, schema_id=3)
    metadata = msgspec.structs.replace(table.metadata, schemas=(*table.metadata.schemas, newer), current_schema_id=3)
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, metadata)
    assert expire(table).changed is False
    assert [s.schema_id for s in expire(table, clean_expired_metadata=True).table.metadata.schemas] == [3]


def test_a_schema_that_a_snapshot_made_meanwhile_names_stays(catalog):
    table = memory_table(catalog)
    newer = msgspec.structs.replace(table.metadata.schema, schema_id=3)
    metadata = msgspec.structs.replace(table.metadata, schemas=(*table.metadata.schemas, newer))
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, metadata)
    catalog.follow(after(lambda: add(table, "theirs")))
    metadata = expire(table, clean_expired_metadata=True).table.metadata
    assert [s.schema_id for s in metadata.schemas] == [0]


def test_a_spec_that_others_begin_to_use_meanwhile_stays(catalog):
    table = memory_table(catalog)
    specs = (table.metadata.spec, msgspec.structs.replace(BY_KIND, spec_id=1))
    metadata = msgspec.structs.replace(table.metadata, partition_specs=specs, last_partition_id=1000)
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, metadata)
    theirs = AppendFiles(files=(data_file("theirs", partition=("x",), spec_id=1), *files("a")))
    catalog.follow(after(lambda: run(table, theirs)))
    metadata = expire(table, clean_expired_metadata=True).table.metadata
    assert [s.spec_id for s in metadata.partition_specs] == [0, 1]


# What was planned.


def expected(table, policy=OLD):
    return select_expired(table.metadata, policy, table.catalog.runtime.now_ms())


def test_what_was_planned_expires(table):
    assert expire(table, expected=expected(table)).changed
    assert ids(table.catalog.load(EVENTS)) == [table.metadata.current_snapshot_id]


def test_what_the_policy_keeps_by_now_is_a_conflict(table):
    planned = expected(table)
    table.catalog.follow(after(lambda: set_ref(table, "audit", ids(table)[1])))
    with pytest.raises(ConflictError, match=r"has changed: 1 of the snapshots and references .* must stay") as refused:
        expire(table, expected=planned)
    assert refused.value.facts["kept_count"] == 1
    assert set(ids(table)) <= set(ids(table.catalog.load(EVENTS)))


def test_snapshot_expirable_since_planning_is_kept(table):
    """Only planned snapshots expire; those that became expirable since wait for another plan."""
    planned = expected(table)
    table.catalog.follow(after(lambda: add(table, "theirs")))
    expire(table, expected=planned)
    assert ids(table.catalog.load(EVENTS))[0] == table.metadata.current_snapshot_id
    assert len(ids(table.catalog.load(EVENTS))) == 2


def test_a_reference_that_came_to_its_age_meanwhile_waits_too(table):
    planned = expected(table)
    table = set_ref(table, "short", ids(table)[3], max_ref_age_ms=1)
    table.catalog.runtime.pass_ms(DAY_MS)
    expire(table, expected=planned)
    assert "short" in table.catalog.load(EVENTS).metadata.refs


def with_unused_schemas(catalog, *numbers):
    """A table without snapshots, with schemas that nothing uses."""
    table = memory_table(catalog)
    unused = [replace(table.metadata.schema, schema_id=number) for number in numbers]
    metadata = replace(table.metadata, schemas=(*table.metadata.schemas, *unused))
    catalog.drop(EVENTS)
    return catalog.create(EVENTS, metadata)


def found(table, policy=OLD):
    change = ExpireSnapshots(policy=policy, now_ms=table.catalog.runtime.now_ms(), clean_expired_metadata=True)
    return change.expired(table.metadata, ManifestReader(table.catalog.storage))


def test_what_was_found_unused_goes_and_no_more(catalog):
    table = with_unused_schemas(catalog, 3, 4)
    planned = replace(found(table), schema_ids=frozenset({3}))
    assert found(table).schema_ids == {3, 4}
    assert schema_ids(expire(table, clean_expired_metadata=True, expected=planned).table) == [0, 4]


def test_what_others_removed_is_no_conflict_and_what_they_use_is(catalog):
    table = with_unused_schemas(catalog, 3, 4)
    planned = found(table)
    table.catalog.follow(after(lambda: swap(table, RemoveSchemas((4,)))))
    assert schema_ids(expire(table, clean_expired_metadata=True, expected=planned).table) == [0]

    table = with_unused_schemas(MemoryCatalog(), 3, 4)
    table.catalog.follow(after(lambda: swap(table, SetCurrentSchema(4))))
    with pytest.raises(ConflictError, match="1 of the schemas and partition specs that were to go is in use") as e:
        expire(table, clean_expired_metadata=True, expected=planned)
    assert e.value.facts["used_count"] == 1


def test_what_others_have_expired_already_is_no_conflict(table):
    planned = expected(table)
    table.catalog.follow(after(lambda: swap(table, RemoveSnapshots((ids(table)[0],)))))
    assert expire(table, expected=planned).changed
    assert ids(table.catalog.load(EVENTS)) == [table.metadata.current_snapshot_id]
    assert not expire(table.catalog.load(EVENTS), expected=planned).changed


def test_for_which_writer_a_snapshot_is_kept_needs_no_approval(table):
    noting = AppendFiles(files=files("e"), summary={"flink.job-id": "j", "flink.max-committed-checkpoint-id": "1"})
    table = run(table, noting).table
    table = add(table, "f")
    policy = replace(OLD, keep_writer_progress_ms=7 * DAY_MS)
    found = expected(table, policy)
    assert [k.snapshot_id for k in found.kept] == [ids(table)[4]]
    result = expire(table, policy, expected=Expired(found.snapshot_ids, found.ref_names))
    assert ids(result.table) == ids(table)[4:]


# Manifest lists that have to be read.


class Counting(ManifestReader):
    """Remembers whose manifest lists were read."""

    def __init__(self, storage):
        super().__init__(storage)
        self.read = []

    def manifests(self, snapshot):
        self.read.append(snapshot.snapshot_id)
        return super().manifests(snapshot)


def test_list_reading_stops_once_all_specs_are_found(catalog):
    """Manifest lists of branch heads are read first, and no more than needed."""
    table = evolved(catalog)
    for name in "xyz":
        table = add(table, data_file(name, spec_id=1))
    keep_all = RetentionPolicy(older_than_ms=0)
    reader = Counting(catalog.storage)
    assert expire(table, keep_all, clean_expired_metadata=True, reader=reader).changed is False
    assert reader.read == [table.metadata.current_snapshot_id]


def test_every_retained_list_is_read_before_spec_removal(catalog):
    table = memory_table(catalog)
    specs = (table.metadata.spec, msgspec.structs.replace(BY_KIND, spec_id=1))
    metadata = msgspec.structs.replace(table.metadata, partition_specs=specs, last_partition_id=1000)
    catalog.drop(EVENTS)
    table = add(add(add(catalog.create(EVENTS, metadata), "a"), "b"), "c")
    reader = Counting(catalog.storage)
    result = expire(
        table, RetentionPolicy(older_than_ms=2**62, retain_last=2), clean_expired_metadata=True, reader=reader
    )
    assert [s.spec_id for s in result.table.metadata.partition_specs] == [0]
    # Once more for the manifests, which are asked themselves where their lists name no other spec.
    assert reader.read == ids(table)[:0:-1] * 2


def test_no_list_is_read_where_there_is_only_one_spec(catalog, table):
    reader = Counting(catalog.storage)
    expire(table, clean_expired_metadata=True, reader=reader)
    assert reader.read == []
