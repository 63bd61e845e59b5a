"""The manifests of many snapshots: each once, and none missing where a list is not whole."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, MissingFileError, UnavailableError, UnsupportedError
from icekeep.planning import manifest_lists
from icekeep.planning import manifest_lists as distinct_manifests
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.manifest_lists import ListedManifests, listed_manifests
from icekeep.spec.avro import avro_schema
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile, manifest_file_type
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.location_keys import location_keys
from icekeep.storage.locations import canonical
from kit.cases import cases
from kit.foreign_files import write_list_with_pyiceberg, write_with_pyiceberg
from kit.manifests import DAY, added, blocks, data_file, existing, write_list, write_manifest
from kit.no_spark import no_spark
from kit.storage import HookedStorage, MemoryStorage

DATA, DELETES = ManifestContent.DATA, ManifestContent.DELETES


@pytest.fixture(params=ManifestDecoder)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ManifestDecoder:
    """Both ways of decoding, which must not differ."""
    monkeypatch.setattr(manifest_lists, "chosen_decoder", lambda: (request.param, ""))
    return request.param


def row(number: int = 0, **changes: Any) -> ManifestFile:
    """A manifest with three live files."""
    known = ManifestFile(
        manifest_path=f"memory://bucket/metadata/m{number}.avro",
        manifest_length=7000 + number,
        partition_spec_id=0,
        added_snapshot_id=number,
        sequence_number=number,
        min_sequence_number=number,
        added_files_count=1,
        existing_files_count=2,
        deleted_files_count=4,
        added_rows_count=10,
        existing_rows_count=20,
        deleted_rows_count=40,
    )
    return replace(known, **changes)


class Lists:
    """Snapshots and their manifest lists, in memory."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.snapshots: list[Snapshot] = []

    def put(self, rows: Sequence[ManifestFile], data: bytes | None = None, **changes: Any) -> Snapshot:
        """A snapshot with the totals of its rows, and their list, unless its bytes are given."""
        number = len(self.snapshots) + 1
        totals = {
            name: str(sum(m.live_files_count or 0 for m in rows if m.content is content))
            for name, content in (("total-data-files", DATA), ("total-delete-files", DELETES))
        }
        location = f"memory://bucket/metadata/snap-{number}.avro"
        snapshot = Snapshot(
            snapshot_id=number, timestamp_ms=number, manifest_list=location, summary={"operation": "append", **totals}
        )
        self.storage.create(location, write_list(rows) if data is None else data)
        self.snapshots.append(replace(snapshot, **changes))
        return self.snapshots[-1]

    def found(self, **how: Any) -> ListedManifests:
        return listed_manifests(self.storage, no_spark, self.snapshots, **{"check": True, **how})

    def refused(self, **how: Any) -> str:
        with pytest.raises(InvalidTableError) as raised:
            self.found(**how)
        assert "\n" not in raised.value.message
        return raised.value.message


def keys_of(*manifests: ManifestFile) -> list[int]:
    return location_keys(pa.array([m.manifest_path for m in manifests], pa.string())).tolist()


def by_path(found: ListedManifests) -> list[ManifestFile]:
    return sorted(found.manifests, key=lambda m: m.manifest_path)


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 9), unique=True), max_size=6), st.sets(st.integers(0, 9)), st.booleans())
@cases(60)
def test_each_manifest_is_found_once(lists: list[list[int]], unwanted: set[int], check: bool) -> None:
    known = [row(n, content=DELETES if n % 3 == 0 else DATA) for n in range(10)]
    table = Lists()
    for numbers in lists:
        table.put([known[number] for number in numbers])
    found = table.found(check=check, without=np.array(keys_of(*(known[n] for n in unwanted)), np.int64))
    reader = ManifestReader(table.storage)
    expected = {m.manifest_path: m for snapshot in table.snapshots for m in reader.manifests(snapshot)}
    assert by_path(found) == sorted(
        (expected[known[n].manifest_path] for n in {n for some in lists for n in some} - unwanted),
        key=lambda m: m.manifest_path,
    )
    assert found.keys.tolist() == sorted(found.keys.tolist()) == keys_of(*found.manifests)
    assert (found.untotalled_count, found.unreadable) == (0, ())


