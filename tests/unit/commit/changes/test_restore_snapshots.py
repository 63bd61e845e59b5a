import pytest
from msgspec.structs import replace

from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.snapshots import ExpireSnapshots, RestoreExpired
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, NotFoundError, UsageError
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.schema import Schema
from icekeep.spec.updates import AssertRefSnapshotId, RemoveSnapshotRef
from kit.changes import run
from kit.memory_catalog import LANDS_BUT_SAYS_CONFLICT, after
from kit.tables import BY_KIND, BY_SCORE, EVENTS, add, data_file, ids, live, memory_table, set_ref, swap

ALL_BUT_HEADS = RetentionPolicy(older_than_ms=2**62, retain_last=1)


@pytest.fixture
def table(catalog):
    """Four snapshots; files that only the first three have are gone from the last."""
    table = memory_table(catalog)
    for name in "abc":
        table = add(table, name)
    return run(table, DeleteFiles(paths=frozenset({data_file("a").file_path}))).table


def expire(table, **options):
    return run(table, ExpireSnapshots(policy=ALL_BUT_HEADS, now_ms=0, **options)).table


def restore(table, before, snapshot_ids=None, **options):
    wanted = tuple(ids(before)[:-1] if snapshot_ids is None else snapshot_ids)
    return run(table, RestoreExpired(before=before.metadata, snapshot_ids=wanted), **options)


def test_expired_snapshots_come_back_each_under_its_tag(table):
    after_expiration = expire(table)
    assert len(ids(after_expiration)) == 1
    result = restore(after_expiration, table)
    now = result.table.metadata
    assert now.snapshots_by_id == table.metadata.snapshots_by_id
    tags = {f"restored-{i}": i for i in ids(table)[:-1]}
    assert {n: r.snapshot_id for n, r in now.refs.items()} == {"main": ids(table)[-1], **tags}
    assert {(r.type, r.max_ref_age_ms) for n, r in now.refs.items() if n != "main"} == {("tag", 2**63 - 1)}
    assert live(result.table, f"restored-{ids(table)[2]}") == {"a": 1, "b": 1, "c": 1}
    assert now.snapshot_log == after_expiration.metadata.snapshot_log
    assert result.snapshot_id is None


def test_commits_go_on_after_it(table):
    now = restore(expire(table), table).table
    now = add(now, "d")
    assert live(now) == {"b": 1, "c": 1, "d": 1}
    assert now.metadata.last_sequence_number == table.metadata.last_sequence_number + 1


def test_each_tag_must_not_be_there_when_it_lands(table, catalog):
    restore(expire(table), table)
    requirements, _ = catalog.swaps[-1]
    assert {r for r in requirements if isinstance(r, AssertRefSnapshotId)} == {
        AssertRefSnapshotId(f"restored-{i}", None) for i in ids(table)[:-1]
    }


def test_snapshots_that_are_there_stay_as_they_are_and_get_no_tag(table):
    assert restore(table, table).changed is False
    some = restore(expire(table), table, ids(table)[:1]).table
    without_tag = swap(some, RemoveSnapshotRef(f"restored-{ids(table)[0]}"))
    now = restore(without_tag, table).table.metadata
    assert now.snapshots_by_id == table.metadata.snapshots_by_id
    assert {n for n in now.refs if n != "main"} == {f"restored-{i}" for i in ids(table)[1:3]}


def test_what_others_restore_meanwhile_is_fine(table, catalog):
    gone = expire(table)
    catalog.follow(after(lambda: restore(gone, table)))
    assert restore(gone, table).changed is False


def test_what_was_restored_although_the_answer_was_lost_is_fine(table, catalog):
    gone = expire(table)
    catalog.follow(LANDS_BUT_SAYS_CONFLICT)
    assert restore(gone, table).table.metadata.snapshots_by_id == table.metadata.snapshots_by_id


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_name_that_others_take_meanwhile_is_not_moved(table, catalog, kind):
    gone = expire(table)
    name = f"restored-{ids(table)[0]}"
    catalog.follow(after(lambda: set_ref(gone, name, ids(gone)[0], kind)))
    with pytest.raises(UsageError, match=f"{kind} '{name}' exists already, at snapshot {ids(gone)[0]}"):
        restore(gone, table)
    assert ids(catalog.load(EVENTS)) == ids(gone)


