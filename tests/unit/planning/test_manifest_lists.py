"""The manifests of many snapshots: each once, and none missing where a list is not whole."""

import io
import pickle
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
from icekeep.planning import manifest_lists as naming
from icekeep.planning.decoder import ManifestDecoder, NotReadError
from icekeep.planning.manifest_lists import (
    UNKNOWN,
    ListedManifests,
    ListedRows,
    StoredLists,
    listed_manifests,
    rows_of,
    snapshots_naming,
)
from icekeep.planning.spark.session import Engine, Limits
from icekeep.spec.avro import avro_schema, read_header
from icekeep.spec.manifests.read import read_manifest_list
from icekeep.spec.manifests.structs import FieldSummary, ManifestContent, ManifestFile, manifest_file_type
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.location_keys import location_keys
from icekeep.storage.locations import canonical
from kit.cases import cases, for_each
from kit.foreign_files import write_list_with_pyiceberg, write_with_pyiceberg
from kit.manifests import (
    DAY,
    LIST,
    SNAPSHOT_ID,
    added,
    blocks,
    data_file,
    deleted,
    existing,
    field_of,
    recounted,
    with_schema,
    write_list,
    write_manifest,
)
from kit.runtime import no_spark
from kit.storage import HookedStorage, MemoryStorage
from kit.strategies import manifest_files
from kit.tables import add, manifests_of, memory_table

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


def test_shared_list_is_read_once_and_checked_for_each_snapshot() -> None:
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
def test_unreadable_list_stops_only_checked_reads(decoder: ManifestDecoder, damage: str) -> None:
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


def test_snapshot_with_inline_manifests_must_name_all() -> None:
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


def test_one_whose_location_is_none_is_told_of() -> None:
    table = Lists()
    unlisted(table, 1)
    table.put([], manifest_list=None, manifests=("metadata/v2.avro",), summary={})
    with pytest.raises(InvalidTableError, match="relative"):
        table.found()
    found = table.found(check=False)
    assert (len(found.manifests), found.unreadable) == (1, ("metadata/v2.avro",))


def test_task_answer_omits_the_keys_it_was_given() -> None:
    unwanted = np.arange(10_000, dtype=np.int64)
    distinct = manifest_lists._DistinctManifests(unwanted, check=False, trust=False)
    distinct._add(rows_of([row(1), row(2)]), ["a list"])
    answer = pickle.dumps(distinct)
    assert len(answer) < 5_000
    whole = manifest_lists._DistinctManifests(unwanted, check=False, trust=False)
    whole.merge(pickle.loads(answer))
    assert whole.by_key == distinct.by_key


