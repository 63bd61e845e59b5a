"""Which files come into which group: Iceberg's rules (TestBinPackRewriteFilePlanner); a run converges (apache/iceberg #6669)."""

from collections import Counter
from operator import attrgetter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.compact.grouping import GroupRules, PlannedFile
from icekeep.maintenance.compact.method import shares_of
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import Strategy
from icekeep.maintenance.compact.plan import FileGroup, GroupDelete, GroupFile, LeftAlone, unpack_group_files
from icekeep.maintenance.compact.planner import BEYOND_LIMIT, NOT_BETTER, BinPacker, chosen_groups
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.rewrite.options import FileSizes, expected_output_files, file_sizes, in_job_order
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.partitioning import build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.types import STRING, NestedField
from kit.cases import cases, for_each
from kit.storage import MemoryStorage

TARGET = 1000
SIZES = FileSizes(target_bytes=TARGET, min_bytes=750, max_bytes=1800)
SCHEMA = Schema(fields=(NestedField(field_id=1, name="part", type=STRING),))
METADATA = new_table_metadata(
    schema=SCHEMA,
    spec=build_spec(SCHEMA, [("part", "identity", None)], spec_id=3),
    location="file:///t",
    table_uuid="00000000-0000-0000-0000-000000000001",
    now_ms=1,
)
CODEC = PartitionCodec(METADATA.partition_type(3))


