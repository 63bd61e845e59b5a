"""Tables with one lie in their files, on disk: after a job each judge has the rows that it had, or those that icekeep has."""

from collections import Counter
from collections.abc import Callable

import pytest

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from kit.cases import Choices, scaled, seeds
from kit.damager import CannotDamageError, Damager
from kit.judging.concerns import Kind
from kit.judging.faults import explained, faults_of
from kit.judging.panel import Judge, JudgeError, Panel, answer_texts, our_rows
from kit.lake import Lake
from lies.judging import JOBS, history_in
from lies.lying import lie

JUDGES = ("DuckDB", "ClickHouse", "iceberg-rust", "PyIceberg")


@pytest.mark.deep
def test_judges_keep_their_rows_whatever_job_ran_over_a_lie(
    tmp_path_factory: pytest.TempPathFactory, panel: Panel, tried: Callable[[str, int], None]
) -> None:
    judges = [panel.judge(name) for name in JUDGES]
    # Not `tmp_path`, whose tables are sound in the end.
    directory, changed = tmp_path_factory.mktemp("lies"), []
    for number in seeds(scaled(60)):
        lake = Lake(directory / str(number))
        chosen = Choices(number)
        by = history_in(lake.catalog, number).by
        name = chosen.choice([*JOBS])
        try:
            what = lie(Damager(lake.catalog, by.identifier, chosen))
        except CannotDamageError:
            continue
        try:
            lied = lake.catalog.load(by.identifier)
            before = [_rows(judge, lied) for judge in judges]
            JOBS[name](lied)
        except IcekeepError:
            # What it refuses it leaves as it was.
            tried("lies refused before judges", 1)
            continue
        table = lake.catalog.load(by.identifier)
        try:
            read = our_rows(table)
        except IcekeepError:
            continue
        ours = {one: answer_texts(table.metadata.schema, read, has_null_lists=one) for one in (False, True)}
        for judge, rows in zip(judges, before, strict=True):
            if rows is None:
                continue
            tried(f"lies read by {judge.name} before and after a job", 1)
            after = _rows(judge, table)
            known = explained(faults_of(judge.name, Kind(table)), "") is not None
            if after not in (rows, ours[judge.has_null_lists]) and not known:
                changed.append((number, what, name, judge.name, rows.total(), after and after.total()))
    assert changed == []


def _rows(judge: Judge, table: Table) -> Counter[str] | None:
    try:
        return judge.rows(table)
    except JudgeError:
        return None
