"""What a Glue catalog asks of Glue, and what it makes of a table's entry there."""

from contextlib import contextmanager

import msgspec
import pytest

from icekeep.catalog.base import Committed
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, UnsupportedError
from icekeep.spec.types import LONG, STRING, ListType, MapType, NestedField, StructType, decimal, parse_type
from icekeep.spec.updates import RemoveProperties, SetProperties
from kit.catalogs import EVENTS, SCHEMA, set_counter, simple_metadata
from kit.object_store import entry_of, glue_properties
from kit.runtime import FakeRuntime


@pytest.fixture
def properties(endpoint, tmp_path):
    yield glue_properties(endpoint, (tmp_path / "warehouse").as_uri())
    glue = opened(glue_properties(endpoint, ""))._client().glue
    for database in glue.get_databases()["DatabaseList"]:
        glue.delete_database(Name=database["Name"])


def opened(properties, **more):
    return open_catalog("local", {**properties, **more}, FakeRuntime())


@pytest.fixture
def catalog(properties):
    catalog = opened(properties)
    catalog.create_namespace(("db",))
    return catalog


@contextmanager
def noted(catalog, event):
    """The parameters of requests, as the client is about to send them."""
    events, seen = catalog._client().glue.meta.events, []

    def note(params, **_):
        seen.append(params)

    events.register(event, note)
    yield seen
    events.unregister(event, note)


def a_table(catalog, **table_properties):
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS), **table_properties))


@pytest.mark.parametrize("account", [None, "123456789012"])
def test_every_request_says_whose_catalog_is_meant(properties, account):
    catalog = opened(properties, **({"glue.id": account} if account else {}))
    with noted(catalog, "provide-client-params.glue") as seen:
        catalog.create_namespace(("db",))
        table = a_table(catalog)
        assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
        catalog.list_tables(("db",))
        catalog.list_namespaces()
        catalog.drop(EVENTS)
        catalog.drop_namespace(("db",))
    assert len(seen) >= 8
    assert {params.get("CatalogId") for params in seen} == {account}


@pytest.mark.parametrize(("given", "skips"), [({}, True), ({"glue.skip-archive": "false"}, False)])
def test_old_entry_versions_are_kept_if_properties_say_so(properties, given, skips):
    catalog = opened(properties, **given)
    catalog.create_namespace(("db",))
    table = a_table(catalog)
    with noted(catalog, "provide-client-params.glue.UpdateTable") as seen:
        catalog.swap(table, [], set_counter(1))
    assert [params["SkipArchive"] for params in seen] == [skips]


def test_what_others_have_put_into_an_entry_stays(catalog):
    table = a_table(catalog)
    entry = entry_of(catalog, EVENTS)
    more = {"Description": "of sales", "Owner": "sales", "Retention": 3}
    stored = {**entry["StorageDescriptor"], "AdditionalLocations": ["s3://more/"]}
    given = {"Name": "events", "StorageDescriptor": stored, "Parameters": {**entry["Parameters"], "theirs": "1"}}
    catalog._client().glue.update_table(DatabaseName="db", TableInput={**given, **more})
    catalog.swap(table, [], set_counter(1))
    after = entry_of(catalog, EVENTS)
    assert {key: after[key] for key in more} == more
    assert after["StorageDescriptor"]["AdditionalLocations"] == ["s3://more/"]
    assert after["Parameters"]["theirs"] == "1"
    assert after["TableType"] == "EXTERNAL_TABLE"


def test_table_properties_never_replace_the_pointer(catalog):
    table = a_table(catalog, owner="me", **{"write.data.path": "s3://data"})
    assert entry_of(catalog, EVENTS)["Parameters"]["owner"] == "me"
    updates = [RemoveProperties(("owner",)), SetProperties({"metadata_location": "s3://evil", "table_type": "hudi"})]
    after = catalog.swap(table, [], updates).table
    parameters = entry_of(catalog, EVENTS)["Parameters"]
    assert "owner" not in parameters
    assert parameters["write.data.path"] == "s3://data"
    assert catalog.find(EVENTS).metadata_location == parameters["metadata_location"] == after.metadata_location
    assert parameters["previous_metadata_location"] == table.metadata_location
    assert parameters["table_type"] == "ICEBERG"


def test_columns_have_ids_and_former_ones_come_last(catalog):
    columns = {
        "id": (LONG, "bigint"),
        "at": (parse_type("timestamptz"), "timestamp"),
        "ns": (parse_type("timestamp_ns"), "timestamp_ns"),
        "price": (decimal(9, 2), "decimal(9,2)"),
        "tags": (MapType(key_id=21, key=STRING, value_id=22, value=LONG), "map<string,bigint>"),
        "parts": (
            ListType(element_id=23, element=StructType((NestedField(field_id=24, name="a", type=STRING),))),
            "array<struct<a:string>>",
        ),
    }
    fields = tuple(
        NestedField(
            field_id=number, name=name, type=type_, required=name == "id", doc="the key" if name == "id" else None
        )
        for number, (name, (type_, _)) in enumerate(columns.items(), 1)
    )
    former = msgspec.structs.replace(SCHEMA, schema_id=1)
    base = simple_metadata(catalog.default_location(EVENTS))
    schemas = (former, msgspec.structs.replace(SCHEMA, fields=fields, schema_id=0))
    catalog.create(
        EVENTS, msgspec.structs.replace(base, format_version=3, next_row_id=0, schemas=schemas, last_column_id=24)
    )
    told = entry_of(catalog, EVENTS)["StorageDescriptor"]["Columns"]
    assert [(column["Name"], column["Type"]) for column in told] == [
        *((name, expected) for name, (_, expected) in columns.items()),
        ("name", "string"),
    ]
    assert told[0]["Comment"] == "the key"
    assert told[0]["Parameters"] == {
        "iceberg.field.id": "1",
        "iceberg.field.optional": "false",
        "iceberg.field.current": "true",
    }
    assert told[-1]["Parameters"]["iceberg.field.current"] == "false"


def test_an_entry_without_a_version_is_not_changed(catalog):
    table = a_table(catalog)
    events = catalog._client().glue.meta.events

    def forget(parsed, **_):
        del parsed["Table"]["VersionId"]

    events.register("after-call.glue.GetTable", forget)
    with pytest.raises(UnsupportedError, match=r"the entry of table 'db.events' in Glue has no version"):
        catalog.swap(table, [], set_counter(1))
    events.unregister("after-call.glue.GetTable", forget)
    assert catalog.load(EVENTS).metadata == table.metadata


def test_a_database_is_made_as_properties_say(catalog):
    catalog.create_namespace(("placed",), {"location": "file:///p", "Description": "d", "other": "1"})
    found = catalog._client().glue.get_database(Name="placed")["Database"]
    assert (found["LocationUri"], found["Description"], found["Parameters"]) == ("file:///p", "d", {"other": "1"})


def test_keys_and_region_may_be_those_of_all_clients_of_amazon(properties):
    common = {key.replace("glue.", "client."): value for key, value in properties.items() if "endpoint" not in key}
    catalog = open_catalog("local", {"type": "glue", "glue.endpoint": properties["glue.endpoint"], **common})
    assert catalog.list_namespaces() == []
    assert catalog._client().glue.meta.region_name == "us-east-1"


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [("glue.max-retries", "many", "a whole number"), ("glue.skip-archive", "maybe", "true or false")],
)
def test_a_property_that_makes_no_sense_is_a_configuration_error(properties, key, value, wanted):
    with pytest.raises(ConfigError, match=f"'catalogs.local.{key}': is '{value}'; give {wanted}"):
        opened(properties, **{key: value}).list_namespaces()