def candidate(name: str, size: int, partition: str = "p", parts: int = 1, **fields) -> PlannedFile:
    """A file of a bad size, of so many row groups."""
    file = GroupFile(
        file_path=name,
        file_format="PARQUET",
        spec_id=3,
        partition=CODEC.encode((partition,)),
        record_count=1,
        file_size_in_bytes=size,
        snapshot_id=1,
        sequence_number=1,
        file_sequence_number=1,
        manifest_path="m",
        split_offsets=tuple(4 + size * n // parts for n in range(parts)) if size > 8 * parts else None,
    )
    return PlannedFile(file=file, has_bad_size=True, **fields)


def sized(*sizes: int, partition: str = "p") -> list[PlannedFile]:
    return [candidate(f"{partition}-{number:04d}", size, partition) for number, size in enumerate(sizes)]


def run(files, sizes=SIZES, *, moved=False, strategy=None, **given):
    options = parse_options(RewriteDataFilesOptions, {n.replace("_", "-"): str(v) for n, v in given.items()})
    rules = GroupRules(
        sizes=sizes,
        options=options,
        strategy=strategy or Strategy(text="binpack"),
        output_specs={3: 4 if moved else 3},
    )
    packer = BinPacker(rules=rules, storage=MemoryStorage(), directory=None)
    return chosen_groups(list(files), packer, METADATA), options


def planned(files, sizes=SIZES, **given):
    (groups, _, _), options = run(files, sizes, **given)
    return tuple(in_job_order(groups, options.rewrite_job_order, attrgetter("bytes"), attrgetter("files_count")))


def files_of(group: FileGroup):
    assert group.packed is not None
    return unpack_group_files(group.packed).files


def names(groups) -> list[list[str]]:
    return [[file.file_path for file in files_of(group)] for group in groups]


def test_no_candidates_are_no_groups():
    assert planned([]) == ()


def test_a_group_says_what_it_will_do():
    files = sized(300, 300, 300, 300, 300)
    (group,) = planned(files)
    assert msgspec.structs.asdict(msgspec.structs.replace(group, packed=None)) == {
        "number": 0,
        "partition": "part=p",
        "spec_id": 3,
        "output_spec_id": 3,
        "files_count": 5,
        "bytes": 1500,
        "record_count": 5,
        "delete_files_count": 0,
        "delete_bytes": 0,
        "expected_files_count": 2,
        "packed": None,
        "location": None,
        "held": None,
    }
    assert files_of(group) == tuple(one.file for one in files)
    assert not group.is_moved


def delete(name: str, offset: int | None = None, size: int = 10) -> GroupDelete:
    return GroupDelete(
        content=1,
        file_path=name,
        file_format="PARQUET" if offset is None else "PUFFIN",
        spec_id=3,
        partition=CODEC.encode(("p",)),
        sequence_number=2,
        record_count=1,
        file_size_in_bytes=1000 if offset is not None else size,
        content_offset=offset,
        content_size_in_bytes=None if offset is None else size,
    )


def test_shared_delete_file_is_in_the_group_once():
    shared, first, second = delete("d"), delete("v", 4, 7), delete("v", 11, 8)
    files = [
        candidate("a", 10, deletes=(shared, first), has_many_deletes=True),
        candidate("b", 10, deletes=(second, shared)),
        candidate("c", 10),
    ]
    (group,) = planned(files)
    assert group.packed is not None
    assert unpack_group_files(group.packed).deletes == (shared, first, second)
    assert [[*file.deletes] for file in files_of(group)] == [[0, 1], [0, 2], []]
    assert (group.delete_files_count, group.delete_bytes) == (3, 10 + 7 + 8)


def test_group_with_too_many_deletes_is_always_rewritten():
    assert len(planned([candidate("a", 900, has_many_deletes=True)])) == 1
    assert planned([candidate("a", 900)]) == ()


def test_files_for_another_spec_are_one_group():
    """Files that move to another spec are grouped across their old partitions."""
    files = [*sized(*[10] * 3, partition="b"), *sized(*[10] * 3, partition="a")]
    (group,) = planned(files, moved=True)
    assert (group.partition, group.spec_id, group.output_spec_id, group.files_count) == ("", 3, 4, 6)
    assert group.is_moved
    assert planned(files) == ()


def test_files_that_move_come_out_otherwise_than_they_went_in():
    # Two files of 0.65 of the target would be written as they were, but for their partitions.
    assert len(planned(sized(650, 650), moved=True)) == 1
    assert planned(sized(650, 650)) == ()


def test_what_is_left_alone_is_counted_with_the_reason():
    files = [*sized(*[10] * 5, partition="a"), *sized(*[20] * 6, partition="b"), *sized(30, 30, partition="c")]
    (groups, left, tally), _ = run(files, max_files_to_rewrite=7)
    assert [group.files_count for group in groups] == [5, 2]
    assert left == (LeftAlone(NOT_BETTER, 2, 60), LeftAlone(BEYOND_LIMIT, 4, 80))
    assert tally.candidate_files_count == 13
    (_, left, _), _ = run(files[:5])
    assert left == ()


def test_the_compression_factor_scales_what_is_expected():
    half = Strategy(text="sort", compression_factor=0.5)
    (group,) = planned(sized(*[700] * 10), strategy=half)
    assert (group.bytes, group.expected_files_count) == (7000, 4)
    double = Strategy(text="sort", compression_factor=2.0)
    assert planned(sized(*[700] * 5), strategy=double) == ()


def test_files_of_different_partitions_are_never_in_one_group():
    groups = planned([*sized(*[10] * 5, partition="b"), *sized(*[10] * 5, partition="a")])
    assert [group.partition for group in groups] == ["part=a", "part=b"]
    assert all(len({file.partition for file in files_of(group)}) == 1 for group in groups)


def test_groups_do_not_depend_on_file_order():
    files = [*sized(*range(100, 400, 10), partition="a"), *sized(*[10] * 9, partition="b")]
    assert planned(files) == planned(files[::-1])


@for_each(
    ("files", "is_planned"),
    [
        # enough input files
        (sized(10, 10, 10, 10, 10), True),
        (sized(10, 10, 10, 10), False),
        # enough content for a file of the target size, and more than one file
        (sized(600, 401), True),
        (sized(600, 400), False),
        (sized(500, 500), False),
        (sized(400, 400, 201), True),
        # too much content
        (sized(1801), True),
        (sized(1800), False),
        (sized(1900, 10), True),
        # a single file is never too small
        (sized(1), False),
        (sized(0), False),
    ],
)
def test_a_group_is_worth_it_by_icebergs_rules(files, is_planned):
    assert bool(planned(files)) == is_planned


def test_fewer_input_files_are_enough_where_the_option_says_so():
    assert planned(sized(10, 10)) == ()
    assert len(planned(sized(10, 10), min_input_files=2)) == 1
    assert planned(sized(10), min_input_files=1) == ()


def test_rewrite_all_takes_every_group():
    files = [*sized(1), *sized(900, partition="q"), *sized(1300, 1300, partition="r")]
    assert names(planned(files, rewrite_all=True)) == [["p-0000"], ["q-0000"], ["r-0000", "r-0001"]]


def test_groups_have_no_more_bytes_than_they_may():
    groups = planned(sized(*[100] * 20), max_file_group_size_bytes=500)
    assert [group.bytes for group in groups] == [500, 500, 500, 500]
    assert [group.files_count for group in groups] == [5, 5, 5, 5]


def test_groups_have_no_more_files_than_they_may():
    groups = planned(sized(*[10] * 20), max_file_group_input_files=7)
    assert [group.files_count for group in groups] == [7, 7, 6]
    assert [group.files_count for group in planned(sized(*[10] * 18), max_file_group_input_files=7)] == [7, 7]


def test_a_file_larger_than_a_group_may_be_is_a_group_of_its_own():
    groups = planned(sized(*[10] * 5, 5000, *[10] * 5), max_file_group_size_bytes=2000)
    assert [group.files_count for group in groups] == [5, 1, 5]
    assert groups[1].expected_files_count == 5


@for_each(
    ("order", "expected"),
    [
        ("none", ["a", "b", "c"]),
        ("bytes-asc", ["c", "a", "b"]),
        ("bytes-desc", ["b", "a", "c"]),
        ("files-asc", ["b", "a", "c"]),
        ("files-desc", ["c", "a", "b"]),
    ],
)
def test_groups_come_in_the_order_that_is_asked_for(order, expected):
    files = [
        *sized(*[50] * 6, partition="a"),
        *sized(*[700] * 5, partition="b"),
        *sized(*[10] * 8, partition="c"),
    ]
    groups = planned(files, rewrite_job_order=order)
    assert [group.partition for group in groups] == [f"part={partition}" for partition in expected]


def test_of_groups_that_are_equal_the_first_stays_first():
    files = [*sized(*[10] * 5, partition="a"), *sized(*[10] * 5, partition="b")]
    for order in ("bytes-desc", "files-asc", "files-desc", "bytes-asc"):
        assert [g.partition for g in planned(files, rewrite_job_order=order)] == ["part=a", "part=b"]


@for_each(
    ("most", "counts"),
    [
        (100, [5, 6, 7]),
        (18, [5, 6, 7]),
        (17, [5, 6, 6]),
        (13, [5, 6, 2]),
        (12, [5, 6]),
        (11, [5, 6]),
        (5, [5]),
        (3, [3]),
    ],
)
def test_max_files_to_rewrite_cuts_only_the_last_group(most, counts):
    files = [*sized(*[10] * 5, partition="a"), *sized(*[10] * 6, partition="b"), *sized(*[10] * 7, partition="c")]
    groups = planned(files, max_files_to_rewrite=most)
    assert [group.files_count for group in groups] == counts
    assert all(
        group.bytes == 10 * group.files_count == sum(f.file_size_in_bytes for f in files_of(group)) for group in groups
    )


def test_what_is_asked_for_may_end_with_a_group():
    files = [*sized(*[10] * 5, partition="a"), *sized(*[10] * 6, partition="b"), *sized(10, partition="c")]
    assert [g.files_count for g in planned(files, max_files_to_rewrite=5, rewrite_all=True)] == [5]
    assert [g.files_count for g in planned(files, max_files_to_rewrite=11, rewrite_all=True)] == [5, 6]


def test_a_cut_group_expects_what_is_left_in_it():
    # testMaxFilesToRewriteUsesCorrectInputSizeForExpectedOutputFiles
    (group,) = planned(sized(*[700] * 10), max_files_to_rewrite=4)
    assert (group.bytes, group.expected_files_count) == (2800, 3)


def test_cut_group_that_gains_nothing_is_left_out():
    # A single small file would be written again by each run, and nothing be gained by any.
    assert planned(sized(*[10] * 5), max_files_to_rewrite=1) == ()
    assert planned(sized(*[700] * 5), max_files_to_rewrite=2) == ()
    assert len(planned(sized(*[10] * 5), max_files_to_rewrite=1, rewrite_all=True)) == 1


def test_a_cut_keeps_the_order_that_is_asked_for():
    files = [*sized(*[50] * 5, partition="a"), *sized(*[10] * 5, partition="b")]
    groups = planned(files, max_files_to_rewrite=8, rewrite_job_order="bytes-asc")
    assert [(g.partition, g.files_count) for g in groups] == [("part=b", 3), ("part=a", 5)]


@for_each("sizes", [(600, 600), (650, 650), (733, 733, 734), (740, 740, 740)])
def test_files_that_would_not_change_are_left_alone(sizes):
    # apache/iceberg #6669, #9833: two files of 0.65 of the target each were rewritten into the same by every run.
    assert sum(sizes) > TARGET
    assert planned(sized(*sizes)) == ()


candidates_lists = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 749) | st.integers(1801, 9000)), max_size=30
).map(lambda pairs: [candidate(f"{n:04d}", size, partition) for n, (partition, size) in enumerate(pairs)])
some_options = st.fixed_dictionaries(
    {},
    optional={
        "min_input_files": st.integers(1, 8),
        "max_file_group_size_bytes": st.integers(1, 20_000),
        "max_file_group_input_files": st.integers(1, 12),
        "max_files_to_rewrite": st.integers(1, 30),
        "rewrite_job_order": st.sampled_from(["none", "bytes-asc", "files-desc"]),
        "rewrite_all": st.booleans(),
    },
)


