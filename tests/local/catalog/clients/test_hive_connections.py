"""How a Hive catalog reaches its metastore, waits for its locks, and describes columns there."""

import copy
import re
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from icekeep.catalog.base import Committed, Conflict
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, UnavailableError, UsageError
from icekeep.spec.types import LONG, STRING, ListType, MapType, NestedField, StructType, decimal, fixed, parse_type
from kit.catalogs import EVENTS, SCHEMA, set_counter, simple_metadata
from kit.hive_server import HiveServer, hive_properties
from kit.runtime import FakeRuntime

DEAD = "thrift://127.0.0.1:1"


@pytest.fixture
def metastore():
    server = HiveServer()
    yield server
    server.close()


def opened(metastore, directory, **more):
    return open_catalog("local", hive_properties(metastore, directory, **more), FakeRuntime())


@pytest.mark.parametrize(
    "address", ["thrift://127.0.0.1", "127.0.0.1:9083", "http://127.0.0.1:9083", "thrift://h:0", "thrift://h:x", ""]
)
def test_what_is_no_address_of_a_metastore_is_no_outage(metastore, tmp_path, address):
    catalog = opened(metastore, tmp_path, uri=f"thrift://127.0.0.1:{metastore.port},{address}")
    with pytest.raises(
        ConfigError, match=r"'catalogs.local.uri': has .*, which is no address of a metastore; give thrift://HOST:PORT"
    ):
        catalog.list_namespaces()


def test_the_first_metastore_that_answers_is_asked(metastore, tmp_path):
    alive = f"thrift://127.0.0.1:{metastore.port}"
    catalog = opened(metastore, tmp_path, uri=f"{DEAD}, {alive}")
    catalog.create_namespace(("db",))
    assert catalog.list_namespaces() == [("db",)]


def test_one_that_ended_is_stood_in_for(metastore, tmp_path):
    other = HiveServer()
    other.databases = metastore.databases
    catalog = opened(metastore, tmp_path, uri=f"thrift://127.0.0.1:{other.port},thrift://127.0.0.1:{metastore.port}")
    catalog.create_namespace(("db",))
    calls = len(metastore.calls)
    other.close()
    assert catalog.list_namespaces() == [("db",)]
    assert calls == 0 != len(metastore.calls)


def test_where_none_answers_the_catalog_is_unavailable(metastore, tmp_path):
    catalog = opened(metastore, tmp_path, uri=f"{DEAD},thrift://127.0.0.1:2")
    with pytest.raises(UnavailableError, match=r"catalog 'local' cannot be asked: .*127\.0\.0\.1"):
        catalog.list_namespaces()


@pytest.mark.parametrize(
    ("given", "user"), [("me:ops", ("me", ["ops"])), ("me", ("me", [])), ("me:a:b", ("me", ["a", "b"]))]
)
def test_a_user_is_told_as_properties_say(metastore, tmp_path, given, user):
    opened(metastore, tmp_path, ugi=given).list_namespaces()
    assert metastore.users == [user]


@pytest.mark.parametrize(("service", "lets_in"), [("hive", True), ("metastore", False)])
def test_a_ticket_of_kerberos_is_shown(tmp_path, monkeypatch, service, lets_in):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "kit/fake_puresasl")
    metastore = HiveServer(service=f"{service}/127.0.0.1")
    catalog = opened(metastore, tmp_path, **{"hive.kerberos-authentication": "true"})
    if lets_in:
        catalog.create_namespace(("db",))
        table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
        assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    else:
        with pytest.raises(UsageError, match=r"by Kerberos: .*no ticket for this service.*; get a ticket"):
            catalog.list_namespaces()
    named = {"hive.kerberos-authentication": "true", "hive.kerberos-service-name": service}
    assert len(opened(metastore, tmp_path, **named).list_namespaces()) == lets_in
    metastore.close()


def test_a_database_of_many_tables_is_listed_by_kerberos(tmp_path, monkeypatch):
    """One answer may have 16 MB, and each entry holds its table's schema."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "kit/fake_puresasl")
    metastore = HiveServer(service="hive/127.0.0.1")
    catalog = opened(metastore, tmp_path, **{"hive.kerberos-authentication": "true"})
    catalog.create_namespace(("db",))
    catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    entry = metastore.tables.pop(EVENTS)
    entry.parameters["current-schema"] = "x" * 100_000
    for number in range(250):
        metastore.tables[("db", f"t{number:03}")] = renamed(entry, f"t{number:03}")
    assert catalog.list_tables(("db",)) == [("db", f"t{number:03}") for number in range(250)]
    metastore.close()


def renamed(entry, name):
    copied = copy.copy(entry)
    copied.tableName = name
    return copied


def test_kerberos_that_is_not_installed_whole_is_told(metastore, tmp_path, monkeypatch):
    """Its client is there, and what that takes is not."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "kit/fake_puresasl")
    from puresasl.client import SASLClient

    def lacking(*_, **__):
        raise ImportError("kerberos module not installed, GSSAPI unavailable")

    monkeypatch.setattr(SASLClient, "__init__", lacking)
    catalog = opened(metastore, tmp_path, **{"hive.kerberos-authentication": "true"})
    with pytest.raises(UsageError, match="by Kerberos: kerberos module not installed, GSSAPI unavailable"):
        catalog.list_namespaces()


class GSSError(Exception):
    """As pykerberos raises it, with what MIT's library says: pairs of a text and a number."""


