"""The seam that decodes manifests: in either place, by either decoder, the same entries."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.errors import InvalidTableError
from icekeep.maintenance.compact.job import compact
from icekeep.planning import entries as entries_read
from icekeep.planning.decoder import ManifestDecoder, chosen_decoder
from icekeep.planning.entries import EntryFilter, ReadBy, Reading, chosen_reading, entries, folded
from icekeep.planning.manifests import ENTRIES
from icekeep.planning.scan.plan import FILE_COLUMNS, open_scan, planned_files
from icekeep.planning.scan.report import TOTALLED_COLUMNS, ScanTotals
from icekeep.storage.local.storage import LocalStorage
from kit.lake import Lake
from kit.naive_scan import live_entries

READINGS = [Reading(by=by, decoder=decoder, reason="") for by in ReadBy for decoder in ManifestDecoder]


class OnlyReading(LocalStorage):
    """Fails where storage is listed or asked about files."""

    def list(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("storage is listed")

    def head(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a file is asked for its length")


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: f"{reading.by}-{reading.decoder}")
def test_all_columns_of_all_entries_are_the_same_wherever_they_are_decoded(
    lake: Lake, spark_session: SparkSession, reading: Reading
) -> None:
    compact(lake.filled(), spark_session)
    table = lake.load()
    if reading.by is ReadBy.DRIVER:  # a worker could not import the class
        table = replace(table, storage=OnlyReading())
    scan = open_scan(table)
    whole = EntryFilter(specs=scan.data.specs, live_only=False)
    manifests = scan.data.opened
    rows = entries(table.storage, spark_session, manifests, whole, ENTRIES.names, reading).collect()
    first = entries(table.storage, spark_session, manifests, whole, ENTRIES.names, READINGS[1]).collect()
    assert Counter(map(repr, rows)) == Counter(map(repr, first))
    live = {entry.data_file.file_path: entry for entry in live_entries(table)}
    found = {row["file_path"]: row for row in rows if row["status"] != 2}
    assert found.keys() == live.keys()
    for path, entry in live.items():
        row, file = found[path], entry.data_file
        assert (row["sequence_number"], row["snapshot_id"]) == (entry.sequence_number, entry.snapshot_id)
        assert (row["record_count"], row["file_size_in_bytes"]) == (file.record_count, file.file_size_in_bytes)
        assert row["lower_bounds"] == {key: bytearray(bound) for key, bound in (file.lower_bounds or {}).items()}
        assert row["null_value_counts"] == file.null_value_counts


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: f"{reading.by}-{reading.decoder}")
def test_a_fold_counts_what_the_rows_say_and_what_each_step_dropped(
    lake: Lake, spark_session: SparkSession, reading: Reading
) -> None:
    table = lake.filled()
    scan = open_scan(table, where="id < 5000010 and at < '2013-02-03'")
    rows = planned_files(scan, spark_session).collect()
    opened, wanted = scan.data.opened, scan.wanted
    tally = folded(table.storage, spark_session, opened, wanted, TOTALLED_COLUMNS, ScanTotals, reading)
    assert tally.steps.by_metrics_count == len(rows) == 6
    assert tally.steps.by_metrics_bytes == sum(row["file_size_in_bytes"] for row in rows)
    assert (tally.steps.opened_count, tally.steps.by_partition_count) == (12, 12)
    assert tally.record_count == sum(row["record_count"] for row in rows)


def test_few_entries_are_decoded_on_the_driver_and_many_in_tasks_and_the_plan_says_why(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_scan(lake.filled(commits=2)).data.opened
    few, many = chosen_reading(opened, 200_000), chosen_reading(opened, 5)
    assert (few.by, few.decoder, many.by) == (ReadBy.DRIVER, ManifestDecoder.DATAFUSION, ReadBy.TASKS)
    assert few.reason.startswith(
        "6 entries, and up to 200,000 are ready before Spark tasks would be; package datafusion"
    )
    assert many.reason.startswith("6 entries, and above 5 Spark tasks are faster")
    monkeypatch.setattr(
        entries_read, "chosen_decoder", lambda: (ManifestDecoder.FASTAVRO, "package datafusion is not installed")
    )
    assert chosen_reading(opened, 10).reason.endswith("; package datafusion is not installed")
    assert chosen_decoder()[0] is ManifestDecoder.DATAFUSION


def test_a_list_that_does_not_count_entries_is_judged_by_its_bytes(lake: Lake) -> None:
    [manifest] = open_scan(lake.filled(commits=1)).data.opened
    silent = replace(manifest, added_files_count=None, manifest_length=50 * 200_001)
    assert chosen_reading([silent], 200_000).by is ReadBy.TASKS
    assert chosen_reading([replace(silent, manifest_length=50 * 200_000)], 200_000).by is ReadBy.DRIVER


@pytest.mark.parametrize("reading", READINGS, ids=lambda reading: f"{reading.by}-{reading.decoder}")
def test_a_damaged_manifest_fails_the_plan_with_its_name(
    lake: Lake, spark_session: SparkSession, reading: Reading
) -> None:
    table = lake.filled(commits=2)
    scan = open_scan(table)
    cut = scan.data.opened[0]
    data = table.storage.read(cut.manifest_path)
    table.storage.delete_many([cut.manifest_path])
    with table.storage.write(cut.manifest_path) as stream:
        stream.write(data[:-20])
    with pytest.raises(InvalidTableError, match=f"{cut.manifest_path}.* bytes, but its manifest list says"):
        folded(table.storage, spark_session, scan.data.opened, scan.wanted, TOTALLED_COLUMNS, ScanTotals, reading)
    with pytest.raises(Exception, match=r"bytes, but its manifest list says"):
        entries(table.storage, spark_session, scan.data.opened, scan.wanted, FILE_COLUMNS, reading).collect()
