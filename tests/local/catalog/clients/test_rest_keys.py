"""Requests that change something have a key where the server takes keys, and are sent again until their outcome is known."""

import json
from collections import Counter
from contextlib import suppress
from uuid import UUID

import pytest

from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import OutcomeUnknownError, UnavailableError, UsageError
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.types import MINUTE_MS
from icekeep.spec.updates import RemoveSnapshots, SetSnapshotRef
from kit.cases import for_each
from kit.catalogs import COUNTER, EVENTS, set_counter, simple_metadata
from kit.rest_server import Fault, Refusal
from kit.runtime import FakeRuntime
from kit.tables import files

PROXY = "<html>upstream</html>"
LOST = [
    Fault(True, 500),
    Fault(True, 504, PROXY),
    Fault(True, is_cut=True),
    Fault(True, 404, PROXY),
    Fault(True, 200, "{}"),
]
NOT_DONE = [fault._replace(applied=False) for fault in LOST]
OTHER = ("db", "other")


@pytest.fixture
def runtime():
    return FakeRuntime()


@pytest.fixture
def catalog(server, runtime):
    server.key_lifetime = "PT30M"
    catalog = open_catalog("local", server.properties, runtime=runtime)
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return made(catalog)


def made(catalog, name=EVENTS):
    return catalog.create(name, simple_metadata(catalog.default_location(name)))


def refusal(status, kind="SomeException"):
    return Fault(False, status, json.dumps(Refusal(status, kind, "the server says no").body))


def keys_of_commits(server):
    return [key for (method, path), key in zip(server.requests, server.keys, strict=True) if is_commit(method, path)]


def is_commit(method, path):
    return method == "POST" and path.endswith("/tables/events")


def test_each_change_has_a_key_of_its_own_and_no_read_has_one(server, catalog, table, runtime):
    catalog.swap(table, [], set_counter(1))
    catalog.rename(EVENTS, OTHER)
    location = catalog.drop(OTHER)
    catalog.register_table(EVENTS, location)
    catalog.drop(EVENTS)
    catalog.drop_namespace(("db",))
    asked = list(zip(server.requests, server.keys, strict=True))
    changes = [key for (method, _), key in asked if method != "GET"]
    assert [key for (method, _), key in asked if method == "GET"].count(None) == len(asked) - len(changes)
    assert Counter(changes).most_common(1)[0][1] == 1
    for key in changes:
        assert (UUID(key).version, UUID(key).variant, len(key)) == (7, "specified in RFC 4122", 36)
        assert UUID(key).int >> 80 == runtime.now_ms()


@for_each("lifetime", [None, "soon", "P1Y"])
def test_without_a_lifetime_nothing_has_a_key(server, lifetime):
    server.key_lifetime, server.namespaces, server.pointers = lifetime, {}, {}
    catalog = open_catalog("local", server.properties, runtime=FakeRuntime())
    catalog.create_namespace(("db",))
    table = made(catalog)
    server.faults = [Fault(True, 504)]
    assert isinstance(catalog.swap(table, [], set_counter(1)), Unknown)
    assert set(server.keys) == {None}


@for_each("fault", [*LOST, *NOT_DONE])
def test_commit_with_lost_answer_is_resent_with_its_key(server, catalog, fault):
    server.pointers.clear()
    table = made(catalog)
    before = len(keys_of_commits(server))
    server.faults = [fault]
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert outcome.table.metadata.properties[COUNTER] == "1"
    first, second = keys_of_commits(server)[before:]
    assert first == second
    assert len(outcome.table.metadata.metadata_log) == len(table.metadata.metadata_log) + 1


def test_it_is_sent_again_as_often_and_as_long_as_the_table_says(server, catalog, runtime):
    table = catalog.create(
        EVENTS,
        simple_metadata(
            catalog.default_location(EVENTS),
            **{"commit.status-check.num-retries": "2", "commit.status-check.min-wait-ms": "500"},
        ),
    )
    server.faults = [Fault(True, 504)] * 9
    assert isinstance(catalog.swap(table, [], set_counter(1)), Unknown)
    assert (len(server.faults), runtime.sleeps_ms) == (6, [500, 1000])


