"""A table that is given metadata again: what is told once that has landed."""

import pytest
from msgspec.structs import replace

from icekeep.commit.retry import attach
from icekeep.errors import OutcomeUnknownError
from icekeep.events import SnapshotCommitted
from kit.catalogs import COUNTER, set_counter
from kit.memory_catalog import MemoryCatalog
from kit.tables import EVENTS, memory_table


class Listening:
    def __init__(self, error=None):
        self.heard, self._error = [], error

    def on(self, event):
        self.heard.append(event)
        if self._error is not None:
            raise self._error


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def sound(catalog):
    """An earlier version of a table, to take the place of the current one."""
    earlier = memory_table(catalog)
    current = catalog.swap(earlier, [], set_counter(1)).table
    return replace(earlier, metadata_location=current.metadata_location)


def test_where_the_metadata_is_then_is_told(catalog, sound):
    listener = Listening()
    after = attach(sound, listener)
    assert listener.heard == [SnapshotCommitted("db.events", None, after.metadata_location)]
    assert catalog.load(EVENTS).metadata == after.metadata


@pytest.mark.parametrize("error", [RuntimeError("the cell is gone"), SystemExit(143)], ids=["error", "interrupt"])
def test_what_a_listener_raises_is_no_proof_that_nothing_landed(catalog, sound, error):
    with pytest.raises(
        OutcomeUnknownError, match=r"table 'db.events' may or may not have its metadata again"
    ) as raised:
        attach(sound, Listening(error))
    assert raised.value.__cause__ is error
    assert COUNTER not in catalog.load(EVENTS).metadata.properties