@given(candidates_lists, some_options)
def test_each_candidate_is_in_at_most_one_group(files, options):
    """Generated files: no group exceeds its limits, and `rewrite-all` takes every file."""
    groups = planned(files, **options)
    placed = Counter(name for group in names(groups) for name in group)
    assert set(placed.values()) <= {1}
    assert placed.keys() <= {one.file.file_path for one in files}
    assert placed.total() <= options.get("max_files_to_rewrite", 10**9)
    for group in groups:
        assert group.files_count == len(files_of(group)) >= 1
        assert group.bytes == sum(file.file_size_in_bytes for file in files_of(group))
        assert group.bytes <= options.get("max_file_group_size_bytes", 10**12) or group.files_count == 1
        assert group.files_count <= options.get("max_file_group_input_files", 10**9)
        assert len({file.partition for file in files_of(group)}) == 1
        assert group.expected_files_count == expected_output_files(group.bytes, SIZES)
    if options.get("rewrite_all") and "max_files_to_rewrite" not in options:
        assert placed.total() == len(files)


def written(groups, sizes: FileSizes) -> list[PlannedFile]:
    """The files that the groups become, as far as they are candidates again; each may be cut as its tasks' rows may be."""
    out = []
    for number, group in enumerate(groups):
        files = files_of(group)
        shares = shares_of(files, range(len(files)), group.expected_files_count, sizes)
        assert sum(share.files_count for share in shares) == group.expected_files_count
        sizes_of_files = []
        for share in shares:
            size, rest = divmod(sum(one.size_bytes for one in share.slices), share.files_count)
            sizes_of_files += [size + (n < rest) for n in range(share.files_count)]
        assert sum(sizes_of_files) == group.bytes
        for n, size in enumerate(sizes_of_files):
            assert size <= sizes.write_max_bytes
            if size < sizes.min_bytes:
                name = f"{files[0].file_path}+{number}-{n}"
                out.append(candidate(name, size, group.partition.removeprefix("part="), parts=1 + n % 7))
    return out


