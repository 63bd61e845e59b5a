"""What is sent to a REST server, and what is made of its answers: paths, pages, redirections, and what makes no sense."""

import pytest

from icekeep.catalog.base import Committed, NamespacesMissingError, Unknown
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, OutcomeUnknownError, UnavailableError, UnsupportedError, UsageError
from kit.catalogs import COUNTER, EVENTS, set_counter, simple_metadata
from kit.rest_server import CREDENTIALS, ENDPOINTS, Fault, Refusal, RestServer


@pytest.fixture
def table(server):
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


@pytest.mark.parametrize("prefix", ["", "ws", "catalogs/123", "arn%3Aaws%3As3tables"])
@pytest.mark.parametrize("separator", [None, "%1F", "%2E"])
def test_paths_are_as_the_server_wants_them(server, prefix, separator):
    server.config = {"prefix": prefix}
    if separator is not None:
        server.config["namespace-separator"] = separator
        server.separator = {"%1F": "\x1f", "%2E": "."}[separator]
    catalog = open_catalog("local", server.properties)
    name = ("a", "b c", "d+e%f")
    catalog.create_namespace(name[:-1])
    table = catalog.create(name, simple_metadata(catalog.default_location(name)))
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert catalog.list_tables(name[:-1]) == [name]
    assert catalog.list_namespaces() == [("a",), ("a", "b c")]
    assert {path.startswith(f"/v1/{prefix}") for _, path in server.requests if path != "/v1/config"} == {True}


def test_a_level_that_the_server_would_take_apart_is_refused(server):
    server.config, server.separator = {"namespace-separator": "%2E"}, "."
    catalog = open_catalog("local", server.properties)
    for use in (catalog.load, catalog.find, catalog.drop):
        with pytest.raises(UsageError, match=r"separates the levels of a namespace with '\.', .* the level 'a\.b'$"):
            use(("a.b", "t"))


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("asked", [None, "2"])
def test_all_pages_of_a_list_are_read(server, length, asked):
    server.page_length = length
    catalog = open_catalog("local", {**server.properties, **({"rest-page-size": asked} if asked else {})})
    names = [("db", f"t{number}") for number in range(3)]
    for name in ("db", "eb", "fb"):
        catalog.create_namespace((name,))
    for name in names:
        catalog.create(name, simple_metadata(catalog.default_location(name)))
    assert catalog.list_tables(("db",)) == names
    assert catalog.list_namespaces() == [("db",), ("eb",), ("fb",)]
    assert {"pageSize=2" in query for query in server.queries[-2:]} == {asked is not None}


@pytest.mark.parametrize("refuses", [False, True])
def test_a_server_of_one_level_has_no_namespaces_below_others(server, monkeypatch, refuses):
    """One passes over the parent that is asked about, another one refuses the question."""
    catalog = open_catalog("local", server.properties)
    for name in ("db", "eb"):
        catalog.create_namespace((name,))
    answer = server.answer

    def of_one_level(method, path, query, body):
        if refuses and "parent" in query:
            raise Refusal(400, "BadRequestException", "parent is not supported")
        return answer(method, path, {key: value for key, value in query.items() if key != "parent"}, body)

    monkeypatch.setattr(server, "answer", of_one_level)
    server.requests.clear()
    assert catalog.list_namespaces() == [("db",), ("eb",)]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("below", "known", "problem"),
    [
        (
            {"a": [["a", "x"]], "b": 400},
            [("a",), ("a", "x"), ("b",)],
            "below 'b', it refuses .BadRequestException: bad page",
        ),
        ({"a": [], "b": 400}, [("a",), ("b",)], "below 'b', it refuses"),
        ({"a": [["a", "x"]], "a.x": 400}, [("a",), ("a", "x"), ("b",)], r"below 'a\.x', it refuses"),
        ({"a": [["x"]]}, [("a",), ("b",), ("x",)], "it lists 'x' below a namespace that has another name"),
    ],
)
def test_a_listing_of_namespaces_that_may_have_gaps_says_so(server, monkeypatch, below, known, problem):
    """The tables of a namespace that is missing were taken for garbage of others."""
    answers = {"": [["a"], ["b"]], **below}

    def answer(_, path, query, __):
        found = answers.get(".".join(query["parent"][0].split("\x1f")) if "parent" in query else "", [])
        if found == 400:
            raise Refusal(400, "BadRequestException", "bad page token")
        return {"namespaces": found, "defaults": {}, "overrides": {}}

    monkeypatch.setattr(server, "answer", answer)
    with pytest.raises(NamespacesMissingError, match=problem) as caught:
        open_catalog("local", server.properties).list_namespaces()
    assert caught.value.known == known


def test_namespaces_below_case_folding_parent_are_listed(server, monkeypatch):
    answers = {"": [["Prod"]], "Prod": [["prod", "z"]]}
    listed = {"defaults": {}, "overrides": {}}
    monkeypatch.setattr(
        server,
        "answer",
        lambda _, __, query, ___: {**listed, "namespaces": answers.get(query.get("parent", [""])[0], [])},
    )
    assert open_catalog("local", server.properties).list_namespaces() == [("Prod",), ("prod", "z")]


