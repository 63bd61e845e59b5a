"""Which files are listed, which are hidden, and the arguments of the job."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import OptionError, SafetyError, UnavailableError, UnsupportedError, UsageError
from icekeep.maintenance.orphans.job import check_arguments
from icekeep.maintenance.orphans.listing import LISTED, expected_files_count, hidden_names, list_files
from icekeep.maintenance.orphans.options import (
    PrefixMismatchMode,
    Spelling,
    eligible_before_ms,
    mismatch_mode,
    spelling,
)
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


def test_listing_moves_to_tasks_above_the_limit():
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


def test_expected_file_count_comes_from_the_current_snapshot():
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
def test_underscore_and_dot_names_hide_what_is_below(name):
    assert is_hidden(name)


@for_each("name", ["x", "data/f.parquet", "data/a_b/c.d", "data/x=_y/f", "metadata/v1.metadata.json"])
def test_other_names_are_not_hidden(name):
    assert not is_hidden(name)


@for_each("name", ["data/_c2=x/f", "data/_c2=_x/f", "data/_c2=.x/f", "data/a=1/_c2=x/.d=3/f"])
def test_partition_directories_are_not_hidden(name):
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


HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def test_default_age_is_three_days():
    assert eligible_before_ms(None, NOW_MS) == NOW_MS - 72 * HOUR_MS


@for_each("hours", [0, 1, 23, 23.8, -1, -1000])
def test_an_age_below_a_day_is_refused_in_the_library_too(hours):
    """apache/iceberg #4194, #8994, delta-rs #3645."""
    with pytest.raises(UsageError, match="give an age of 24h or more") as raised:
        eligible_before_ms(round(NOW_MS - hours * HOUR_MS), NOW_MS)
    assert raised.value.exit_status == 2


@for_each(
    ("age_ms", "message"),
    [
        (HOUR_MS, "is 1.0 hours ago, and"),
        (0, "is 0.0 hours ago, and"),
        (-1000, "is 0.0 hours ago, and"),
        (-631_936 * HOUR_MS, "is in the future, and"),
    ],
)
def test_the_error_says_when_it_is(age_ms, message):
    with pytest.raises(UsageError, match=message):
        eligible_before_ms(NOW_MS - age_ms, NOW_MS)


@given(st.integers(-(2**40), 2**42))
def test_no_file_is_old_enough_that_is_younger_than_a_day(age_ms):
    try:
        before_ms = eligible_before_ms(NOW_MS - age_ms, NOW_MS)
    except UsageError:
        assert age_ms < 24 * HOUR_MS
    else:
        assert before_ms <= NOW_MS - 24 * HOUR_MS
        assert before_ms <= NOW_MS - age_ms


def test_store_clock_slightly_behind_is_tolerated():
    """An age of exactly one day is not refused for a second of clock difference."""
    before_ms = eligible_before_ms(NOW_MS - 24 * HOUR_MS, NOW_MS - 999)
    assert before_ms == NOW_MS - 24 * HOUR_MS - 999


@pytest.mark.parametrize("text", ["ERROR", "error", " Error "])
def test_modes_are_named_in_any_case(text):
    assert mismatch_mode(text) is PrefixMismatchMode.ERROR
    assert mismatch_mode("ignore") is PrefixMismatchMode.IGNORE


@pytest.mark.parametrize("text", ["DELETE", "delete"])
def test_files_that_metadata_spells_otherwise_are_never_deleted(text):
    """Java's testRemoveOrphanFileActionWithDeleteMode: refused here."""
    with pytest.raises(UnsupportedError, match="equal_schemes"):
        mismatch_mode(text)


def test_maps_are_taken_apart_at_their_commas():
    assert spelling(None, None) == Spelling({}, {})
    given_one = spelling({"oss , S3B": "s3", "s3a": "other"}, {"old:8020, older": "New"})
    assert given_one.schemes == {"s3a": "other", "oss": "s3", "s3b": "s3"}
    assert given_one.authorities == {"old:8020": "new", "older": "new"}


@for_each("given_map", [{"": "s3"}, {"a,,b": "s3"}, {"a": " "}])
def test_maps_with_empty_names_are_refused(given_map):
    with pytest.raises(OptionError):
        spelling(given_map, None)


def test_several_names_on_the_right_are_refused():
    """Such as the command line makes of `--equal-schemes a=b,c=d`."""
    with pytest.raises(
        OptionError, match=r"is 'a=b,c=d'; give one name on the right, as in .*, and each pair by itself"
    ):
        spelling({"a": "b,c=d"}, None)


@for_each("given_map", [{"a": "b", "a,c": "d"}, {"a,c": "d", "A": "b"}, {"a,A ": "b", "c,a": "d"}])
def test_a_name_equal_to_two_others_is_refused(given_map):
    for maps in ((given_map, None), (None, given_map)):
        with pytest.raises(OptionError, match=r"give each name once: 'a' is said to be '[bd]' as well"):
            spelling(*maps)
    assert spelling({"a": "b", "a,c": "B"}, None).schemes == {"a": "b", "c": "b"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"location": "data"}, UsageError),
        ({"location": "memory://lake/wh/db/events/.icekeep/trash"}, SafetyError),
        ({"prefix_mismatch_mode": "DELETE"}, UnsupportedError),
        ({"prefix_mismatch_mode": "GUESS"}, OptionError),
        ({"equal_schemes": {"s3a": ""}}, OptionError),
        ({"accept_unreadable": ["events"]}, OptionError),
        ({"max_concurrent_deletes": 0}, OptionError),
        ({"trash": "soon"}, UsageError),
        ({"trash": -1}, OptionError),
        ({"options": {"grace": "soon"}}, OptionError),
        ({"options": {"ignore-metadata-of": "db.events"}}, OptionError),
        ({"options": {"max-orphan-ratio": "2"}}, OptionError),
        ({"options": {"reclaim.roots": "memory://lake"}}, OptionError),
    ],
)
def test_bad_argument_is_refused_before_any_io(world, arguments, error):
    table = world.table
    with pytest.raises(error) as refused:
        check_arguments(table.metadata, **arguments)
    world.storage.before = lambda what, at: pytest.fail(f"{what} {at}")
    for ask in (world.run, world.plan):
        with pytest.raises(error) as raised:
            ask(table, **arguments)
        assert str(raised.value) == str(refused.value)


def test_what_holds_is_let_through(world):
    check_arguments(world.table.metadata)
    check_arguments(
        world.table.metadata,
        older_than="5d",
        location="memory://lake/wh/db/events/data",
        equal_schemes={"s3a,s3n": "s3"},
        prefix_mismatch_mode="ignore",
        accept_unreadable=["db.others"],
        trash="3d",
        options={"reclaim.roots": "memory://lake/elsewhere"},
    )
