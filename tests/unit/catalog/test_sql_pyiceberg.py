"""One SQLite file and two implementations: what one makes, the other loads and commits to."""

import json

import pyiceberg.schema
import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest
from pyiceberg.types import LongType, NestedField, StringType

from icekeep.catalog.base import Committed, Conflict
from icekeep.catalog.open import open_catalog
from icekeep.spec.metadata import metadata_from_json
from kit.catalogs import COUNTER, EVENTS, set_counter, simple_metadata

SCHEMA = pyiceberg.schema.Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))


@pytest.fixture
def properties(tmp_path):
    return {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture
def ours(properties):
    return open_catalog("local", {"type": "sql", **properties})


@pytest.fixture
def theirs(properties):
    catalog = PyIcebergCatalog("local", **properties)
    yield catalog
    catalog.close()


def test_a_table_that_pyiceberg_made_is_loaded_and_committed_to(ours, theirs):
    theirs.create_namespace("db")
    their_table = theirs.create_table("db.events", SCHEMA, properties={"owner": "them"})
    table = ours.load(EVENTS)
    assert table.metadata_location == their_table.metadata_location
    assert str(their_table.metadata.table_uuid) == table.metadata.table_uuid
    assert [field.name for field in table.metadata.schema.fields] == ["id", "name"]
    assert isinstance(ours.swap(table, [], set_counter(1)), Committed)
    assert their_table.refresh().properties == {"owner": "them", COUNTER: "1"}


def test_pyiceberg_loads_and_commits_to_icekeep_table(ours, theirs):
    ours.create_namespace(("db",))
    table = ours.create(EVENTS, simple_metadata(ours.default_location(EVENTS), owner="us"))
    their_table = theirs.load_table("db.events")
    assert their_table.metadata_location == table.metadata_location
    assert their_table.schema() == SCHEMA
    with their_table.transaction() as transaction:
        transaction.set_properties({COUNTER: "1"})
    assert ours.load(EVENTS).metadata.properties == {"owner": "us", COUNTER: "1"}


def test_both_read_the_same_metadata_from_one_file(ours, theirs):
    ours.create_namespace(("db",))
    table = ours.create(EVENTS, simple_metadata(ours.default_location(EVENTS), owner="us"))
    table = ours.swap(table, [], set_counter(1)).table
    theirs_as_json = json.loads(theirs.load_table("db.events").metadata.model_dump_json())
    assert metadata_from_json(theirs_as_json) == table.metadata


def test_whoever_commits_first_wins_and_the_other_is_told(ours, theirs):
    theirs.create_namespace("db")
    theirs.create_table("db.events", SCHEMA)
    their_stale, our_stale = theirs.load_table("db.events"), ours.load(EVENTS)
    with theirs.load_table("db.events").transaction() as transaction:
        transaction.set_properties({COUNTER: "theirs"})
    assert isinstance(ours.swap(our_stale, [], set_counter("ours")), Conflict)
    our_fresh = ours.load(EVENTS)
    append = their_stale.update_schema().add_column("more", LongType())
    assert isinstance(ours.swap(our_fresh, [], set_counter("ours")), Committed)
    append.commit()
    final = ours.load(EVENTS).metadata
    assert final.properties == {COUNTER: "ours"}
    assert [field.name for field in final.schema.fields] == ["id", "name", "more"]


def test_pyiceberg_commit_on_replaced_base_is_refused(ours, theirs):
    theirs.create_namespace("db")
    stale = theirs.create_table("db.events", SCHEMA)
    table = ours.load(EVENTS)
    assert isinstance(ours.swap(table, [], set_counter(1)), Committed)
    requirement = {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    with pytest.raises(CommitFailedException):
        stale.catalog.commit_table(stale, _requirements(requirement), ())


def test_namespaces_and_names_are_the_same_for_both(ours, theirs):
    theirs.create_namespace("theirs.raw")
    ours.create_namespace(("ours", "raw"))
    theirs.create_table("theirs.raw.events", SCHEMA)
    identifier = ("ours", "raw", "events")
    ours.create(identifier, simple_metadata(ours.default_location(identifier)))
    assert sorted(theirs.list_namespaces()) == [("ours",), ("theirs",)]
    assert ours.list_namespaces() == [("ours",), ("ours", "raw"), ("theirs",), ("theirs", "raw")]
    for name in ("ours", "theirs"):
        assert ours.list_tables((name, "raw")) == theirs.list_tables((name, "raw")) == [(name, "raw", "events")]
    ours.rename(identifier, ("theirs", "raw", "moved"))
    assert theirs.load_table("theirs.raw.moved").location().endswith("/ours/raw/events")
    theirs.drop_table("theirs.raw.moved")
    ours.drop(("theirs", "raw", "events"))
    ours.drop_namespace(("theirs", "raw"))
    assert sorted(theirs.list_namespaces()) == [("ours",)]


def _requirements(*requirements):
    request = {"identifier": {"namespace": ["db"], "name": "events"}, "requirements": requirements, "updates": []}
    return CommitTableRequest.model_validate(request).requirements