def test_either_decoder_finds_all_columns(decoder: ManifestDecoder) -> None:
    table = Lists()
    table.put([row(1), row(2, content=DELETES, key_metadata=b"k")])
    table.put([row(1), row(3, first_row_id=9)], write_list([row(1), row(3, first_row_id=9)], format_version=3))
    assert by_path(table.found()) == [row(1), row(2, content=DELETES, key_metadata=b"k"), row(3, first_row_id=9)]


def test_lists_of_other_writers_are_read(decoder: ManifestDecoder) -> None:
    table = Lists()
    _, theirs = write_with_pyiceberg("memory://bucket/p.avro", [added(), existing()], DAY)
    table.put([row(1)])
    table.put([row(added_files_count=1, existing_files_count=1)], write_list_with_pyiceberg("/l", [theirs]))
    table.put([row(1), row(2)], by_fastavro([row(1), row(2)]))
    assert [m.manifest_path[-5:] for m in by_path(table.found())] == ["1.avro"[-5:], "2.avro"[-5:], "p.avro"[-5:]]
    for snapshot in table.snapshots:
        for manifest in ManifestReader(table.storage).manifests(snapshot):
            assert manifest in table.found().manifests


def by_fastavro(rows: Sequence[ManifestFile], sync_interval: int = 1, **how: Any) -> bytes:
    """A list with a block for each row, or for some."""
    schema = avro_schema(manifest_file_type(2), "manifest_file")
    out = io.BytesIO()
    records = [{**asdict(m), "content": int(m.content)} for m in rows]
    fastavro.writer(out, schema, records, sync_interval=sync_interval, codec="deflate", **how)
    return out.getvalue()


def test_spark_is_not_started_for_few_lists_nor_for_none() -> None:
    for check in (True, False):
        found = Lists().found(check=check)
        assert (found.manifests, found.keys.tolist(), found.untotalled_count, found.unreadable) == ((), [], 0, ())


def test_a_list_that_snapshots_share_is_read_once_and_held_against_both() -> None:
    table = Lists()
    first = table.put([row(1)])
    table.snapshots.append(
        replace(first, snapshot_id=9, manifest_list=first.manifest_list.replace("/metadata", "//metadata"))
    )
    table.storage = HookedStorage(table.storage)
    table.found()
    assert table.storage.fired["read"] == 1
    right = table.snapshots
    for place in (0, 1):
        table.snapshots = [*right]
        table.snapshots[place] = replace(right[place], summary={"total-data-files": "4"})
        assert f"snapshot {right[place].snapshot_id} says total-data-files 4" in table.refused()


# Lists that are not whole.


@pytest.mark.slow
def test_a_list_that_is_cut_anywhere_is_refused(decoder: ManifestDecoder) -> None:
    rows = [row(n, content=DELETES if n % 4 == 3 else DATA) for n in range(8)]
    whole = by_fastavro(rows)
    some = blocks(whole)
    assert len(some) == 8
    head = len(whole) - sum(map(len, some))
    boundaries = {head + sum(map(len, some[:count])) for count in range(8)}
    for end in sorted(boundaries | {*range(len(whole) - 200, len(whole))}):
        table = Lists()
        table.put(rows[:3])
        table.put(rows, whole[:end])
        message = table.refused()
        assert "'memory://bucket/metadata/snap-2.avro'" in message
        # What is about to be expired may be broken: it is told of, and the others are read.
        if end not in boundaries:
            found = table.found(check=False)
            assert found.unreadable == ("memory://bucket/metadata/snap-2.avro",)
            assert by_path(found) == rows[:3]


def test_a_list_that_is_cut_between_blocks_shows_by_the_totals() -> None:
    rows = [row(1), row(2), row(3, content=DELETES)]
    whole = by_fastavro(rows)
    table = Lists()
    table.put(rows, whole[: -len(blocks(whole)[-1])])
    assert table.refused() == (
        "manifest list 'memory://bucket/metadata/snap-1.avro' leads to 0 delete files, but snapshot 1 says "
        "total-delete-files 3; run `icekeep check --table NAME`: `icekeep repair --table NAME --fault 204` corrects wrong "
        "counts in the list, `--fault 215` corrects a wrong total, and a list that was cut short needs a rollback; "
        "if the total is wrong, --trust-manifest-list goes by the list"
    )