some_sizes = st.lists(
    st.tuples(st.integers(0, 749) | st.integers(690, 749) | st.integers(1801, 9000), st.integers(1, 20)), max_size=30
)


def in_row_groups(*files: tuple[int, int]) -> list[PlannedFile]:
    return [candidate(f"p-{number:04d}", size, parts=parts) for number, (size, parts) in enumerate(files)]


@given(some_sizes, some_options)
def test_what_a_group_becomes_is_not_planned_again(sizes, options):
    options.pop("rewrite_all", None)
    for group in planned(in_row_groups(*sizes), **options):
        assert planned(written([group], SIZES), **options) == ()


@given(some_sizes, st.integers(1, 8))
def test_a_second_run_does_nothing(sizes, min_input_files):
    files = in_row_groups(*sizes)
    groups = planned(files, min_input_files=min_input_files)
    rewritten = {name for group in names(groups) for name in group}
    left = [one for one in files if one.file.file_path not in rewritten]
    assert planned([*left, *written(groups, SIZES)], min_input_files=min_input_files) == ()


@for_each(("count", "parts", "expected"), [(5, 1, 4), (6, 1, 4), (6, 2, 4), (10, 1, 7), (10, 7, 7)])
def test_files_just_below_min_size_become_fewer(count, parts, expected):
    # Two of them are more than a writer puts into one file: as many were written as had been read, by every run.
    (group,) = planned(in_row_groups(*[(720, parts)] * count))
    assert group.expected_files_count == expected
    assert written([group], SIZES) == []


@cases(100)
@given(st.data(), st.integers(20, 2000))
def test_a_table_converges_whatever_the_sizes(data, target):
    least = data.draw(st.integers(0, target - 1))
    most = data.draw(st.integers(target + 1, 3 * target))
    sizes = file_sizes(
        RewriteDataFilesOptions(target_file_size_bytes=target, min_file_size_bytes=least, max_file_size_bytes=most), 1
    )
    options = data.draw(some_options)
    options.pop("rewrite_all", None)
    given_sizes = data.draw(st.lists(st.integers(0, 6 * target), max_size=20))
    files = [one for one in sized(*given_sizes) if not least <= one.file.file_size_in_bytes <= most]
    for _ in range(len(files) + 2):
        groups = planned(files, sizes, **options)
        if not groups:
            return
        rewritten = {name for group in names(groups) for name in group}
        files = [one for one in files if one.file.file_path not in rewritten] + written(groups, sizes)
    raise AssertionError(f"still planned after many runs: {groups}")
