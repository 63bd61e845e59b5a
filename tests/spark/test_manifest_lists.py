"""Manifest lists in Spark tasks: what is found is what the driver finds."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, MissingFileError
from icekeep.planning import manifest_lists
from icekeep.planning.manifest_lists import ListedManifests, listed_manifests
from icekeep.planning.spark.session import Engine, SparkSource
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.local.storage import LocalStorage
from icekeep.storage.location_keys import location_keys
from kit.manifests import added, data_file, write_list, write_manifest
from kit.runtime import no_spark

LISTS_COUNT = 12


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks from the fifth list on."""
    monkeypatch.setattr(manifest_lists, "_BUNDLE_LISTS", 4)
    monkeypatch.setattr(manifest_lists, "_MIN_TASK_LISTS", 2)


def row(number: int, **changes: int) -> ManifestFile:
    _, known = write_manifest([added(data_file())])
    return replace(known, manifest_path=f"file:/lake/m{number}.avro", manifest_length=100 + number, **changes)


def snapshots(directory: Path) -> list[Snapshot]:
    """Each with a list of the four newest manifests."""
    made = []
    for number in range(LISTS_COUNT):
        location = directory / f"snap-{number}.avro"
        location.write_bytes(write_list([row(n) for n in range(max(0, number - 3), number + 1)]))
        totals = {"total-data-files": str(min(4, number + 1)), "total-delete-files": "0"}
        made.append(Snapshot(snapshot_id=number, timestamp_ms=number, manifest_list=str(location), summary=totals))
    return made


def found(
    spark: SparkSource, some: list[Snapshot], check: bool = True, unwanted: np.ndarray | None = None
) -> ListedManifests:
    return listed_manifests(LocalStorage(), spark, some, check=check, without=unwanted)


def test_tasks_find_what_the_driver_finds(tmp_path: Path, in_tasks: Engine) -> None:
    some = snapshots(tmp_path)
    some[3] = replace(some[3], summary=None)
    (tmp_path / "snap-1.avro").unlink()
    (tmp_path / "snap-6.avro").write_bytes(b"damaged")
    unwanted = location_keys(pa.array([row(2).manifest_path, row(9).manifest_path]))
    kept = [some[n] for n in range(LISTS_COUNT) if n not in (1, 6)]
    by_tasks = found(in_tasks, kept), found(in_tasks, some, False, unwanted)
    on_driver = found(no_spark, kept), found(no_spark, some, False, unwanted)
    for there, here in zip(by_tasks, on_driver, strict=True):
        assert there.manifests == here.manifests
        assert there.keys.tolist() == here.keys.tolist()
        assert there.untotalled_count == here.untotalled_count
        assert sorted(there.unreadable) == sorted(here.unreadable)
    assert (len(by_tasks[0].manifests), by_tasks[0].untotalled_count) == (LISTS_COUNT, 1)
    assert (len(by_tasks[1].manifests), len(by_tasks[1].unreadable)) == (LISTS_COUNT - 2, 2)


def test_task_errors_equal_driver_errors(tmp_path: Path, in_tasks: Engine) -> None:
    some = snapshots(tmp_path)
    some[2] = replace(some[2], summary={"total-data-files": "7"})
    with pytest.raises(InvalidTableError, match="leads to 3 data files, but snapshot 2 says total-data-files 7"):
        found(in_tasks, some)
    (tmp_path / "snap-2.avro").unlink()
    with pytest.raises(MissingFileError):
        found(in_tasks, some)


def test_lists_of_different_tasks_must_agree(tmp_path: Path, in_tasks: Engine) -> None:
    some = snapshots(tmp_path)
    other = row(0, added_files_count=5)
    (tmp_path / "snap-7.avro").write_bytes(write_list([replace(other, manifest_length=9)]))
    some[7] = replace(some[7], summary={"total-data-files": "5"})
    with pytest.raises(
        InvalidTableError, match=r"manifest 'file:/lake/m0.avro' has \d+ bytes by another manifest list"
    ):
        found(in_tasks, some)
    (tmp_path / "snap-7.avro").write_bytes(write_list([other]))
    assert found(in_tasks, some).manifests.count(other) == 1
