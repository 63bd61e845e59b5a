import pytest
from pyspark.sql import SparkSession

from icekeep.errors import NotFoundError, UsageError
from icekeep.planning.scan.explain import Evidence, Explanation, explain_file
from icekeep.tables.verbs import append
from kit.deletes import data_files
from kit.lake import Lake, events


def never() -> SparkSession:
    raise AssertionError("a few entries need no Spark")


@pytest.fixture
def months(lake: Lake) -> Lake:
    """One commit of a file for each of January, February and March, and one more of March alone."""
    table = append(lake.create(), [events(n, month=1 + n) for n in range(3)])
    append(table, events(3, month=3))
    return lake


def explained(lake: Lake, month: int, where: str, **version: int) -> Explanation:
    file = next(f for f in data_files(lake.load()) if f"2013-0{month}" in f.file_path)
    return explain_file(lake.load(), file.file_path, never, where=where, **version)


def asked(explanation: Explanation, step: str) -> list[Evidence]:
    return [evidence for evidence in explanation.evidence if evidence.step == step]


def test_a_file_that_is_read_shows_why_nothing_drops_it(months: Lake) -> None:
    found = explained(months, 1, "at < '2013-01-15' and id = 3")
    assert (found.is_read, found.pruned_by, found.partition) == (True, None, "at_month=2013-01")
    assert [(e.asked, e.may_match) for e in asked(found, "metrics")] == [
        ("at < '2013-01-15T00:00:00+00:00'", True),
        ("id = 3", True),
    ]
    assert asked(found, "metrics")[1].known == "0 to 19, 0 nulls of 20 rows"


def test_the_first_step_that_drops_a_file_is_named_with_its_evidence(months: Lake) -> None:
    by_metrics = explained(months, 1, "id = 1000003")
    assert (by_metrics.is_read, by_metrics.pruned_by) == (False, "metrics")
    assert [(e.known, e.may_match) for e in asked(by_metrics, "metrics")] == [("0 to 19, 0 nulls of 20 rows", False)]
    by_partition = explained(months, 2, "at < '2013-01-15'")
    assert by_partition.pruned_by == "partition"
    assert [(e.known, e.may_match) for e in asked(by_partition, "partition")] == [("517", False)]
    assert [e.may_match for e in asked(by_partition, "manifest")] == [True]
    march = [f.file_path for f in data_files(months.load()) if "2013-03" in f.file_path]
    pruned_by = {explain_file(months.load(), path, never, where="at < '2013-01-15'").pruned_by for path in march}
    assert pruned_by == {"partition", "manifest"}


def test_the_end_of_a_path_names_a_file_if_no_other_ends_so(months: Lake) -> None:
    file = data_files(months.load())[0].file_path
    assert explain_file(months.load(), file[-60:], never).file_path == file
    with pytest.raises(UsageError, match="4 data files end with 'parquet', such as"):
        explain_file(months.load(), "parquet", never)
    with pytest.raises(NotFoundError, match=r"no manifest of this version lists a data file 'nope\.parquet'"):
        explain_file(months.load(), "nope.parquet", never)


def test_a_file_that_an_incremental_scan_did_not_append_is_left_out_by_its_version(months: Lake) -> None:
    first, second = [s.snapshot_id for s in months.load().metadata.snapshots]
    file = next(f.file_path for f in data_files(months.load()) if "2013-01" in f.file_path)
    with pytest.raises(NotFoundError, match="no manifest of this version"):
        explain_file(months.load(), file, never, start_snapshot_id=first)
    assert explain_file(months.load(), file, never, snapshot_id=second).is_read
