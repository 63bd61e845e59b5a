import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UnavailableError
from icekeep.maintenance.orphans.listing import LISTED, expected_files_count, hidden_names, list_files
from icekeep.maintenance.orphans.options import spelling
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.transforms import Identity
from icekeep.storage.location_keys import loose_keys
from icekeep.storage.open import open_storage
from kit.cases import for_each
from kit.runtime import limited
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


TABLE_ROOT = "s3://bucket/wh/tbl"


def spec(*names: str, spec_id: int = 0) -> PartitionSpec:
    fields = (
        PartitionField(source_id=n + 1, field_id=1000 + n, name=name, transform=Identity())
        for n, name in enumerate(names)
    )
    return PartitionSpec(spec_id=spec_id, fields=tuple(fields))


def is_hidden(name: str, *specs: PartitionSpec, root: str = TABLE_ROOT) -> bool:
    rule = pickle.loads(pickle.dumps(hidden_names(root, specs)))
    return rule.mask(pa.array([f"{root.rstrip('/')}/{name}"])).tolist() == [True]


@for_each(
    "name",
    [
        "_x",
        ".x",
        "data/_temporary/f",
        "data/.x/f",
        "data/_SUCCESS",
        ".icekeep/trash/r/files/f",
        "a/.part-0.crc",
        "dir/",
        "/",
    ],
)
def test_names_that_begin_with_an_underscore_or_a_dot_hide_what_is_below_them(name):
    assert is_hidden(name)


@for_each("name", ["x", "data/f.parquet", "data/a_b/c.d", "data/x=_y/f", "metadata/v1.metadata.json"])
def test_other_names_are_not_hidden(name):
    assert not is_hidden(name)


@for_each("name", ["data/_c2=x/f", "data/_c2=_x/f", "data/_c2=.x/f", "data/a=1/_c2=x/.d=3/f"])
def test_directories_of_partitions_are_not_hidden_whatever_their_values(name):
    """Java's testHiddenPartitionPaths."""
    assert not is_hidden(name, spec("_c2"), spec(".d", spec_id=1))


def test_partitions_of_older_specs_are_not_hidden_either():
    """Java's testHiddenPartitionPathsWithPartitionEvolution."""
    old, new = spec("_c2"), spec("_c3", spec_id=1)
    assert not is_hidden("data/_c2=x/f", new, old)
    assert not is_hidden("data/_c3=x/f", new, old)
    assert is_hidden("data/_c2=x/f", new)


@for_each("name", ["data/_c2/f", "data/_c2_trunc/f", "data/_c2", "data/_c22=1/f", "data/x_c2=1/.f", "data/_C2=x/f"])
def test_names_that_only_begin_like_a_partition_are_hidden(name):
    """Java's testHiddenPathsStartingWithPartitionNamesAreIgnored."""
    assert is_hidden(name, spec("_c2"))


def test_names_of_fields_are_found_as_writers_encode_them():
    assert not is_hidden("data/_a+b%2F.c=1/f", spec("_a b/.c"))
    assert not is_hidden("data/_x.y(z)=1/f", spec("_x.y(z)"))
    assert not is_hidden("data/_a%7Eb=1/f", spec("_a~b"))
    assert is_hidden("data/_xxy(z)=1/f", spec("_x.y(z)"))


def test_icekeeps_own_directory_is_hidden_under_any_spec():
    assert is_hidden("data/.icekeep/f", spec(".icekeep"))
    assert is_hidden(".icekeep", spec(".icekeep"))


@for_each("root", ["s3://bucket", "s3://bucket/", "file:///wh/_tbl", "/wh/.tbl/", "s3://bucket/.a//b"])
def test_only_names_below_the_listed_directory_count(root):
    """Java's TestFileSystemWalker: the root of a bucket, hidden directories above."""
    assert not is_hidden("data/f", root=root)
    assert is_hidden("data/_f", root=root)


def test_other_spellings_of_the_directory_change_nothing():
    rule = hidden_names("s3://bucket/wh/tbl/", [])
    spelled = ["s3a://bucket/wh/tbl/_x", "s3://bucket//wh///tbl//_x", "s3a://bucket/wh/tbl/x", "s3://bucket//wh/tbl//x"]
    assert rule.mask(pa.array(spelled)).tolist() == [True, True, False, False]
    assert rule.mask(pa.chunked_array([spelled[:1], spelled[2:]])).tolist() == [True, False, False]


@given(st.lists(st.text("ab_.=", min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_path_is_hidden_by_its_parts_alone(parts):
    specs = (spec("_a"), spec(".b", spec_id=1))
    expected = any(p[0] in "_." and not p.startswith(("_a=", ".b=")) for p in parts)
    assert is_hidden("/".join(parts), *specs) == expected