@pytest.mark.parametrize("name", ["total-data-files", "total-delete-files"])
@pytest.mark.parametrize("count", ["2", "4", "", "many", "-3"])
def test_totals_must_agree_unless_the_list_is_trusted(decoder: ManifestDecoder, name: str, count: str) -> None:
    table = Lists()
    right = table.put([row(1), row(2, content=DELETES)])
    table.snapshots = [replace(right, summary={**right.summary, name: count})]
    assert f"says {name} {count}; run `icekeep check" in table.refused()
    for found in (table.found(trust=True), table.found(check=False)):
        assert len(found.manifests) == 2


def test_what_has_no_totals_is_counted() -> None:
    table = Lists()
    table.put([row(1)])
    table.put([row(1)], summary=None)
    table.put([row(1)], summary={"total-data-files": "3"})
    table.put([row(1)], summary={"total-delete-files": "0"})
    uncounted = row(1, added_files_count=None)
    table.put([uncounted], write_list([uncounted], format_version=1))
    assert table.found().untotalled_count == table.found(trust=True).untotalled_count == 4
    assert table.found(check=False).untotalled_count == 0


def test_one_total_is_compared_where_the_other_is_missing() -> None:
    table = Lists()
    table.put([row(1)], summary={"total-data-files": "4"})
    assert "leads to 3 data files, but snapshot 1 says total-data-files 4" in table.refused()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "empty", "not avro", "foreign"])
def test_a_list_that_cannot_be_read_stops_what_is_kept_and_nothing_else(decoder: ManifestDecoder, damage: str) -> None:
    table = Lists()
    table.put([row(1)])
    data = {"empty": b"", "not avro": b"what is it"}.get(damage)
    broken = table.put([row(2)], data)
    if damage == "missing":
        table.storage.delete_many([broken.manifest_list])
    if damage == "foreign":
        table.snapshots[1] = broken = replace(broken, manifest_list="s3://elsewhere/snap.avro")
    table.put([row(3)])
    errors = {"missing": MissingFileError, "foreign": UnsupportedError}
    with pytest.raises(errors.get(damage, InvalidTableError)):
        table.found()
    found = table.found(check=False)
    assert by_path(found) == [row(1), row(3)]
    assert found.unreadable == (broken.manifest_list,)


@pytest.mark.parametrize("check", [True, False])
def test_a_store_that_fails_for_now_is_no_broken_list(check: bool) -> None:
    table = Lists()
    table.put([row(1)])

    def fail(operation: str, location: str) -> None:
        raise UnavailableError("out of reach")

    table.storage = HookedStorage(table.storage, before=fail)
    with pytest.raises(UnavailableError):
        table.found(check=check)


def test_a_path_that_is_none_is_a_broken_list(decoder: ManifestDecoder) -> None:
    table = Lists()
    table.put([row(1)])
    table.put([row(2), row(3, manifest_path="no/location")])
    assert "'no/location' is relative" in table.refused()
    found = table.found(check=False)
    assert (by_path(found), len(found.unreadable)) == ([row(1)], 1)


# What lists say of one manifest.


@pytest.mark.parametrize("bundle", [1, 100])
def test_lists_must_agree_on_the_length_of_a_manifest(
    decoder: ManifestDecoder, bundle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_lists, "_BUNDLE_LISTS", bundle)
    table = Lists()
    table.put([row(1)])
    table.put([row(1, manifest_length=8)])
    message = table.refused()
    assert message.startswith("manifest 'memory://bucket/metadata/m1.avro' has ")
    assert "memory://bucket/metadata/snap-" in message
    assert len(table.found(check=False).manifests) == 1
    assert table.found(without=np.array(keys_of(row(1)))).manifests == ()


