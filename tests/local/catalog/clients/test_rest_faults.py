"""What becomes of a commit over REST when the server, the network or a proxy fails it: each fault to its outcome."""

import json

import msgspec
import pytest

from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.clients.errors import CommitRefused
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.runtime import SYSTEM
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import SetSnapshotRef
from kit.catalogs import COUNTER, EVENTS, set_counter, simple_metadata
from kit.rest_server import Fault, Refusal
from kit.runtime import FakeRuntime
from kit.tables import files, live

PROXY = "<html>upstream</html>"
APPEND = AppendFiles(files=files("new"))


def body(status: int, kind: str = "SomeException") -> str:
    return json.dumps(Refusal(status, kind, "the server says no").body)


@pytest.fixture
def table(server):
    catalog = open_catalog("local", server.properties)
    catalog.create_namespace(("db",))
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


def counter(table):
    return table.catalog.load(EVENTS).metadata.properties.get(COUNTER)


def written(table):
    return {name for name in table.storage.child_names(f"{table.metadata.location}/metadata") if name.endswith(".avro")}


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(False, is_cut=True),
        *[Fault(False, status, text) for status in (500, 502, 503, 504) for text in ("", PROXY, body(status))],
        *[Fault(False, status, text) for status in (400, 404, 422, 429) for text in ("", PROXY, '{"error": "x"}')],
        Fault(False, 408, body(408)),
        Fault(False, 418, body(418)),
        Fault(False, 501, PROXY),
        Fault(False, 200, "{"),
        Fault(False, 200, "{}"),
        Fault(False, 200, ""),
    ],
)
def test_inconclusive_answer_is_unknown_applied_or_not(server, table, fault, applied):
    server.faults = [fault._replace(applied=applied)]
    outcome = table.catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Unknown)
    assert outcome.metadata_location == ""
    assert "\n" not in outcome.cause
    assert server.commits == 2, "the creation and one commit: nothing was sent again"


@pytest.fixture
def impatient(server, table):
    """The table in a catalog that waits for a second."""
    return open_catalog("local", {**server.properties, "rest.client.socket-timeout-ms": "1000"}).load(EVENTS)


@pytest.mark.parametrize("applied", [True, False])
def test_a_server_that_does_not_answer_in_time_leaves_it_unknown(server, impatient, applied):
    server.faults = [Fault(applied, delay_ms=1400)]
    outcome = impatient.catalog.swap(impatient, [], set_counter(1))
    assert isinstance(outcome, Unknown)
    assert "Read timed out" in outcome.cause
    assert server.commits == 2


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (400, body(400), UsageError),
        (401, PROXY, UsageError),
        (401, body(401), UsageError),
        (403, "", UsageError),
        (403, body(403), UsageError),
        (406, body(406), UnsupportedError),
        (422, body(422), UsageError),
        (429, body(429), UnavailableError),
        (501, body(501), UnsupportedError),
    ],
)
def test_refusal_by_server_proves_nothing_landed(server, table, status, text, error):
    server.faults = [Fault(False, status, text)] * 2
    with pytest.raises(error, match=r"^catalog 'local' (refused|is not available): .") as raised:
        table.catalog.swap(table, [], set_counter(1))
    assert "\n" not in raised.value.message
    assert counter(table) is None


def test_unauthorized_request_is_sent_once_more_only(server, table):
    server.faults = [Fault(False, 401, body(401))] * 3
    with pytest.raises(UsageError):
        table.catalog.swap(table, [], set_counter(1))
    assert server.commits == 3
    server.faults = [Fault(False, 401, body(401))]
    assert isinstance(table.catalog.swap(table, [], set_counter(1)), Committed)


@pytest.mark.parametrize("text", ["", body(409, "CommitFailedException")])
def test_a_conflict_is_one_that_may_be_our_own(server, table, text):
    server.faults = [Fault(False, 409, text)]
    outcome = table.catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Conflict)
    assert not outcome.is_final


def test_a_table_that_is_gone_is_a_conflict(server, table):
    server.faults = [Fault(False, 404, body(404, "NoSuchTableException"))]
    outcome = table.catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Conflict)
    assert "the table was dropped or renamed" in outcome.reason


