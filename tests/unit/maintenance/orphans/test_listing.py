import pyarrow as pa
import pytest

from icekeep.errors import UnavailableError
from icekeep.maintenance.orphans.listing import LISTED, expected_files_count, hidden_names, list_files
from icekeep.maintenance.orphans.options import spelling
from icekeep.storage.location_keys import loose_keys
from icekeep.storage.open import open_storage
from kit.limits import limited
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import add, memory_table

ROOT = "memory://lake/tbl"


class SparkAsked(Exception):
    pass


def ask_for_spark():
    raise SparkAsked


def listed(storage, root=ROOT, spark=lambda: pytest.fail("Spark"), **options):
    return list_files(
        storage, spark, root, hidden_names(root, []), spelling(None, None), None, **{"expected_count": 0, **options}
    )


def store(*names):
    storage = HookedStorage(MemoryStorage())
    for name in names:
        storage.create(f"{ROOT}/{name}", name.encode())
    return storage


def test_every_file_below_is_listed_once_hidden_ones_are_counted():
    names = [f"d{n % 7}/f{n}" for n in range(100)]
    found = listed(store(*names, "_h", "d1/.h"))
    assert sorted(found.files["location"].to_pylist()) == sorted(f"{ROOT}/{name}" for name in names)
    assert (found.files_count, found.hidden_count, found.outside_count) == (100, 2, 0)
    assert found.files.schema == LISTED


def test_rows_carry_what_the_store_said_and_their_keys():
    storage = store("a/f")
    [row] = listed(storage).files.to_pylist()
    info = storage.head(f"{ROOT}/a/f")
    assert (row["size_bytes"], row["modified_ms"]) == (3, info.modified_ms)
    paths, prefixes = loose_keys(pa.array([info.location]))
    assert (row["path_key"], row["prefix_key"]) == (paths[0], prefixes[0])


def test_a_directory_that_is_not_there_has_no_files():
    assert listed(store(), f"{ROOT}/nothing").files_count == 0


def test_up_to_a_number_files_are_listed_here_and_above_it_in_tasks():
    """apache/iceberg #14679, apache/iceberg #16932: the driver holds no list of all files."""
    storage = store(*(f"f{n}" for n in range(10)))
    assert listed(storage, spark=limited(ask_for_spark, listed_files_count=10)).files_count == 10
    with pytest.raises(SparkAsked):
        listed(storage, spark=limited(ask_for_spark, listed_files_count=9))
    with pytest.raises(SparkAsked):
        listed(storage, expected_count=10, spark=limited(ask_for_spark, listed_files_count=9))


def test_where_many_files_are_expected_nothing_is_listed_here():
    storage = store("f")
    with pytest.raises(SparkAsked):
        listed(storage, expected_count=11, spark=limited(ask_for_spark, listed_files_count=10))
    assert not storage.fired["list_share"]


def test_a_part_that_cannot_be_listed_is_an_error():
    storage = store(*(f"f{n}" for n in range(40)))
    calls = []

    def fail(operation, location):
        calls.append(operation)
        if calls.count("list_share") == 7:
            raise UnavailableError("out of reach")

    storage.before = fail
    with pytest.raises(UnavailableError):
        listed(storage)


def test_links_are_neither_listed_nor_followed(tmp_path):
    """ClickHouse #120165: a link to a file, to a directory, to the directory itself, and to nothing."""
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("x")
    root = tmp_path / "tbl"
    (root / "data").mkdir(parents=True)
    (root / "data" / "f").write_text("x")
    (root / "data" / "file").symlink_to(outside / "deep" / "precious")
    (root / "data" / "directory").symlink_to(outside)
    (root / "data" / "itself").symlink_to(root)
    (root / "data" / "nothing").symlink_to(outside / "not-there")
    found = listed(open_storage({}), root.as_uri())
    assert found.files["location"].to_pylist() == [f"{root.as_uri()}/data/f"]


def test_how_many_files_to_expect_is_read_from_the_current_snapshot():
    table = memory_table()
    assert expected_files_count(table.metadata) == 0
    table = add(add(table, "a", "b"), "c")
    assert expected_files_count(table.metadata) == 3 + 2
