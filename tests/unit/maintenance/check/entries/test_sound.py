"""Tables that are sound, with real files: nothing is told of them."""

import pyarrow as pa
import pytest

from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.evolution import AddPartitionField
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append, update_spec
from kit.checked_entries import all_faults, checked
from kit.lake import Lake, events
from kit.limits import limited
from kit.no_spark import no_spark
from kit.written_deletes import data_files, delete_by_vector, delete_equal, delete_positions


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_sound_table_has_no_faults(version: int, lake: Lake) -> None:
    table = lake.filled(commits=3, files=2, format_version=version)
    create_tag(table, "first", table.metadata.snapshots[0].snapshot_id)
    paths = [file.file_path for file in data_files(lake.load())]
    if version == 2:
        delete_positions(lake.load(), [(paths[0], 1), (paths[0], 3)])
    if version == 3:
        delete_by_vector(lake.load(), paths[0], [1])
        delete_by_vector(lake.load(), paths[1], [5])
        delete_by_vector(lake.load(), paths[0], [2])
    if version > 1:
        like = data_files(lake.load())[0]
        delete_equal(lake.load(), pa.table({"id": pa.array([1], pa.int64())}), ["id"], like=like)
    rewrite_manifests(lake.load(), no_spark)
    create_branch(lake.load(), "side")
    update_spec(lake.load(), [AddPartitionField("kind", "identity")])
    append(lake.load(), events(70), branch="side")
    append(lake.load(), events(80))
    for spark in (no_spark, limited(no_spark, looked_up_files_count=0)):
        tally = checked(lake.load(), spark)
        assert (all_faults(tally), tally.gaps()) == ([], ())


def test_a_file_that_goes_from_the_disk_is_missed(lake: Lake) -> None:
    table = lake.filled(commits=2, files=2)
    [path, *_] = sorted(path for path in lake.content_on_disk() if path.suffix == ".parquet")
    path.unlink()
    [fault] = all_faults(checked(table, limited(no_spark, looked_up_files_count=0)))
    assert (fault.number, fault.where.removeprefix("file://")) == (301, str(path))