@pytest.mark.parametrize("text", ["", PROXY, '{"error": "not found"}'])
@pytest.mark.parametrize(
    "ask",
    [
        lambda catalog: catalog.load(EVENTS),
        lambda catalog: catalog.find(EVENTS),
        lambda catalog: catalog.describe(EVENTS),
        lambda catalog: catalog.list_tables(("db",)),
        lambda catalog: catalog.list_namespaces(),
    ],
    ids=["load", "find", "describe", "list_tables", "list_namespaces"],
)
def test_proxy_404_is_not_taken_for_missing_table(server, table, ask, text):
    """Whoever takes it for that deletes the files of a table that is there."""
    server.read_fault = Fault(False, 404, text)
    with pytest.raises(UnavailableError, match=r"cannot be asked: HTTP 404 Not Found from http:.*; check uri, which"):
        ask(table.catalog)


def test_unknown_root_is_not_taken_for_no_namespaces(server, table):
    server.read_fault = Fault(False, 404, body(404, "NoSuchNamespaceException"))
    with pytest.raises(
        UnavailableError, match="does not list its namespaces: NoSuchNamespaceException: the server says no"
    ):
        table.catalog.list_namespaces()


def test_a_server_that_is_not_reached_has_done_nothing(server, table):
    server.close()
    with pytest.raises(
        UnavailableError,
        match=r"^catalog 'local' is out of reach at http://(localhost|127\.0\.0\.1):\d+: connection refused$",
    ):
        open_catalog("local", server.properties).load(EVENTS)
    table.catalog._client()._session.close()
    with pytest.raises(
        UnavailableError,
        match=r"^catalog 'local' is out of reach at http://(localhost|127\.0\.0\.1):\d+: connection refused$",
    ):
        table.catalog.swap(table, [], set_counter(1))


PASSING = [
    Fault(False, is_cut=True),
    Fault(False, 429, body(429)),
    Fault(False, 502, PROXY),
    Fault(False, 503),
    Fault(False, 504),
]


@pytest.mark.parametrize("fault", PASSING)
def test_a_read_is_sent_again_after_what_passes(server, table, fault):
    server.load_faults = [fault] * 3
    assert table.catalog.load(EVENTS).metadata == table.metadata
    assert server.load_faults == []


@pytest.mark.parametrize("fault", PASSING[:2])
def test_a_read_is_not_sent_again_for_ever(server, table, fault):
    server.load_faults = [fault] * 10
    with pytest.raises(UnavailableError, match=r"^catalog 'local' (cannot be asked|is not available): ."):
        table.catalog.load(EVENTS)
    assert len(server.load_faults) == 10 - 4


def test_a_connection_that_was_idle_for_too_long_is_made_anew(server, table):
    """A load balancer forgets a connection after some minutes without a word; the client learns it by the next request."""
    table.catalog.load(EVENTS)
    server.load_faults = [Fault(False, is_cut=True)]
    result = commit(table, APPEND, runtime=FakeRuntime())
    assert (result.changed, server.commits, result.table.metadata.last_sequence_number) == (True, 2, 1)