@pytest.mark.parametrize("bundle", [1, 100])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("least", "most"), [(0, 5), (5, None), (0, None)])
def test_of_different_counts_the_most_live_files_count(
    decoder: ManifestDecoder,
    bundle: int,
    order: tuple[int, int],
    least: int,
    most: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One that were taken for empty would not be opened, and its files would go.
    monkeypatch.setattr(manifest_lists, "_BUNDLE_LISTS", bundle)
    rows = [row(1, added_files_count=least, sequence_number=0, min_sequence_number=0)]
    rows.append(replace(rows[0], added_files_count=most))
    table = Lists()
    for place in order:
        table.put([rows[place]], write_list([rows[place]], format_version=1), summary=None)
    [found] = table.found().manifests
    assert found.added_files_count == most


def test_spellings_of_one_path_are_one_manifest(decoder: ManifestDecoder) -> None:
    other = row(1, manifest_path="memory://bucket//metadata/./m1.avro")
    table = Lists()
    table.put([row(1)])
    table.put([other])
    [found] = table.found().manifests
    assert canonical(found.manifest_path) == canonical(other.manifest_path)
    table.put([replace(other, manifest_length=3)])
    assert "memory://bucket/" in table.refused()


def test_manifests_that_have_one_key_by_chance_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distinct_manifests, "location_keys", lambda paths: np.zeros(len(paths), np.int64))
    for at_once in (True, False):
        table = Lists()
        length = {"manifest_length": 5}
        if at_once:
            table.put([row(1, **length), row(2, **length)])
        else:
            monkeypatch.setattr(manifest_lists, "_BUNDLE_LISTS", 1)
            table.put([row(1, **length)])
            table.put([row(2, **length)])
        with pytest.raises(UnsupportedError, match="cannot be told apart"):
            table.found()
        assert len(table.found(check=False).manifests) == 1


# Snapshots of version 1 without a list.


def unlisted(table: Lists, *numbers: int, **changes: Any) -> None:
    locations = [f"memory://bucket/metadata/v{number}.avro" for number in numbers]
    for location in locations:
        if table.storage.head(location) is None:
            data, _ = write_manifest([added(data_file(f"{location}.parquet"))], format_version=1, location=location)
            table.storage.create(location, data)
    totals = {"total-data-files": str(len(numbers)), "total-delete-files": "0"}
    table.put([], manifest_list=None, manifests=tuple(locations), **{"summary": totals, **changes})


def test_manifests_that_a_snapshot_names_itself_are_inspected() -> None:
    table = Lists()
    unlisted(table, 1, 2)
    unlisted(table, 2, 3)
    table.put([row(4)])
    expected = [m for s in table.snapshots for m in ManifestReader(table.storage).manifests(s)]
    found = table.found()
    assert by_path(found) == sorted({m.manifest_path: m for m in expected}.values(), key=lambda m: m.manifest_path)
    assert found.untotalled_count == 0


def test_manifests_that_a_snapshot_names_itself_are_read_once() -> None:
    table = Lists()
    unlisted(table, 1, 2)
    unlisted(table, 2, 1)
    table.storage = HookedStorage(table.storage)
    assert len(table.found().manifests) == 2
    assert table.storage.fired["read"] == 2
    key = location_keys(pa.array(["memory://bucket/metadata/v1.avro"]))
    assert len(table.found(check=False, without=key).manifests) == 1
    assert table.storage.fired["read"] == 3
    # What is not wanted counts too where the totals are checked.
    assert len(table.found(without=key).manifests) == 1


def test_a_snapshot_that_names_its_manifests_itself_must_name_all() -> None:
    table = Lists()
    unlisted(table, 1, summary={"total-data-files": "2", "total-delete-files": "0"})
    assert table.refused().startswith(
        "snapshot 1, which has no manifest list, leads to 1 data files, but snapshot 1 says"
    )


def test_one_that_cannot_be_read_is_told_of() -> None:
    table = Lists()
    unlisted(table, 1, 2)
    table.storage.delete_many(["memory://bucket/metadata/v1.avro"])
    with pytest.raises(MissingFileError):
        table.found()
    found = table.found(check=False)
    assert (len(found.manifests), found.unreadable) == (1, ("memory://bucket/metadata/v1.avro",))


# How lists are read.


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were made values."""
    counts: list[int] = []
    plain: Callable[..., Any] = manifest_lists.StoredLists._made

    def count(self: Any, columns: Any, rows: Any) -> Any:
        counts.append(len(rows))
        return plain(self, columns, rows)

    monkeypatch.setattr(manifest_lists.StoredLists, "_made", count)
    return counts


def test_only_new_manifests_become_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_lists, "_BUNDLE_LISTS", 4)
    table = Lists()
    for number in range(12):
        table.put([row(n) for n in range(number + 1)])
    made = counting(monkeypatch)
    assert len(table.found().manifests) == 12
    assert sum(made) == 12


def test_bundles_end_at_some_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_lists, "_BUNDLE_BYTES", 1)
    table = Lists()
    for number in range(5):
        table.put([row(number)])
    made = counting(monkeypatch)
    assert by_path(table.found()) == [row(number) for number in range(5)]
    assert made == [1] * 5
