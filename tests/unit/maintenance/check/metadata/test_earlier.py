"""Which metadata a damaged table may be put back to."""

import gzip
import json
from typing import Any

import pytest

from icekeep.errors import UnavailableError
from icekeep.maintenance.check.metadata import last_sound
from kit.cases import for_each
from kit.metadata import sound_document
from kit.storage import HookedStorage, MemoryStorage

HOME = "memory://lake/t/metadata"
OTHER_UUID = "0d5e5e3f-0000-4000-8000-000000000000"


def name(version: int, tail: str = "aa") -> str:
    return f"{HOME}/{version:05d}-{tail}.metadata.json"


def document(version: int, *log: str, **keys: Any) -> dict[str, Any]:
    """A sound table at some version, whose time is that of the version."""
    entries = [{"timestamp-ms": 0, "metadata-file": one} for one in log]
    found = {**sound_document(), "last-updated-ms": 1602638573590 + version, "metadata-log": entries}
    return found | {key.replace("_", "-"): value for key, value in keys.items()}


def lake(files: dict[str, Any]) -> MemoryStorage:
    storage = MemoryStorage()
    for location, content in files.items():
        storage.create(location, content if isinstance(content, bytes) else json.dumps(content).encode())
    return storage


def found(storage: Any, location: str, raw: object = None) -> list[str]:
    return [one.location for one in last_sound(storage, location, raw)]


def test_the_newest_sound_files_of_the_log_are_found_and_described():
    storage = lake({name(n): document(n) for n in (1, 2)} | {name(3): b"{"})
    damaged = document(4, name(1), name(2), name(3))
    assert found(storage, name(4), damaged) == [name(2), name(1)]
    newest = last_sound(storage, name(4), damaged)[0]
    assert newest.timestamp_ms == 1602638573592
    assert newest.last_sequence_number == 34
    assert newest.snapshot_ids == (3051729675574597004, 3055729675574597004)
    assert newest.current_snapshot_id == newest.snapshot_ids[1]


def test_at_most_five_are_found():
    names = [name(n) for n in range(8)]
    storage = lake({one: document(n) for n, one in enumerate(names)})
    assert found(storage, name(8), document(8, *names)) == names[:2:-1]


def test_not_more_than_twenty_files_are_read():
    names = [name(n) for n in range(30)]
    reads: list[str] = []
    storage = HookedStorage(lake(dict.fromkeys(names, b"{")), before=lambda op, where: reads.append(op))
    assert found(storage, name(30), document(30, *names)) == []
    assert reads.count("read") == 20


def test_what_is_missing_faulty_of_a_later_version_or_of_another_table_is_passed_over():
    storage = lake(
        {
            name(1): document(1),
            name(2): document(2, table_uuid=OTHER_UUID),
            name(3): document(3, last_column_id=2),
            name(4): {"format-version": 4},
        }
    )
    damaged = document(6, *(name(n) for n in range(1, 6)))
    assert found(storage, name(6), damaged) == [name(1)]


def test_a_notice_does_not_make_metadata_unsound():
    storage = lake({name(1): document(1, name(0), name(0))})
    assert found(storage, name(2), document(2, name(1))) == [name(1)]


LOGS = [None, [], {"metadata-log": 7}, {"metadata-log": [7, {"metadata-file": 7}, {"metadata-file": "x"}]}]


@for_each("raw", LOGS)
def test_without_a_log_the_files_beside_are_asked_by_their_versions(raw):
    files = {name(n): document(n) for n in (8, 9, 10)}
    gzipped = f"{HOME}/00007-aa.gz.metadata.json"
    others = [f"{HOME}/snap-9.avro", f"{HOME}/00009-aa.stats", f"{HOME}/deeper/00009-aa.metadata.json"]
    storage = lake(files | {gzipped: gzip.compress(json.dumps(document(7)).encode())} | dict.fromkeys(others, b"{}"))
    # The newest that is sound leads to its log, and this one has none.
    assert found(storage, name(11), raw) == [name(10)]


def test_beside_a_damaged_file_the_log_of_the_newest_sound_one_goes_before_the_names():
    lost = name(9, "lost-a-race")
    storage = lake({name(8): document(8), lost: document(9), name(10): document(10, name(8)), name(11): document(11)})
    assert found(storage, name(11), None) == [name(10), name(8)]


def test_files_of_the_newest_sound_version_are_all_told_as_only_one_of_them_was_the_table():
    twins = {name(10): document(10, name(8)), name(10, "bb"): document(10, name(8))}
    storage = lake({name(8): document(8), name(9): document(9), name(12): b"{", **twins})
    assert sorted(found(storage, name(12), None)) == [name(8), name(10), name(10, "bb")]


def test_files_of_the_damaged_version_or_later_never_were_the_table():
    storage = lake({name(3): document(3), name(4, "lost"): document(4), name(5, "lost"): document(5)})
    assert found(storage, name(4), None) == [name(3)]


def test_versions_of_a_directory_catalog_are_found_by_name():
    storage = lake({f"{HOME}/v{n}.metadata.json": document(n) for n in (9, 10)})
    assert found(storage, f"{HOME}/v11.metadata.json", None) == [f"{HOME}/v10.metadata.json"]


def test_of_a_directory_full_of_manifests_only_names_like_the_damaged_one_are_listed():
    listed: list[str] = []
    inner = lake({name(n): document(n) for n in (98, 101)})
    storage = HookedStorage(inner, before=lambda operation, where: listed.append(operation))
    assert found(storage, name(102), None) == [name(101)]
    assert "list" not in listed


def test_a_damaged_file_without_a_version_in_its_name_is_put_back_to_the_newest_beside_it():
    storage = lake({name(12345): document(5), name(77): document(4)})
    assert found(storage, f"{HOME}/current.json", None) == [name(12345)]


def test_versions_far_behind_are_found_too():
    storage = lake({name(7): document(7), f"{HOME}/deeper/00008-aa.metadata.json": document(8)})
    assert found(storage, name(12345), None) == [name(7)]


def test_the_uuid_of_what_is_found_first_holds_for_the_others():
    storage = lake(
        {name(2): document(2, name(1), name(0)), name(1): document(1, table_uuid=OTHER_UUID), name(0): document(0)}
    )
    assert found(storage, name(3), None) == [name(2), name(0)]
    assert found(storage, name(3), {"table-uuid": OTHER_UUID}) == [name(1)]
    assert found(storage, name(3), {"table-uuid": "damaged"}) == [name(2), name(0)]


def test_nothing_is_found_where_there_is_nothing():
    assert found(lake({}), name(3), None) == []
    assert found(lake({name(3): document(3)}), name(3), document(3)) == []


def test_a_store_that_is_out_of_reach_ends_the_search():
    def fail(operation: str, location: str) -> None:
        raise UnavailableError("out of reach")

    with pytest.raises(UnavailableError):
        found(HookedStorage(lake({}), before=fail), name(3), document(3, name(2)))