def test_namespaces_listed_all_at_once_are_asked_about_once(server, monkeypatch):
    names = [("a",), ("a", "b"), ("a", "b", "c"), ("d",)]
    monkeypatch.setattr(
        server, "answer", lambda *_: {"namespaces": [list(name) for name in names], "defaults": {}, "overrides": {}}
    )
    assert open_catalog("local", server.properties).list_namespaces() == names
    assert len(server.requests) == 1 + 1 + len(names)


def test_pages_that_lead_back_to_an_earlier_one_are_refused(server, monkeypatch):
    page = {"namespaces": [["a"]], "next-page-token": "again", "defaults": {}, "overrides": {}}
    monkeypatch.setattr(server, "answer", lambda *_: page)
    with pytest.raises(UnsupportedError, match=r"repeats a page token of .*, so the listing never ends"):
        open_catalog("local", server.properties).list_namespaces()


def test_a_page_size_that_is_no_number_is_a_configuration_error(server):
    with pytest.raises(ConfigError, match=r"'catalogs.local.rest-page-size': is 'many'; give a whole number"):
        open_catalog("local", {**server.properties, "rest-page-size": "many"}).list_namespaces()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirected_commit_is_unknown_and_not_followed(server, table, status):
    server.redirected = status
    asked_before = len(server.requests)
    outcome = table.catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Unknown)
    assert outcome.cause.startswith(f"HTTP {status} ")
    assert [method for method, _ in server.requests[asked_before:]] == ["POST"]
    assert table.catalog.load(EVENTS).metadata == table.metadata


@pytest.mark.parametrize("status", [300, 304])
def test_an_answer_of_another_kind_than_success_is_none(server, table, status):
    server.faults = [Fault(False, status, "{}")]
    assert isinstance(table.catalog.swap(table, [], set_counter(1)), Unknown)


@pytest.mark.parametrize("status", [302, 303])
def test_a_drop_that_is_redirected_is_unknown(server, table, status):
    server.redirected = status
    with pytest.raises(OutcomeUnknownError, match=r"the drop of table 'db.events' .* may or may not have happened"):
        table.catalog.drop(EVENTS)
    assert EVENTS in server.pointers


def test_a_server_may_be_elsewhere_than_its_configuration(server, table, tmp_path):
    first = RestServer(tmp_path)
    first.config = {"uri": server.uri}
    assert open_catalog("local", first.properties).load(EVENTS).metadata == table.metadata
    first.close()


@pytest.mark.parametrize(("told", "collector"), [("true", "nessie-gc"), ("false", None), (None, None)])
def test_nessie_deletes_files_itself(server, told, collector):
    server.config = {} if told is None else {"nessie.is-nessie-catalog": told}
    assert open_catalog("local", server.properties).garbage_collector == collector


def test_what_a_server_does_not_list_is_not_asked_for(server, table):
    server.endpoints = tuple(e for e in ENDPOINTS if not e.startswith("DELETE"))
    with pytest.raises(
        UnsupportedError,
        match=r"^catalog 'local' does not take 'DELETE /v1/\{prefix\}/namespaces/.*\}': it is not among the end",
    ):
        open_catalog("local", server.properties).drop(EVENTS)
    server.endpoints = (*ENDPOINTS, CREDENTIALS)
    open_catalog("local", server.properties).drop(EVENTS)


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (
            '{"metadata-location": 5}',
            UnsupportedError,
            "answered what the protocol does not say: Expected `str | null`",
        ),
        ('{"storage-credentials": [{}]}', UnsupportedError, "does not say: Object missing required field `prefix`"),
        ("[]", UnsupportedError, "does not say: Expected `object`, got `array`"),
        ("<html>", UnavailableError, "cannot be asked: "),
        ("", UnavailableError, "cannot be asked: "),
    ],
)
def test_an_answer_that_makes_no_sense_is_told_in_one_line(server, table, body, error, text):
    server.load_faults = [Fault(False, 200, body)]
    with pytest.raises(error, match=f"catalog 'local' .*{text}") as raised:
        table.catalog.load(EVENTS)
    assert "\n" not in raised.value.message


def test_properties_of_servers_become_text(server, table):
    """A server's `s3.path-style-access` may be a JSON boolean."""
    server.config = {"s3.region": "eu-1", "s3.path-style-access": True, "limit": 5, "none": None, "list": []}
    assert table.catalog.load(EVENTS).metadata.properties.get(COUNTER) is None
    told = open_catalog("local", server.properties).load(EVENTS).storage._properties
    assert (told["s3.region"], told["s3.path-style-access"], told["limit"]) == ("eu-1", "true", "5")
    assert {"none", "list"}.isdisjoint(told)
