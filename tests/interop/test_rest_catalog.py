"""Our REST catalog against Iceberg Java as the server: Java checks, applies and writes the metadata of our commits."""

import itertools
import threading
from collections import Counter

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog

from conformance.gate import Gate, Lost
from contracts.catalog_contract import RestCatalogContract
from icekeep.catalog.base import Committed, Conflict
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, UsageError
from icekeep.maintenance.drop.job import drop_table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.restore.job import restore
from icekeep.runtime import SYSTEM
from icekeep.spec.properties import metadata_directory
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, schema_from_json
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import RemoveSnapshots, SetProperties, SetSnapshotRef, requirements_for
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append, cherrypick_snapshot, create_table, rollback_to_snapshot
from kit.java import JavaRestServer
from kit.lake import SCHEMA, events, multiset
from kit.naive_scan import scan_rows

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = JavaRestServer(tmp_path_factory.mktemp("java-rest"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def old_server(tmp_path_factory):
    """Iceberg 1.10."""
    server = JavaRestServer(tmp_path_factory.mktemp("java-rest"), is_old=True)
    yield server
    server.close()


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory):
    """One that keeps what became of requests that have a key."""
    server = JavaRestServer(tmp_path_factory.mktemp("java-rest"), keeps_keys=True)
    yield server
    server.close()


class TestIcebergJava(RestCatalogContract):
    # Java writes metadata from what it knows.
    test_keys_that_nobody_knows_survive_a_swap = None

    @pytest.fixture
    def properties(self, server):
        """The one catalog of the server, which is empty after each test."""
        yield server.properties
        catalog = open_catalog("local", server.properties)
        # Those above a namespace go with it.
        while namespaces := catalog.list_namespaces():
            deepest = max(namespaces, key=len)
            for table in catalog.list_tables(deepest):
                catalog.drop(table)
            catalog.drop_namespace(deepest)

    @pytest.fixture
    def files(self, server):
        return lambda: {path for path in server.directory.rglob("*.metadata.json*") if path.is_file()}

    def test_a_table_is_put_below_the_warehouse_by_its_name(self, catalog):
        catalog.create_namespace(("a", "b"))
        assert catalog.default_location(("a", "b", "t")).endswith("/warehouse/a/b/t")


@pytest.fixture
def catalog(server):
    return open_catalog("local", server.properties)


@pytest.fixture
def namespace(catalog):
    """A namespace of the test's own."""
    name = (f"db{next(_NUMBERS)}",)
    catalog.create_namespace(name)
    return name


def made(catalog, namespace, name="events", **options):
    return create_table(catalog, (*namespace, name), SCHEMA, partition_by=[("at", "month")], **options)


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize("is_old", [True, False], ids=["1.10", "1.12"])
def test_sequence_number_taken_by_other_branch_is_retried(is_old, format_version, tmp_path, old_server, server):
    """Iceberg 1.10 answers with 400, 1.12 with 409; neither is the end of a commit."""
    opened = old_server if is_old else server
    catalog = open_catalog("local", opened.properties)
    namespace = (f"db{next(_NUMBERS)}",)
    catalog.create_namespace(namespace)
    table = append(made(catalog, namespace, format_version=format_version), events(0))
    create_branch(table, "elsewhere")
    table = catalog.load(table.identifier)
    answers = []
    swap = type(catalog).swap

    class Racing(type(catalog)):
        def swap(self, base, requirements, updates):
            if not answers:
                append(catalog.load(base.identifier), events(1), branch="elsewhere")
            answers.append(swap(self, base, requirements, updates))
            return answers[-1]

    racing = Racing("local", opened.properties, SYSTEM)
    after = append(racing.load(table.identifier), events(2))
    assert [type(answer) for answer in answers] == [Conflict, Committed]
    assert ("ValidationException" in answers[0].reason) == is_old
    assert after.metadata.current_snapshot.sequence_number == 3
    assert multiset(foreign(opened, after).scan().to_arrow()) == multiset(pa.concat_tables([events(0), events(2)]))


def foreign(server, table):
    """The table as PyIceberg's own client sees it."""
    return RestCatalog("foreign", uri=server.uri).load_table(table.identifier)


def test_namespaces_and_names_are_javas(catalog, namespace):
    table = made(catalog, namespace)
    assert table.metadata.location.endswith(f"/warehouse/{namespace[0]}/events")
    assert catalog.list_tables(namespace) == [table.identifier]
    assert namespace in catalog.list_namespaces()
    with pytest.raises(UsageError, match="exists already"):
        catalog.create(table.identifier, table.metadata)
    with pytest.raises(UsageError, match="exists already"):
        catalog.create_namespace(namespace)
    with pytest.raises(UsageError, match="is not empty"):
        catalog.drop_namespace(namespace)
    with pytest.raises(NotFoundError, match="no namespace 'none'"):
        catalog.create(("none", "t"), table.metadata)
    catalog.rename(table.identifier, (*namespace, "new"))
    with pytest.raises(NotFoundError, match="there is no table"):
        catalog.load(table.identifier)
    assert catalog.load((*namespace, "new")).metadata == table.metadata
    location = catalog.drop((*namespace, "new"))
    back = catalog.register_table(table.identifier, location)
    assert (back.metadata, back.metadata_location) == (table.metadata, table.metadata_location)
    with pytest.raises(UsageError, match="exists already"):
        catalog.register_table(table.identifier, location)
    catalog.drop(table.identifier, table_uuid=table.metadata.table_uuid)
    catalog.drop_namespace(namespace)
    assert namespace not in catalog.list_namespaces()


@pytest.mark.parametrize("format_version", [1, 2])
def test_rows_that_we_commit_are_those_that_pyiceberg_reads(server, catalog, namespace, format_version):
    table = made(catalog, namespace, format_version=format_version)
    expected: Counter[str] = Counter()
    for number in range(3):
        table = append(table, [events(number, 20, month=number + 1)])
        expected += multiset(events(number, 20, month=number + 1))
    assert table.metadata.format_version == format_version
    assert multiset(foreign(server, table).scan().to_arrow()) == expected
    assert multiset(scan_rows(catalog.load(table.identifier))) == expected


def test_java_assigns_the_row_ids_of_version_3_as_we_do(catalog, namespace):
    table = made(catalog, namespace, format_version=3)
    for number in range(3):
        table = append(table, [events(number, 20)])
    metadata = catalog.load(table.identifier).metadata
    assert metadata.next_row_id == 60
    assert [(s.first_row_id, s.added_rows) for s in metadata.snapshots] == [(0, 20), (20, 20), (40, 20)]
    rows = scan_rows(table, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    assert sorted(rows["_row_id"].to_pylist()) == list(range(60))


def test_commits_to_a_table_with_a_variant_column(catalog, namespace):
    fields = [
        {"id": 1, "name": "id", "required": True, "type": "long", "initial-default": 7, "write-default": 8},
        {"id": 2, "name": "what", "required": False, "type": "variant"},
        {"id": 3, "name": "at", "required": False, "type": "timestamp_ns"},
    ]
    schema = schema_from_json({"type": "struct", "schema-id": 0, "fields": fields})
    table = create_table(catalog, (*namespace, "odd"), schema, format_version=3)
    outcome = catalog.swap(table, [], [SetProperties({"owner": "me"})])
    assert isinstance(outcome, Committed)
    found = catalog.load(table.identifier).metadata
    assert found.properties["owner"] == "me"
    assert found.schema.fields == schema.fields


def test_threads_that_commit_at_once_lose_nothing(server, catalog, namespace):
    table = made(catalog, namespace, properties={"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "5"})
    errors: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            for number in range(10):
                append(catalog.load(table.identifier), [events(writer * 10 + number, 2)])
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    latest = catalog.load(table.identifier)
    assert len(latest.metadata.snapshots) == 40
    assert [s.sequence_number for s in latest.metadata.snapshots] == list(range(1, 41))
    expected = multiset(pa.concat_tables([events(number, 2) for number in range(40)]))
    assert multiset(foreign(server, table).scan().to_arrow()) == expected
    lists = {snapshot.manifest_list.rsplit("/", 1)[-1] for snapshot in latest.metadata.snapshots}
    there = latest.storage.child_names(metadata_directory(latest.metadata))
    assert {name for name in there if name.startswith("snap-")} == lists


def test_expire_and_rollback_keep_references(server, catalog, namespace):
    table = made(catalog, namespace)
    for number in range(4):
        table = append(table, [events(number, 5)])
    first, second, third, fourth = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    table = create_tag(table, "audit", second)
    rollback_to_snapshot(table, third)
    table = catalog.load(table.identifier)
    assert table.metadata.current_snapshot_id == third
    policy = RetentionPolicy(older_than_ms=SYSTEM.now_ms() + 1, retain_last=1)
    commit(table, ExpireSnapshots(policy=policy, now_ms=SYSTEM.now_ms() + 1))
    kept = catalog.load(table.identifier).metadata
    assert kept.snapshots_by_id.keys() == {second, third}
    assert {name: ref.snapshot_id for name, ref in kept.refs.items()} == {"main": third, "audit": second}
    assert {first, fourth}.isdisjoint(kept.snapshots_by_id)
    assert multiset(foreign(server, table).scan().to_arrow()) == multiset(
        pa.concat_tables([events(number, 5) for number in range(3)])
    )


def test_java_refuses_to_remove_a_snapshot_whose_reference_moved(catalog, namespace):
    table = made(catalog, namespace)
    for number in range(2):
        table = append(table, [events(number, 5)])
    first = table.metadata.snapshots[0].snapshot_id
    table = create_tag(table, "audit", first)
    expiration = [RemoveSnapshots((first,))]
    requirements = requirements_for(table.metadata, expiration)
    moved = SnapshotRef(snapshot_id=table.metadata.snapshots[1].snapshot_id, type="tag")
    assert isinstance(catalog.swap(table, [], [SetSnapshotRef("audit", moved)]), Committed)
    outcome = catalog.swap(table, requirements, expiration)
    assert isinstance(outcome, Conflict)
    assert "audit" in outcome.reason


def test_a_tag_that_java_drops_in_silence_is_not_passed_over(server, catalog, namespace):
    """No requirement can name a reference that is made after the base was loaded."""
    table = made(catalog, namespace)
    for number in range(2):
        table = append(table, [events(number, 5)])
    first = table.metadata.snapshots[0].snapshot_id
    create_tag(open_catalog("other", server.properties).load(table.identifier), "audit", first)
    expiration = [RemoveSnapshots((first,))]
    outcome = catalog.swap(table, requirements_for(table.metadata, expiration), expiration)
    assert not isinstance(outcome, Committed | Conflict)
    assert "the references 'audit' that somebody made meanwhile" in outcome.cause
    assert "audit" not in catalog.load(table.identifier).metadata.refs


def test_java_drops_main_too_where_nobody_asks_for_it(server, catalog, namespace):
    """So a client that expires snapshots without asking where `main` is empties a table that was rolled back meanwhile.

    The server of `tests/conformance` does the same.
    """
    table = append(append(made(catalog, namespace), events(0)), events(1))
    removal = {"action": "remove-snapshots", "snapshot-ids": [table.metadata.current_snapshot_id]}
    same_table = {"type": "assert-table-uuid", "uuid": table.metadata.table_uuid}
    place = f"{server.uri}/v1/namespaces/{namespace[0]}/tables/events"
    answer = requests.post(place, json={"requirements": [same_table], "updates": [removal]}, timeout=60)
    assert answer.status_code == 200
    after = catalog.load(table.identifier).metadata
    assert (after.current_snapshot, len(after.snapshots), dict(after.refs)) == (None, 1, {})


def test_a_snapshot_of_another_history_is_picked(server, catalog, namespace):
    """Java applies the pick to whatever is current; it refuses the reference to a snapshot that is gone by then."""
    table = append(made(catalog, namespace), events(0))
    first = table.metadata.current_snapshot_id
    staged = [append(table, events(1))]
    table = append(rollback_to_snapshot(staged[0], first), events(2))
    table = cherrypick_snapshot(table, staged[0].metadata.current_snapshot_id)
    assert set(table.metadata.refs) == {"main"}
    expected = pa.concat_tables([events(0), events(1), events(2)])
    assert multiset(foreign(server, table).scan().to_arrow()) == multiset(expected)

    staged.append(append(table, events(3)))
    gone = staged[1].metadata.current_snapshot_id
    table = append(rollback_to_snapshot(staged[1], table.metadata.current_snapshot_id), events(4))
    base, swap = table.metadata_location, type(catalog).swap

    class Racing(type(catalog)):
        def swap(self, table, requirements, updates):
            removal = (RemoveSnapshots((gone,)),)
            assert isinstance(swap(catalog, table, requirements_for(table.metadata, removal), removal), Committed)
            return swap(self, table, requirements, updates)

    racing = Racing("local", server.properties, SYSTEM)
    with pytest.raises(UsageError, match=f"to unknown snapshot: {gone}"):
        cherrypick_snapshot(racing.load(table.identifier), gone)
    after = catalog.load(table.identifier)
    assert (after.metadata_location != base, gone in after.metadata.snapshots_by_id) == (True, False)
    assert multiset(foreign(server, after).scan().to_arrow()) == multiset(pa.concat_tables([expected, events(4)]))


def test_expired_files_wait_a_day_and_come_back(server, catalog, namespace):
    """Java applies updates to whatever is current: nothing is deleted in the same breath."""
    table = made(catalog, namespace)
    for number in range(3):
        table = append(table, events(number))
    rows = multiset(scan_rows(table))
    result = expire_snapshots(table, no_spark, older_than=SYSTEM.now_ms() + 1, retain_last=1, trash=0)
    assert (result.expired_snapshots_count, result.deleted_manifest_lists_count) == (2, 0)
    assert (result.left_files_count, result.left_reason) == (2, "the grace has not passed")
    lists = [s.manifest_list for s in table.metadata.snapshots[:2]]
    assert all(table.storage.head(location) for location in lists)
    back = restore(catalog.load(table.identifier))
    assert (back.restored_snapshots_count, back.restored_tags) == (0, ())
    assert "only files can come back" in back.note
    assert multiset(scan_rows(catalog.load(table.identifier))) == rows


def test_without_grace_files_go_at_once(server, catalog, namespace):
    table = made(catalog, namespace)
    for number in range(3):
        table = append(table, events(number))
    rows = multiset(scan_rows(table))
    told = {"older_than": SYSTEM.now_ms() + 1, "retain_last": 1, "trash": 0, "options": {"grace": "0"}}
    result = expire_snapshots(table, no_spark, **told)
    assert (result.expired_snapshots_count, result.deleted_manifest_lists_count, result.left_files_count) == (2, 2, 0)
    assert multiset(scan_rows(catalog.load(table.identifier))) == rows
    assert foreign(server, table).scan().to_arrow().num_rows == sum(rows.values())


def test_purge_drops_table_at_server_and_deletes_its_files(server, catalog, namespace):
    table = append(made(catalog, namespace), events(0))
    other = append(made(catalog, namespace, "other"), events(1))
    result = drop_table(table, no_spark, purge=True)
    assert (result.status, result.is_purged) == ("done", True)
    with pytest.raises(NotFoundError):
        catalog.load(table.identifier)
    # Hadoop's own checksums of the files that the server wrote are no files of the table.
    left = [file.location for file in table.storage.list(table.metadata.location)]
    assert [location for location in left if not location.endswith(".crc")] == []
    assert scan_rows(catalog.load(other.identifier)).num_rows == 20


def no_spark():
    raise AssertionError("Spark has no part in this")


@pytest.mark.parametrize("lost", [Lost(500), Lost(504), Lost(0), Lost(503, applied=False)], ids=repr)
def test_java_knows_a_request_again_by_its_key(keyed_server, lost):
    """Its answer is lost on the way; what it was is asked again, and Java carries nothing out twice."""
    gate = Gate(keyed_server.uri)
    try:
        namespace = f"k{next(_NUMBERS)}"
        catalog = open_catalog("local", {**keyed_server.properties, "uri": gate.uri})
        catalog.create_namespace((namespace,))
        table = create_table(catalog, (namespace, "t"), SCHEMA)
        for number in (1, 2):
            gate.lost = {2 * number - 1: lost}
            table = append(table.refresh(), events(number, rows=5))
        assert [(one.status, one.told) for one in gate.commits[::2]] == [(200 if lost.applied else 0, lost.status)] * 2
        assert [one.told for one in gate.commits[1::2]] == [200] * 2
        metadata = catalog.load((namespace, "t")).metadata
        assert (len(metadata.snapshots), scan_rows(catalog.load((namespace, "t"))).num_rows) == (2, 10)
        gate.lost = {5: lost}
        result = expire_snapshots(catalog.load((namespace, "t")), older_than=SYSTEM.now_ms() + 1000, retain_last=1)
        assert (result.status, len(catalog.load((namespace, "t")).metadata.snapshots)) == ("done", 1)
        catalog.drop((namespace, "t"))
        catalog.drop_namespace((namespace,))
    finally:
        gate.close()
