"""Compaction while others write: rows stay as the others left them, and no group is rewritten in vain.

The tables are generated, with deletes of every kind, and so is what others do between the rewrite of each group and its
commit: rows are appended, deleted by position, by vector and by their values. `kit.row_histories` has the model.
"""

from collections.abc import Callable, Iterable, Sequence

import pytest

from icekeep.catalog.base import Table
from icekeep.events import Event, StepAdvanced, Warned
from icekeep.maintenance.compact.job import compact
from icekeep.spec.manifests.structs import FileContent
from kit.cases import Choices, chosen_of
from kit.deletes import data_files
from kit.lake import Lake
from kit.naive_scan import lineage_of, live_entries
from kit.row_histories import History, in_memory
from kit.runtime import no_spark

TABLES = 10
ORDERS = (None, "{0} DESC NULLS FIRST, {1}", "zorder({0}, {1})", "hilbert({0}, {1})")
BEFORE = ("append", "append", "positions", "positions", "equality", "upsert", "spec")
MEANWHILE = ("append", "positions", "positions", "positions", "equality", "upsert")


def others_act(history: History, chosen: Choices, kinds: Sequence[str]) -> None:
    """Some steps of others, on the table as it is by now: some of its rows may lie in new files already."""
    history.model.move(history.found_places())
    history.went_on((kind, chosen.getrandbits(31)) for kind in chosen.choices(kinds, k=chosen.randint(1, 3)))


class Others:
    """A listener through which others act whenever a group is rewritten, before it is committed."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.warnings: list[str] = []
        self._act = act

    def off(self) -> None:
        """From now on they do nothing."""
        self._act = lambda: None

    def on(self, event: Event) -> None:
        if isinstance(event, StepAdvanced):
            self._act()
        if isinstance(event, Warned):
            self.warnings.append(event.message)


def storage_list(table: Table, directory: str) -> Iterable[str]:
    """What lies in a directory of the table's."""
    return (file.location for file in table.storage.list(f"{table.metadata.location}/{directory}"))


@pytest.mark.parametrize("seed", chosen_of(TABLES, (0, 1, 2, 3, 4)))
def test_no_row_comes_back_and_nothing_is_rewritten_in_vain(seed: int) -> None:
    """StarRocks #77709, nimtable/iceberg-compaction PR #163, apache/iceberg #10312."""
    busy, chosen = History.of(seed, in_memory(), (2, 2, 3, 3), BEFORE), Choices(seed)
    others = Others(lambda: others_act(busy, chosen, MEANWHILE))
    before = lineage_of(busy.table) if busy.version == 3 else {}
    order = ORDERS[seed % len(ORDERS)]
    options = {
        "rewrite-all": "true",
        "remove-dangling-deletes": chosen.choice(("true", "false")),
        "partial-progress.enabled": chosen.choice(("true", "false")),
    }
    names = [field.name for field in busy.schema.fields]
    sort_order = None if order is None else order.format(*chosen.sample(names, 2))
    result = compact(busy.table, no_spark, sort_order=sort_order, options=options, listener=others)
    assert busy.by.rows() == busy.expected()
    anew = [warning for warning in others.warnings if "planned again" in warning]
    assert bool(anew) is bool(result.planned_anew_files_count)
    # The one thing that cannot be carried over: rows on their way to another spec, and equality deletes for they may be there.
    assert all("while rows were moved to files of another partition spec" in warning for warning in anew)
    assert (result.status, result.commits_count >= 1) == ("done", True)
    if busy.version == 3:
        now, kept = lineage_of(busy.table), before.keys() & busy.model.ids
        assert {id_: now[id_] for id_ in kept} == {id_: before[id_] for id_ in kept}


@pytest.mark.parametrize(("version", "sort_order"), [(2, None), (2, "number, kind"), (3, None), (3, "number, kind")])
def test_deletes_are_carried_over(version: int, sort_order: str | None) -> None:
    """Into position delete files and into vectors, of files whose rows keep their order and of sorted ones."""
    busy, chosen = History.of(100, in_memory(), (version,), BEFORE), Choices(version)
    others = Others(lambda: others_act(busy, chosen, ("positions",)))
    result = compact(busy.table, no_spark, sort_order=sort_order, options={"rewrite-all": "true"}, listener=others)
    after = busy.table
    assert busy.by.rows() == busy.expected()
    new = {file.file_path for file in data_files(after)}
    deletes = [e for e in live_entries(after) if e.data_file.content is FileContent.POSITION_DELETES]
    carried = [e for e in deletes if e.data_file.referenced_data_file in new]
    assert 0 < result.carried_delete_files_count == len(carried)
    assert {e.data_file.file_format == "PUFFIN" for e in carried} == {version == 3}
    assert {e.sequence_number for e in carried} == {after.metadata.current_snapshot.sequence_number}
    assert not list(storage_list(after, ".icekeep"))


def test_a_group_whose_files_are_gone_is_planned_anew_alone(lake: Lake) -> None:
    table = lake.filled(commits=6, files=2)
    model = lake.rows()
    first = {file.file_path for file in data_files(table) if "at_month=2013-01" in file.file_path}
    assert first

    def another_run() -> None:
        others.off()
        compact(lake.load(), no_spark, where="at < '2013-02-01T00:00:00+00:00'", options={"rewrite-all": "true"})

    others = Others(another_run)
    result = compact(table, no_spark, options={"rewrite-all": "true"}, listener=others)
    assert lake.rows() == model
    assert (result.status, result.planned_anew_files_count) == ("done", len(first))
    assert any(f"{len(first)} data files of 'db.events' are planned again" in warning for warning in others.warnings)
    assert lake.load().metadata.current_snapshot.operation == "replace"