def test_an_answer_that_cannot_be_read_back_is_looked_for_again(server, table):
    """The server confirmed it, but the credentials of the base are no good any more."""

    class Expired:
        def __getattr__(self, name):
            def refuse(*_):
                raise UnavailableError("the token has expired")

            return refuse

    outcome = table.catalog.swap(msgspec.structs.replace(table, storage=Expired()), [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert outcome.table.metadata.properties[COUNTER] == "1"
    assert outcome.table.storage.read(outcome.table.metadata_location)


class TestCommit:
    """The same through the commit loop."""

    def commit(self, table, change=APPEND, seed=0):
        return commit(table, change, runtime=FakeRuntime(seed))

    @pytest.mark.parametrize("fault", [Fault(True, is_cut=True), Fault(True, 503, PROXY), Fault(True, 200, "{")])
    def test_a_lost_answer_of_a_commit_that_landed_is_settled(self, server, table, fault):
        server.faults = [fault]
        result = self.commit(table)
        assert result.changed
        assert table.catalog.load(EVENTS).metadata.current_snapshot_id == result.snapshot_id
        assert len(written(table)) == 2
        assert server.commits == 2

    @pytest.mark.parametrize("fault", [Fault(False, is_cut=True), Fault(False, 502, PROXY), Fault(False, 404, PROXY)])
    def test_while_it_is_unknown_nothing_is_deleted(self, server, table, fault):
        server.faults = [fault]
        with pytest.raises(OutcomeUnknownError, match="nothing was deleted"):
            self.commit(table)
        assert len(written(table)) == 2
        assert server.commits == 2

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            (Fault(False, 403, PROXY), UsageError),
            (Fault(False, 400, body(400)), UsageError),
        ],
    )
    def test_what_was_refused_leaves_no_file(self, server, table, fault, error):
        server.faults = [fault]
        with pytest.raises(error):
            self.commit(table)
        assert written(table) == set()

    def test_throttled_commit_lands_later(self, server, table):
        server.faults = [Fault(False, 429, body(429))] * 6
        runtime = FakeRuntime()
        assert commit(table, APPEND, runtime=runtime).changed
        assert (server.commits, len(runtime.sleeps_ms)) == (8, 6)
        assert len(written(table)) == 2

    def test_commit_landing_after_timeout_finds_all_its_files(self, server, impatient):
        server.faults = [Fault(True, delay_ms=1400, is_late=True)]
        with pytest.raises(OutcomeUnknownError, match="nothing was deleted") as error:
            self.commit(impatient)
        while (landed := impatient.catalog.load(EVENTS).metadata).current_snapshot is None:
            SYSTEM.sleep_ms(50)
        assert landed.current_snapshot_id == error.value.facts["snapshot_id"]
        assert impatient.storage.head(landed.current_snapshot.manifest_list) is not None
        assert len(written(impatient)) == 2

    def test_a_rejection_that_was_applied_is_our_own_commit(self, server, table):
        """#14583: the first request landed, its answer was lost on the way, and the second one met it."""
        server.faults = [Fault(True, 409, body(409, "CommitFailedException"))]
        result = self.commit(table)
        assert result.changed
        assert len(table.catalog.load(EVENTS).metadata.snapshots) == 1
        assert len(written(table)) == 2
        assert server.commits == 2

    def test_a_request_that_arrived_twice_adds_one_snapshot(self, server, table):
        server.faults = [Fault(True, is_doubled=True)]
        self.commit(table)
        assert len(table.catalog.load(EVENTS).metadata.snapshots) == 1
        assert len(written(table)) == 2

    def test_a_conflict_is_tried_again_on_the_new_base(self, server, table):
        other = AppendFiles(files=files("other"))
        server.before_commit = lambda: self.commit(open_catalog("other", server.properties).load(EVENTS), other, seed=1)
        result = self.commit(table)
        metadata = result.table.metadata
        assert (
            next(snapshot.snapshot_id for snapshot in metadata.ancestors(metadata.current_snapshot_id))
            == result.snapshot_id
        )
        assert len(list(metadata.ancestors(result.snapshot_id))) == 2
        # Two manifests and two lists are named; the list of the attempt that lost is gone.
        assert len(written(table)) == 4

    def test_sequence_number_taken_by_other_branch_is_conflict(self, server, table):
        """Iceberg Java up to 1.10 has no other answer to it than 400, as to a request that can never succeed."""
        first = self.commit(table, AppendFiles(files=files("old")))
        catalog = open_catalog("other", server.properties)

        def commit_elsewhere():
            base = catalog.load(EVENTS)
            ref = [SetSnapshotRef("elsewhere", SnapshotRef(first.snapshot_id, type="branch"))]
            assert isinstance(catalog.swap(base, [], ref), Committed)
            self.commit(catalog.load(EVENTS), AppendFiles(files=files("theirs"), branch="elsewhere"), seed=1)

        server.before_commit = commit_elsewhere
        runtime = FakeRuntime(2)
        result = commit(first.table, APPEND, runtime=runtime)
        assert (result.changed, len(runtime.sleeps_ms)) == (True, 1)
        after = table.catalog.load(EVENTS)
        assert after.metadata.current_snapshot_id == result.snapshot_id
        assert after.metadata.current_snapshot.sequence_number == 3
        assert live(after, "elsewhere") == {"old": 1, "theirs": 1}
        assert live(after) == {"old": 1, "new": 1}

    def test_bad_request_on_unchanged_table_is_not_conflict(self, server, table):
        server.faults = [Fault(False, 400, body(400, "ValidationException"))]
        with pytest.raises(UsageError, match="the server says no"):
            self.commit(table)
        assert (server.commits, written(table)) == (2, set())

    def test_a_bad_request_without_a_snapshot_is_no_conflict(self, server, table):
        def commit_and_refuse():
            self.commit(open_catalog("other", server.properties).load(EVENTS))
            server.faults = [Fault(False, 400, body(400, "ValidationException"))]

        server.before_commit = commit_and_refuse
        with pytest.raises(UsageError, match="the server says no"):
            self.commit(table, ChangeProperties(updates={"owner": "me"}), seed=1)

    def test_a_bad_request_that_cannot_be_looked_into_is_sent_again(self, server, table):
        server.faults = [Fault(False, 400, body(400, "ValidationException"))]

        def vanish():
            server.load_faults = [Fault(False, 503)] * 4

        server.before_commit = vanish
        assert self.commit(table).changed
        assert (server.commits, server.load_faults) == (3, [])

    def test_bad_request_after_our_commit_landed(self, server, table):
        """It arrived twice, and the first took the second one's sequence number. It was made again, over its own snapshot."""
        server.faults = [Fault(True, 400, body(400, "ValidationException"))]

        def vanish():
            server.load_faults = [Fault(False, 503)] * 4

        server.before_commit = vanish
        result = self.commit(table)
        assert result.changed
        assert (server.commits, server.load_faults) == (2, [])
        assert live(table.catalog.load(EVENTS)) == {"new": 1}
        assert len(written(table)) == 2

    def test_dropped_table_is_not_found_and_leaves_nothing(self, server, table):
        server.before_commit = lambda: open_catalog("other", server.properties).drop(EVENTS)
        with pytest.raises(NotFoundError, match=r"no table 'db.events'"):
            self.commit(table)
        assert written(table) == set()

    def test_conflicts_without_end_are_given_up(self, server, table):
        server.faults = [Fault(False, 409, body(409))] * 5
        with pytest.raises(ConflictError, match="the catalog refused all 5 commits to "):
            self.commit(table, ChangeProperties(updates={"owner": "me"}))
        assert server.commits == 6