def test_it_is_not_sent_again_when_its_key_has_ended(server, catalog, table, runtime):
    server.key_lifetime = "PT2S"
    catalog = open_catalog("local", server.properties, runtime=runtime)
    server.faults = [Fault(True, 504)] * 9
    assert isinstance(catalog.swap(table, [], set_counter(1)), Unknown)
    assert (len(server.faults), runtime.sleeps_ms) == (7, [1000, 2000])


def test_a_process_that_is_abandoned_sends_nothing_again(server, catalog, table, runtime):
    runtime.abandoned = True
    server.faults = [Fault(False, 504)] * 2
    assert isinstance(catalog.swap(table, [], set_counter(1)), Unknown)
    assert len(server.faults) == 1


@for_each("later", [refusal(400), refusal(403), refusal(404), refusal(422)])
def test_refusal_of_resent_commit_proves_nothing_of_first(server, catalog, later):
    """A server may keep keys of successes alone, and the first may have succeeded without its key."""
    server.pointers.clear()
    table = made(catalog)
    server.faults = [Fault(False, 504), later]
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Unknown)
    assert outcome.cause.startswith("HTTP 504 Gateway Timeout from http://")


def test_a_conflict_of_a_repeated_commit_is_looked_into(server, catalog, table):
    server.faults = [Fault(False, 504), refusal(409, "CommitFailedException")]
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Conflict)
    assert not outcome.is_final


def test_a_server_that_is_away_for_a_while_is_waited_for(server, catalog, table, runtime):
    server.faults = [Fault(True, 504), *[refusal(429)] * 6]
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert len(runtime.sleeps_ms) == 7


@for_each("fault", [*LOST, *NOT_DONE])
def test_the_commit_loop_knows_what_became_of_it(server, catalog, fault):
    server.pointers.clear()
    table = made(catalog)
    server.faults = [fault]
    result = commit(table, AppendFiles(files=files("new")), runtime=catalog.runtime)
    assert result.changed
    assert [one.snapshot_id for one in catalog.load(EVENTS).metadata.snapshots] == [result.snapshot_id]


@for_each("fault", [*LOST, *NOT_DONE])
def test_a_repeated_request_is_let_in_with_a_new_login(server, catalog, fault):
    server.pointers.clear()
    table = made(catalog)
    server.faults = [fault, refusal(401)]
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)
    assert len(set(keys_of_commits(server)[-3:])) == 1


def test_absent_server_is_waited_for_within_table_timeout(server, catalog, table, runtime):
    """First the request is sent again, and then the table is looked at: both together take no longer."""
    server.key_lifetime = "PT2H"
    catalog = open_catalog("local", server.properties, runtime=runtime)
    table, began_ms = catalog.load(EVENTS), runtime.monotonic_ms()

    def leave():
        runtime.before_sleep = None
        server.close()
        catalog._client()._session.close()

    server.faults, runtime.before_sleep = [Fault(False, 504)], leave
    with pytest.raises(OutcomeUnknownError):
        commit(table, AppendFiles(files=files("new")), runtime=runtime)
    assert 29 * MINUTE_MS < runtime.monotonic_ms() - began_ms < 32 * MINUTE_MS