def test_another_snapshot_of_the_same_id_is_not_touched(table):
    other = replace(table.metadata.snapshots[0], timestamp_ms=1)
    before = replace(table, metadata=replace(table.metadata, snapshots=(other, *table.metadata.snapshots[1:])))
    with pytest.raises(
        InvalidTableError, match=f"snapshot {other.snapshot_id} cannot be restored: the table has another"
    ):
        restore(table, before)


def test_snapshots_that_were_never_there_cannot_be_restored(table):
    with pytest.raises(
        InvalidTableError, match="snapshot 4711 cannot be restored: the metadata from before it expired does"
    ):
        restore(table, table, [4711])


def test_a_table_that_is_gone_is_not_found(table, catalog):
    catalog.drop(EVENTS)
    with pytest.raises(NotFoundError):
        restore(table, table)


# What they need.


def evolved(catalog):
    """A table that was partitioned by `kind` and lost that and the column; its one file of that time is gone.

    A third spec, by `score`, was never used.
    """
    table = add(memory_table(catalog, spec=BY_KIND), data_file("old", partition=("x",)))
    without_kind = Schema(fields=tuple(f for f in table.metadata.schema.fields if f.name != "kind"), schema_id=1)
    specs = BY_KIND, replace(UNPARTITIONED, spec_id=1), replace(BY_SCORE, spec_id=2)
    metadata = replace(
        table.metadata,
        schemas=(*table.metadata.schemas, without_kind),
        current_schema_id=1,
        partition_specs=specs,
        default_spec_id=1,
    )
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, metadata)
    table = run(table, DeleteFiles(paths=frozenset({data_file("old").file_path}))).table
    return add(table, data_file("new", spec_id=1))


def cleaned(table):
    """The table without what nothing uses any more: a spec holds its schema, so that it takes two runs."""
    once = expire(table, clean_expired_metadata=True)
    return add(expire(once, clean_expired_metadata=True), data_file("more", spec_id=1))


class Counting(ManifestReader):
    """Remembers how many manifest lists were read."""

    read = 0

    def manifests(self, snapshot):
        self.read += 1
        return super().manifests(snapshot)


def test_schemas_and_specs_that_they_need_come_back_and_no_others(catalog):
    table = evolved(catalog)
    gone = cleaned(table)
    assert [s.schema_id for s in gone.metadata.schemas] == [1]
    assert [s.spec_id for s in gone.metadata.partition_specs] == [1]
    now = restore(gone, table).table
    assert set(now.metadata.schemas_by_id) == {0, 1}
    assert set(now.metadata.specs_by_id) == {0, 1}
    assert now.metadata.partition_type(0) == table.metadata.partition_type(0)
    assert live(now, f"restored-{ids(table)[0]}") == {"old": 1}
    assert (now.metadata.current_schema_id, now.metadata.default_spec_id) == (1, 1)


def test_no_list_is_read_where_the_specs_are_all_there(table, catalog):
    gone = expire(table)
    reader = Counting(catalog.storage)
    restore(gone, table, reader=reader)
    assert reader.read == 0


def test_a_schema_that_only_a_partition_spec_needs_comes_back_with_it(catalog):
    table = evolved(catalog)
    # As tables of version 1 have them, which need not say their schema.
    nameless = tuple(replace(s, schema_id=None) for s in table.metadata.snapshots)
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, replace(table.metadata, snapshots=nameless))
    now = restore(cleaned(table), table).table
    assert set(now.metadata.schemas_by_id) == {0, 1}
    assert now.metadata.partition_type(0) == table.metadata.partition_type(0)


def test_an_id_that_was_given_out_anew_matters_only_where_it_is_needed(catalog):
    table = evolved(catalog)
    gone = cleaned(table)

    def with_spec(spec):
        catalog.drop(EVENTS)
        return catalog.create(
            EVENTS, replace(gone.metadata, partition_specs=(*gone.metadata.partition_specs, spec), schemas=schemas)
        )

    schemas = gone.metadata.schemas
    unneeded = with_spec(replace(UNPARTITIONED, spec_id=2))
    assert restore(unneeded, table).table.metadata.specs_by_id[2].fields == ()
    needed = with_spec(replace(UNPARTITIONED, spec_id=0))
    with pytest.raises(
        InvalidTableError, match="partition spec 0 cannot be restored: the table has another one of this id"
    ):
        restore(needed, table)
    assert ids(catalog.load(EVENTS)) == ids(gone)
    schemas = (*schemas, replace(schemas[0], schema_id=0))
    with pytest.raises(InvalidTableError, match="schema 0 cannot be restored: the table has another one of this id"):
        restore(with_spec(replace(UNPARTITIONED, spec_id=2)), table)