@pytest.mark.parametrize(
    ("said", "number", "kind"),
    [
        ("No Kerberos credentials available (default cache: FILE:/tmp/cc)", -1765328243, UsageError),
        ("Server other/h@ICE.TEST not found in Kerberos database", -1765328377, UsageError),
        ("Cannot contact any KDC for realm 'ICE.TEST'", -1765328228, UnavailableError),
    ],
)
def test_what_keeps_kerberos_from_a_ticket_is_told(metastore, tmp_path, monkeypatch, said, number, kind):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "kit/fake_puresasl")
    from puresasl.client import SASLClient

    def process(_, challenge=None):
        raise GSSError(("Unspecified GSS failure", 851968), (said, number))

    monkeypatch.setattr(SASLClient, "process", process)
    catalog = opened(metastore, tmp_path, **{"hive.kerberos-authentication": "true"})
    with pytest.raises(kind, match=rf"cannot log in .* by Kerberos: Unspecified GSS failure; {re.escape(said)}"):
        catalog.list_namespaces()


@pytest.mark.parametrize("user", [{}, {"ugi": "me"}])
@pytest.mark.parametrize(
    "answer",
    [b"\x04\0\0\0\x13Invalid status -128", b"\x15\x03\x03\0\x02\x02\x28", b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    ids=["Kerberos", "TLS", "HTTP"],
)
def test_an_answer_that_is_no_thrift_looks_like_a_long_one(tmp_path, answer, user):
    """A metastore that wants Kerberos refuses other logins by a status, a length and a text."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse():
            connection, _ = server.accept()
            connection.recv(100)
            connection.sendall(answer)
            connection.close()

        refusing = threading.Thread(target=refuse)
        refusing.start()
        uri = f"thrift://127.0.0.1:{server.getsockname()[1]}"
        catalog = open_catalog("local", {"type": "hive", "uri": uri, "warehouse": str(tmp_path), **user}, FakeRuntime())
        says = r"no plain Thrift .* Kerberos, set hive\.kerberos-authentication=true; .*; else check the port$"
        with pytest.raises(UsageError, match=says):
            catalog.list_namespaces()
        refusing.join()


@pytest.mark.parametrize(
    ("waits", "sleeps_ms"),
    [
        ({}, [100, 200, 400, 800, *[1000] * 13]),
        ({"lock-check-retries": "6", "lock-check-max-wait-time": "0.5"}, [100, 200, 400, *[500] * 4]),
        ({"lock-check-retries": "3", "lock-check-min-wait-time": "3.5"}, [3500, 3500, 3500]),
    ],
)
def test_lock_is_polled_often_for_as_long_as_pyiceberg_waits(metastore, tmp_path, waits, sleeps_ms):
    """Which looks at it after 2, 6 and 14 seconds; a lock that is ours keeps all others waiting until we see it."""
    properties = {k: v for k, v in hive_properties(metastore, tmp_path).items() if not k.startswith("lock-check")}
    catalog = open_catalog("local", {**properties, **waits}, FakeRuntime())
    catalog.create_namespace(("db",))
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    metastore.locks[EVENTS] = [4711]
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Conflict)
    assert catalog.runtime.sleeps_ms == sleeps_ms
    metastore.locks[EVENTS] = [4711]
    catalog.runtime.before_sleep = lambda: metastore.locks[EVENTS].remove(4711)
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("lock-check-min-wait-time", "soon", "seconds"),
        ("lock-check-retries", "-1", "a whole number"),
        ("hive.hive2-compatible", "perhaps", "true or false"),
    ],
)
def test_a_property_that_makes_no_sense_is_a_configuration_error(metastore, tmp_path, key, value, wanted):
    with pytest.raises(ConfigError, match=f"'catalogs.local.{key}': is '{value}'; give {wanted}"):
        opened(metastore, tmp_path, **{key: value}).list_namespaces()


COLUMNS = [
    (name, parse_type(name), expected)
    for name, expected in {
        "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double", "date": "date",
        "time": "string", "timestamp": "timestamp", "timestamptz": "timestamp with local time zone", "string": "string",
        "uuid": "string", "binary": "binary", "unknown": "void",
    }.items()
] + [
    ("decimal", decimal(9, 2), "decimal(9,2)"),
    ("fixed", fixed(4), "binary"),
    ("list", ListType(element_id=101, element=LONG), "array<bigint>"),
    ("map", MapType(key_id=102, key=STRING, value_id=103, value=decimal(3, 0)), "map<string,decimal(3,0)>"),
    (
        "struct",
        StructType((
            NestedField(field_id=104, name="a", type=LONG),
            NestedField(field_id=105, name="b", type=ListType(element_id=106, element=fixed(2))),
        )),
        "struct<a:bigint,b:array<binary>>",
    ),
]  # fmt: skip


@pytest.mark.parametrize("is_old", [False, True])
def test_columns_have_the_types_of_hive(metastore, tmp_path, is_old):
    catalog = opened(metastore, tmp_path, **{"hive.hive2-compatible": str(is_old)})
    catalog.create_namespace(("db",))
    fields = tuple(
        NestedField(field_id=number, name=name, type=type_, doc=f"the {name}")
        for number, (name, type_, _) in enumerate(COLUMNS, 1)
    )
    base = simple_metadata(catalog.default_location(EVENTS))
    schema = msgspec.structs.replace(SCHEMA, fields=fields)
    catalog.create(
        EVENTS,
        msgspec.structs.replace(base, format_version=3, next_row_id=0, schemas=(schema,), last_column_id=106),
    )
    expected = {name: type_ for name, _, type_ in COLUMNS} | ({"timestamptz": "timestamp"} if is_old else {})
    columns = metastore.tables[EVENTS].sd.cols
    assert {column.name: column.type for column in columns} == expected
    assert columns[0].comment == "the boolean"
