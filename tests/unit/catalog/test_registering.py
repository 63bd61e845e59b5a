"""What came of a registration whose answer was lost."""

import pytest

from icekeep.catalog.base import no_such_table, table_exists
from icekeep.catalog.registering import read_unregistered, registered
from icekeep.errors import MissingFileError, NotFoundError, OutcomeUnknownError, UnavailableError, UsageError
from icekeep.maintenance.drop.job import drop_table
from icekeep.maintenance.register import register_table
from kit.cases import for_each
from kit.catalogs import EVENTS, set_counter, simple_metadata
from kit.memory_catalog import MemoryCatalog
from kit.runtime import no_spark
from kit.tables import add, memory_table

LOST = OutcomeUnknownError("the connection was lost")


class Asked:
    """A catalog that is asked to register `table`; each answer is an error or None, and `lands` says which requests land."""

    def __init__(self, *answers, lands=()):
        self.catalog = MemoryCatalog()
        self.catalog.create_namespace(("db",))
        dropped = self.catalog.create(EVENTS, simple_metadata(self.catalog.default_location(EVENTS)))
        self.catalog.drop(EVENTS)
        self.table = read_unregistered(self.catalog, EVENTS, dropped.metadata_location, self.catalog.storage)
        self.answers = list(answers)
        self.lands = lands
        self.count = 0
        self.then = lambda: None

    def send(self):
        number = self.count
        self.count += 1
        if number in self.lands:
            if EVENTS in self.catalog._locations:
                raise table_exists(self.catalog, EVENTS)
            self.catalog._locations[EVENTS] = self.table.metadata_location
        self.then()
        answer = self.answers[number]
        if answer is not None:
            raise answer

    def is_there(self):
        return self.catalog._locations.get(EVENTS) == self.table.metadata_location


@for_each(
    ("answers", "lands", "count"),
    [((None,), {0}, 1), ((LOST,), {0}, 1), ((LOST, None), {1}, 2), ((LOST, LOST), {1}, 2)],
)
def test_landed_registration_is_reported_for_any_resends(answers, lands, count):
    """The catalog's own answer is settled when it is lost."""
    asked = Asked(*answers, lands=lands)
    assert registered(asked.table, asked.send).metadata == asked.table.metadata
    assert (asked.count, asked.is_there()) == (count, True)


def test_a_table_that_was_purged_in_part_is_refused():
    """By an older metadata file: the newer manifest list stays, and a manifest that both name is gone."""
    catalog = MemoryCatalog()
    table = add(add(memory_table(catalog), "a"), "b")
    older = table.metadata.metadata_log[-1].metadata_file
    catalog.drop(EVENTS)
    drop_table(register_table(catalog, EVENTS, older), no_spark, purge=True)
    assert catalog.storage.head(table.metadata.current_snapshot.manifest_list) is not None
    with pytest.raises(
        MissingFileError, match=r"manifest 'memory://.*' of the current snapshot of .* is missing; was the table"
    ):
        read_unregistered(catalog, EVENTS, table.metadata_location, catalog.storage)


def test_a_damaged_manifest_list_is_left_to_a_check():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    catalog.storage.files[table.metadata.current_snapshot.manifest_list] = (b"nonsense", 0)
    catalog.drop(EVENTS)
    assert read_unregistered(catalog, EVENTS, table.metadata_location, catalog.storage).metadata == table.metadata


def test_a_table_that_is_listed_but_not_there_gets_no_suggestion():
    """Some servers answer so for a table that the user may not read."""
    catalog = MemoryCatalog()
    memory_table(catalog)
    message = (
        "there is no table 'db.events' in catalog 'local'; the catalog lists it, and says that it is not there: see whether you "
        "may read it"
    )
    assert no_such_table(catalog, EVENTS).message == message


def test_a_request_that_was_sent_twice_on_the_way_meets_itself():
    asked = Asked(None, lands={0})
    asked.then = lambda: (_ for _ in ()).throw(table_exists(asked.catalog, EVENTS))
    assert registered(asked.table, asked.send).metadata == asked.table.metadata


def test_one_that_others_have_committed_to_since_has_landed():
    asked = Asked(LOST, lands={0})
    asked.then = lambda: asked.catalog.swap(asked.catalog.load(EVENTS), [], set_counter(1))
    assert registered(asked.table, asked.send).metadata.properties == {"test.counter": "1"}


def test_a_name_that_somebody_else_took_is_taken():
    asked = Asked(table_exists(MemoryCatalog(), EVENTS))
    asked.then = lambda: asked.catalog.create(EVENTS, simple_metadata("memory://lake/wh/db/other"))
    with pytest.raises(UsageError, match="exists already"):
        registered(asked.table, asked.send)
    assert not asked.is_there()


@pytest.mark.parametrize("second", [LOST, UnavailableError("the catalog is out of reach")])
def test_what_is_lost_twice_and_is_not_there_is_unknown(second):
    asked = Asked(LOST, second)
    with pytest.raises(OutcomeUnknownError):
        registered(asked.table, asked.send)
    assert asked.count == 2


def test_lost_registration_with_failed_lookup_is_unknown():
    asked = Asked(LOST, lands={0})

    def fail(identifier):
        raise UnavailableError("the catalog is out of reach")

    asked.catalog.find = fail
    with pytest.raises(OutcomeUnknownError, match="the connection was lost"):
        registered(asked.table, asked.send)
    assert asked.count == 1


def test_what_is_refused_for_certain_is_that_error():
    asked = Asked(UnavailableError("the catalog is out of reach"))
    with pytest.raises(UnavailableError):
        registered(asked.table, asked.send)
    assert asked.count == 1


def test_a_metadata_file_that_is_gone_is_told():
    asked = Asked()
    asked.catalog.storage.delete_many([asked.table.metadata_location])
    with pytest.raises(NotFoundError, match="there is no metadata file"):
        asked.catalog.register_table(EVENTS, asked.table.metadata_location)