# How lists are read.


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were made values."""
    counts: list[int] = []
    plain: Callable[..., Any] = manifest_lists.StoredLists._decode

    def count(self: Any, columns: Any, rows: Any) -> Any:
        counts.append(len(rows))
        return plain(self, columns, rows)

    monkeypatch.setattr(manifest_lists.StoredLists, "_decode", count)
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


# Manifest lists as columns: the rows are those that `spec.manifests.read.read_manifest_list` reads, or it is asked.


def stored(*lists: bytes) -> ListedRows:
    headers = [read_header(data, LIST) for data in lists]
    return StoredLists(headers[0].metadata["avro.schema"]).read([*zip(lists, headers, strict=True)])


def made(rows: ListedRows) -> list[ManifestFile]:
    return rows.decode(np.arange(len(rows.paths)))


def columns(rows: ListedRows) -> list[list[Any]]:
    arrays = (rows.lengths, rows.contents, rows.live_counts)
    return [rows.paths.to_pylist(), *(array.tolist() for array in arrays)]


def listed(**changes: Any) -> ManifestFile:
    _, known = write_manifest([])
    summaries = (FieldSummary(contains_null=True, contains_nan=False, lower_bound=b"a", upper_bound=b"\xff"),)
    return replace(known, **{"partitions": summaries, **changes})


@given(
    st.lists(st.lists(manifest_files(), max_size=3), min_size=1, max_size=3), st.sampled_from([1, 2, 3]), st.booleans()
)
@cases(80)
def test_rows_are_those_of_each_list_in_order(lists: list[list[ManifestFile]], version: int, is_packed: bool) -> None:
    codec = "gzip" if is_packed else "uncompressed"
    written = [write_list(some, format_version=version, codec=codec) for some in lists]
    expected = [read_manifest_list(data, LIST) for data in written]
    flat = [manifest for some in expected for manifest in some]
    if not flat:
        return
    rows = stored(*written)
    assert made(rows) == flat
    assert columns(rows) == columns(rows_of(flat))
    assert rows.list_numbers.tolist() == [number for number, some in enumerate(expected) for _ in some]


def test_single_rows_are_made_in_the_order_that_is_asked_for() -> None:
    known = [listed(manifest_path=f"/m{number}", added_files_count=number, first_row_id=number) for number in range(5)]
    rows = stored(write_list(known, format_version=3))
    assert rows.decode(np.array([3, 0])) == [known[3], known[0]]
    assert rows.decode(np.array([], np.int64)) == []


@for_each("version", [1, 2])
@for_each("codec", ["deflate", "null"])
def test_lists_of_pyiceberg_are_read(version: int, codec: str) -> None:
    entries = [added(snapshot_id=SNAPSHOT_ID), existing(), deleted(snapshot_id=3)]
    manifests = [write_with_pyiceberg(f"/m{number}", entries, DAY, version=version)[1] for number in range(3)]
    written = write_list_with_pyiceberg(LIST, manifests, version=version, codec=codec)
    assert made(stored(written)) == read_manifest_list(written, LIST)
    assert stored(written).live_counts.tolist() == [2, 2, 2]


def rename(schema: Any) -> Any:
    for number, field in enumerate(schema["fields"]):
        field["name"] = f"n{number}"
    summary = field_of(schema, 507)["type"][1]["items"]["fields"]
    for number, field in enumerate(summary):
        field["name"] = f"s{number}"
    return schema


def test_fields_are_found_by_id() -> None:
    written = with_schema(write_list([listed(), listed(partitions=None)]), rename)
    assert made(stored(written)) == read_manifest_list(written, LIST)


def unknown(*field_ids: int) -> Callable[[Any], Any]:
    def change(schema: Any) -> Any:
        for field_id in field_ids:
            field_of(schema, field_id)["field-id"] = 900 + field_id
        return schema

    return change


def test_what_a_list_need_not_say_is_not_known() -> None:
    written = with_schema(write_list([listed()]), unknown(517, 515, 516, 504, 512, 507, 519))
    rows = stored(written)
    [manifest] = made(rows)
    assert [manifest] == read_manifest_list(written, LIST)
    assert rows.live_counts.tolist() == [UNKNOWN]
    assert (manifest.content, manifest.sequence_number) == (ManifestContent.DATA, 0)


def swap(one: int, other: int) -> Callable[[Any], Any]:
    def change(schema: Any) -> Any:
        first, second = field_of(schema, one), field_of(schema, other)
        first["field-id"], second["field-id"] = other, one
        return schema

    return change


@for_each(
    "change",
    [
        unknown(500),
        unknown(501),
        unknown(502),
        unknown(503),
        unknown(509),
        swap(500, 501),
        swap(502, 517),
        swap(509, 510),
    ],
)
def test_what_is_wrong_is_left_to_who_knows_what_to_say(change: Callable[[Any], Any]) -> None:
    written = with_schema(write_list([listed(partition_spec_id=4)]), change)
    with pytest.raises(NotReadError):
        made(stored(written))
    with pytest.raises(InvalidTableError):
        read_manifest_list(written, LIST)


def nullable(manifest: ManifestFile, **changes: Any) -> bytes:
    """A list of one row in which any field may be null, and is where `changes` say so."""
    schema = avro_schema(manifest_file_type(2), "manifest_file")
    for field in schema["fields"]:
        kind = field["type"]
        field["type"] = kind if isinstance(kind, list) else ["null", kind]
    summaries = field_of(schema, 507)["type"][1]
    summaries["items"] = ["null", summaries["items"]]
    out = io.BytesIO()
    fastavro.writer(
        out, schema, [{**asdict(manifest), "content": int(manifest.content), "partitions": None, **changes}]
    )
    return out.getvalue()


@for_each("name", ["manifest_path", "manifest_length", "partition_spec_id", "added_snapshot_id"])
def test_what_each_row_must_have_may_not_be_null(name: str) -> None:
    written = nullable(listed(), **{name: None})
    with pytest.raises(NotReadError):
        stored(written)
    with pytest.raises(InvalidTableError, match=f"lacks '{name}'"):
        read_manifest_list(written, LIST)


@for_each("name", ["content", "sequence_number", "min_sequence_number", "added_files_count"])
def test_other_nulls_are_read_as_version_1_means_them(name: str) -> None:
    written = nullable(listed(), **{name: None})
    assert made(stored(written)) == read_manifest_list(written, LIST) != [listed()]


def test_a_summary_that_is_null_is_left_to_who_knows_what_to_say() -> None:
    written = nullable(listed(), partitions=[None])
    with pytest.raises(NotReadError):
        made(stored(written))
    with pytest.raises(InvalidTableError):
        read_manifest_list(written, LIST)


@pytest.mark.parametrize("change", [-1, 1])
def test_counts_of_blocks_must_hold(change: int) -> None:
    written = write_list([listed(), listed()])
    [block] = blocks(written)
    with pytest.raises(NotReadError):
        stored(written.replace(block, recounted(block, change)))


def test_a_list_must_end_on_its_sync_marker() -> None:
    written = write_list([listed()])
    for end in range(len(written) - 40, len(written)):
        with pytest.raises(NotReadError):
            stored(written[:end])


@pytest.fixture(scope="module")
def tables():
    """The same table after each of four commits, each with a manifest of its own."""
    table, found = memory_table(commit__manifest_merge__enabled="false"), []
    for name in "abcd":
        found.append(table := add(table, name))
    return found


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_manifest_is_named_by_its_snapshot_and_later_ones(tables, decoder, monkeypatch):
    monkeypatch.setattr(naming, "chosen_decoder", lambda: (decoder, ""))
    last = tables[-1]
    ids = [table.metadata.current_snapshot_id for table in tables]
    paths = [manifests_of(table)[0].manifest_path for table in tables]
    asked = [paths[3], paths[1], "memory://lake/none.avro"]
    keys = location_keys(pa.array(asked)).tolist()
    found = snapshots_naming(last.storage, no_spark, last.metadata.snapshots, asked)
    assert found == {keys[0]: {ids[3]}, keys[1]: {*ids[1:]}}
    assert snapshots_naming(last.storage, no_spark, last.metadata.snapshots, []) == {}


def test_unreadable_list_is_skipped(tables):
    last = tables[-1]
    broken, missing, *_ = last.metadata.snapshots
    files = dict(last.storage.files)
    last.storage.files[broken.manifest_list] = (b"broken", 0)
    del last.storage.files[missing.manifest_list]
    path = manifests_of(tables[-1])[-1].manifest_path
    (ids,) = snapshots_naming(last.storage, no_spark, last.metadata.snapshots, [path]).values()
    last.storage.files |= files
    assert ids == {s.snapshot_id for s in last.metadata.snapshots[2:]}


def test_many_lists_are_read_in_tasks(tables, monkeypatch):
    monkeypatch.setattr(naming, "_BUNDLE_LISTS", 1)
    last = tables[-1]
    engine = Engine(spark=no_spark, limits=Limits(list_rows_count=99))
    with pytest.raises(AssertionError, match="Spark was started"):
        snapshots_naming(last.storage, engine, last.metadata.snapshots, ["memory://lake/none.avro"])
