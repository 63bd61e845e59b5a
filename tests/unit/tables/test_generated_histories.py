"""Generated histories of rows, in memory: the library's scan has the rows of the model, wherever deletes reach.

A failing history is cut down by hypothesis. What jobs make of such tables is tested with them, what Iceberg Java makes of them
in `interop/test_row_deletes.py`.
"""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.manifests.structs import FileContent
from kit.cases import cases
from kit.naive_scan import live_entries
from kit.row_histories import FORMATS, SPECS, VERSIONS, History, Step, in_memory, steps

HISTORIES = 100


@cases(HISTORIES, least=25)
@given(steps(least=1), st.sampled_from(VERSIONS), st.sampled_from(SPECS))
def test_scan_has_the_rows_of_the_model(steps: list[Step], version: int, fields: Sequence[tuple[str, str]]) -> None:
    """Rows lie where the model says, too: in partitions that follow from their values when they were written."""
    history = History(in_memory(), version, fields).went_on(steps)
    assert history.by.rows() == history.expected()
    places = {row.id: row.place for row in history.model.rows}
    assert all(place.is_same(places[id_]) for id_, place in history.found_places().items())


def compares_lost_columns(history: History) -> bool:
    """Whether rows were deleted by a column that is no longer there."""
    compared = {id_ for entry in live_entries(history.table) for id_ in entry.data_file.equality_ids or ()}
    return bool(compared - history.schema.fields_by_id.keys())


@pytest.mark.nightly
def test_histories_have_what_they_are_to_have() -> None:
    """Of fifty that follow from numbers: what they do, and that each kind of delete takes rows away and leaves others."""
    histories = [History.of(number, in_memory()) for number in range(50)]
    metadata = [history.table.metadata for history in histories]
    files = [entry.data_file for history in histories for entry in live_entries(history.table)]
    assert {file.content for file in files} == set(FileContent)
    assert {file.file_format for file in files} == {*FORMATS, "PUFFIN"}
    assert {file.referenced_data_file is None for file in files if file.content is FileContent.POSITION_DELETES} == {
        True,
        False,
    }
    assert sum(len(one.specs_by_id) > 1 for one in metadata) > 10
    assert sum(len(one.schemas) > 1 for one in metadata) > 10
    assert any(field.initial_default is not None for one in metadata for field in one.schema.fields)
    assert any(map(compares_lost_columns, histories))
    counts = [(len(history.model.live), len(history.model.rows)) for history in histories]
    assert 0.2 < sum(live for live, _ in counts) / sum(written for _, written in counts) < 0.8