class TestOtherChanges:
    @pytest.fixture
    def lose(self, server, monkeypatch):
        """Lose the answer to the next change that is not a commit; the change is made, or is not."""
        from kit import rest_server

        answer, lost = rest_server._Handler._answer, []

        def once(handler, path, query, body):
            found = None
            if handler.command == "GET" or not lost:
                return answer(handler, path, query, body)
            if lost.pop():
                answer(handler, path, query, body)
            return 504, found

        monkeypatch.setattr(rest_server._Handler, "_answer", once)
        return lost.append

    CHANGES = (
        ("namespace", lambda catalog: catalog.create_namespace(("new",))),
        ("drop", lambda catalog: catalog.drop(EVENTS)),
        ("rename", lambda catalog: catalog.rename(EVENTS, OTHER)),
        ("register", lambda catalog: catalog.register_table(("db", "again"), catalog.find(EVENTS).metadata_location)),
        ("create", lambda catalog: made(catalog, OTHER)),
    )

    @for_each("applied", [True, False])
    def test_each_is_settled(self, server, catalog, lose, applied):
        for name, change in self.CHANGES:
            server.pointers.clear()
            made(catalog)
            server.namespaces.pop(("new",), None)
            lose(applied)
            change(catalog)
            assert server.keys[-1] is None or server.keys.count(server.keys[-1]) <= 2, name

    def test_server_without_drop_keys_drops_no_other_table(self, server, catalog, table, runtime, lose):
        server.honoured = lambda method, path: method != "DELETE"
        runtime.before_sleep = lambda: made(catalog)
        lose(True)
        with pytest.raises(OutcomeUnknownError, match="may or may not have happened"):
            catalog.drop(EVENTS)
        assert catalog.load(EVENTS).metadata_location != table.metadata_location

    def test_not_found_on_resent_drop_proves_nothing(self, server, catalog, table, lose):
        server.honoured = lambda method, path: method != "DELETE"
        lose(True)
        with pytest.raises(OutcomeUnknownError, match="may or may not have happened"):
            catalog.drop(EVENTS)
        assert server.pointers == {}

    @for_each("number", [0, 2, 3, 4])
    def test_answer_without_its_key_is_not_asked_for_again(self, server, catalog, runtime, lose, number):
        """That the name is taken, by the first request most likely: it will say so as often as it is asked."""
        server.pointers.clear()
        server.namespaces.pop(("new",), None)
        made(catalog)
        server.honoured = lambda method, path: False
        runtime.sleeps_ms.clear()
        lose(True)
        with suppress(OutcomeUnknownError):
            self.CHANGES[number][1](catalog)
        assert sum(runtime.sleeps_ms) <= 10_000

    def test_a_refusal_at_once_is_one(self, server, catalog, table):
        with pytest.raises(UsageError, match="exists already"):
            catalog.rename(EVENTS, EVENTS)
        server.close()
        catalog._client()._session.close()
        with pytest.raises(UnavailableError):
            catalog.rename(EVENTS, OTHER)


class TestExpirations:
    """A repeated request is answered by what is current: it must not hide a reference that went with a snapshot."""

    @pytest.fixture
    def two(self, table):
        first = commit(table, AppendFiles(files=files("old")), runtime=FakeRuntime(1))
        return commit(first.table, AppendFiles(files=files("new")), runtime=FakeRuntime(2))

    def expire(self, two):
        old = two.base.metadata.current_snapshot_id
        return two.table.catalog.swap(two.table, [], [RemoveSnapshots([old])])

    def tag(self, server, two):
        other = open_catalog("other", server.properties).load(EVENTS)
        old = two.base.metadata.current_snapshot_id
        assert isinstance(
            other.catalog.swap(other, [], [SetSnapshotRef("keep", SnapshotRef(old, type="tag"))]), Committed
        )

    def write(self, server):
        other = open_catalog("other", server.properties).load(EVENTS)
        assert isinstance(other.catalog.swap(other, [], set_counter(7)), Committed)

    def test_one_that_nobody_came_before_has_landed(self, server, two, runtime):
        server.faults = [Fault(True, 504)]
        outcome = self.expire(two)
        assert isinstance(outcome, Committed)
        assert len(outcome.table.metadata.snapshots) == 1

    def test_another_commit_after_it_hides_nothing(self, server, two, runtime):
        server.faults = [Fault(True, 504)]
        runtime.before_sleep = lambda: self.write(server)
        assert isinstance(self.expire(two), Committed)

    def test_a_reference_that_went_with_it_is_told(self, server, two, runtime):
        server.faults = [Fault(True, 504)]
        server.before_commit = lambda: self.tag(server, two)
        runtime.before_sleep = lambda: self.write(server)
        outcome = self.expire(two)
        assert isinstance(outcome, Unknown)
        assert "the references 'keep' that somebody made meanwhile" in outcome.cause
