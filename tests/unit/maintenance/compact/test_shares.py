"""How a group is cut into tasks: every byte of a file is read by one of them, and together they make the files of the plan."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.compact.method import Share, shares_of
from icekeep.maintenance.compact.plan import GroupFile
from icekeep.maintenance.rewrite.options import FileSizes, expected_output_files
from kit.cases import for_each

SIZES = FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1800)


def file(
    size: int, offsets: tuple[int, ...] | None = None, file_format: str = "PARQUET", *, deleted: int = 0
) -> GroupFile:
    return GroupFile(
        file_path="f",
        file_format=file_format,
        spec_id=0,
        partition=b"",
        record_count=size,
        file_size_in_bytes=size,
        snapshot_id=1,
        sequence_number=1,
        file_sequence_number=1,
        manifest_path="m",
        split_offsets=offsets,
        deleted_count=deleted,
    )


def shares(*files: GroupFile, sizes: FileSizes = SIZES) -> list[Share]:
    total = sum(one.live_bytes for one in files)
    return shares_of(files, range(len(files)), expected_output_files(total, sizes), sizes)


def cut(*files: GroupFile) -> list[tuple[list[int], int]]:
    """The files of each share, and how many it makes."""
    return [([one.position for one in share.slices], share.files_count) for share in shares(*files)]


some_files = st.lists(
    st.builds(
        lambda size, places: file(size, tuple(sorted({4, *(4 + int(size * place) for place in places)}))),
        st.integers(1, 6000),
        st.lists(st.floats(0, 0.95), max_size=9),
    ),
    min_size=1,
    max_size=12,
)


@given(some_files)
def test_shares_read_each_byte_once_in_order(files):
    """Together the tasks make as many files as the plan expects."""
    found = shares(*files)
    assert sum(share.files_count for share in found) == expected_output_files(
        sum(one.file_size_in_bytes for one in files), SIZES
    )
    slices = [one for share in found for one in share.slices]
    assert all(share.slices and share.files_count >= 1 for share in found)
    assert [*dict.fromkeys(one.position for one in slices)] == [*range(len(files))]
    for position, one in enumerate(files):
        own = [some for some in slices if some.position == position]
        assert sum(some.size_bytes for some in own) == one.file_size_in_bytes
        if own[0].split is None:
            assert len(own) == 1
            continue
        splits = [some.split for some in own if some.split is not None]
        assert len(splits) == len(own) > 1
        assert splits[0][0] == 0
        assert sum(splits[-1]) == one.file_size_in_bytes
        assert all(sum(before) == after[0] for before, after in pairwise(splits))
        assert {start for start, _ in splits[1:]} <= {*one.split_offsets}


@for_each(
    ("sizes", "expected"),
    [
        ([300] * 6, [([0, 1, 2], 1), ([3, 4, 5], 1)]),
        ([900, 900, 900], [([0], 1), ([1], 1), ([2], 1)]),
        # No cut between two of them makes files of a good size.
        ([720] * 6, [([0, 1, 2], 2), ([3, 4, 5], 2)]),
        ([720] * 5, [([0, 1, 2, 3, 4], 4)]),
        # None of them says where it can be cut.
        ([5000], [([0], 5)]),
        ([2600, 400], [([0, 1], 3)]),
        ([10], [([0], 1)]),
        ([0, 0], [([0, 1], 1)]),
    ],
)
def test_a_cut_is_where_it_makes_files_of_a_good_size(sizes, expected):
    assert cut(*map(file, sizes)) == expected


def test_a_footer_is_not_taken_for_rows_of_the_last_row_group():
    # Of the last file a quarter is its footer: a share of some rows, and of the footer's bytes, made a file of 236 rows.
    row_groups = tuple(4 + 20_000 * n for n in range(62))
    sizes = FileSizes(target_bytes=1_212_000, min_bytes=909_000, max_bytes=2_181_600)
    found = shares(file(988_000), file(988_000), file(1_658_000, row_groups), sizes=sizes)
    assert [share.files_count for share in found] == [1, 1, 1]
    (whole, first), (last,) = found[1].slices, found[2].slices
    assert (whole.position, whole.split, first.position) == (1, None, 2)
    # As much of the rows as of the file.
    assert (first.size_bytes, last.size_bytes) == (454_615, 1_203_385)
    assert first.split == (0, 340_004)


def test_deleted_rows_are_no_part_of_what_a_file_brings():
    emptied = [file(1000, deleted=900) for _ in range(9)]
    assert cut(*emptied, file(1000)) == [([*range(9)], 1), ([9], 1)]
    (share,) = shares(file(4000, (4, 1000, 2000, 3000), deleted=3000))
    assert [(one.size_bytes, one.live_bytes, one.split) for one in share.slices] == [(4000, 1000, None)]
    parts = [one for share in shares(file(8000, (4, 2000, 4000, 6000), deleted=4000)) for one in share.slices]
    assert [one.live_bytes for one in parts] == [1000] * 4


@for_each("offsets", [None, (4,), (900, 4), (4, 4), (4, 5000)])
def test_a_file_whose_offsets_cannot_be_trusted_is_read_whole(offsets):
    assert [one.split for share in shares(file(5000, offsets)) for one in share.slices] == [None]


def test_a_file_of_a_format_without_parts_is_read_whole():
    assert cut(file(5000, (4, 1000, 2000, 3000, 4000), "AVRO")) == [([0], 5)]
    assert [count for _, count in cut(file(5000, (4, 1000, 2000, 3000, 4000), "ORC"))] == [1] * 5