class TestARefusedRequestWhoseTwinIsAtWorkStill:
    """A proxy sent it twice; the one that was answered was refused, and the other is carried out when the job has ended."""

    class Stopped(FakeRuntime):
        def sleep_ms(self, duration_ms):
            raise SystemExit(143)

    def twin_arrives(self, server, table, number=0):
        """What came in as the `number`th append is sent once more."""
        appends = [body for body in server.bodies if "add-snapshot" in json.dumps(body)]
        table.catalog._client().send_commit(EVENTS, appends[number])

    @pytest.mark.parametrize(
        "fault",
        [Fault(False, 409, body(409, "CommitFailedException")), Fault(False, 429, body(429))],
        ids=["409", "429"],
    )
    def test_its_files_are_all_there_when_it_lands(self, server, table, fault):
        server.faults = [fault]
        with pytest.raises(OutcomeUnknownError, match="may have landed or land still") as raised:
            commit(table, APPEND, runtime=self.Stopped(), undo=lambda: pytest.fail("undone"))
        assert isinstance(raised.value.__cause__, SystemExit)
        self.twin_arrives(server, table)
        landed = table.catalog.load(EVENTS)
        assert landed.metadata.current_snapshot_id == raised.value.facts["snapshot_id"]
        assert live(landed) == {"new": 1}
        assert len(written(table)) == 2

    def test_late_twin_of_commit_is_refused_after_another_landed(self, server, table):
        """The repeat of a commit whose process stopped changes nothing once another writer has committed."""
        first = commit(table, AppendFiles(files=files("old")), runtime=FakeRuntime(1)).table
        before, undone = written(table), []
        other = AppendFiles(files=files("theirs"))
        server.before_commit = lambda: commit(first, other, runtime=FakeRuntime(2))
        with pytest.raises(SystemExit):
            commit(first, APPEND, runtime=self.Stopped(3), undo=lambda: undone.append(1))
        assert (len(written(table) - before), undone) == (2, [1])
        with pytest.raises(CommitRefused):
            self.twin_arrives(server, table, number=1)
        assert live(table.catalog.load(EVENTS)) == {"old": 1, "theirs": 1}
