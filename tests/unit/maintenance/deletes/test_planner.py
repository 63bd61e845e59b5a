"""Which position delete files are rewritten together, and which are left."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.commit.file_sets import ReadFile
from icekeep.errors import OptionError, UsageError
from icekeep.formats.deletes.rewrite import LiveFile, delete_granularity
from icekeep.maintenance.deletes import live_rows as live_files
from icekeep.maintenance.deletes.execute import TaskContext, deletes_tasks
from icekeep.maintenance.deletes.live_rows import Candidate, PositionDeletes, load_live_files, packed_parts
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, delete_file_sizes
from icekeep.maintenance.deletes.plan import DeleteGroup, DeleteGroupRules, content_bytes, groups_of, tasks_count
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.rewrite.options import FileSizes
from icekeep.spec.manifests.structs import ManifestEntry, Status
from kit.cases import for_each
from kit.deletes import position_deletes
from kit.tables import memory_table

SIZES = FileSizes(target_bytes=100_000, min_bytes=75_000, max_bytes=180_000)
P = (0, b"p")
NO_STORAGE: Any = None


def candidate(name: str, named: str = "", size: int = 1000, records: int = 1, *, only: bool = False) -> Candidate:
    """A delete file that names paths between two letters, or is for one alone."""
    changes: dict[str, Any] = {"record_count": records, "file_size_in_bytes": size}
    file = position_deletes(name, **{**changes, "referenced_data_file": named if only else None})
    lower, upper = (named[0], named[-1]) if named else (None, None)
    entry = ManifestEntry(status=Status.EXISTING, sequence_number=1, data_file=file)
    return Candidate(ReadFile(entry, "m"), lower, upper)


def rules(granularity: str = "partition", *, makes_vectors: bool = False, **options: Any) -> DeleteGroupRules:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return DeleteGroupRules(
        options=parse_options(RewritePositionDeletesOptions, named),
        sizes=SIZES,
        granularity=granularity,
        makes_vectors=makes_vectors,
    )


def grouped(files: list[Candidate], some: DeleteGroupRules) -> list[list[str]]:
    groups = groups_of(PositionDeletes(by_partition={P: tuple(files)}), some)
    return [[one.file.file_path.rsplit("/", 1)[-1] for one in group] for _, group in groups]


def test_five_small_files_are_enough_and_four_are_not():
    files = [candidate(f"d{n}") for n in range(5)]
    assert grouped(files, rules()) == [["d0", "d1", "d2", "d3", "d4"]]
    assert grouped(files[:4], rules()) == []
    assert grouped(files[:4], rules(min_input_files=4)) == [["d0", "d1", "d2", "d3"]]


def test_files_of_a_good_size_are_left_out():
    good = [candidate(f"g{n}", size=size) for n, size in enumerate((75_000, 100_000, 180_000))]
    assert grouped(good, rules()) == []
    small = [candidate(f"d{n}") for n in range(5)]
    assert grouped([*good, *small], rules()) == [["d0", "d1", "d2", "d3", "d4"]]
    assert grouped(good, rules(rewrite_all=True)) == [["g0", "g1", "g2"]]


def test_merge_needs_fewer_output_files():
    """Two files above the target size together are merged only if fewer files come out."""
    files = [candidate(f"d{n}", size=60_000, records=3) for n in range(3)]
    assert grouped(files, rules()) == [["d0", "d1", "d2"]]
    # What would come out as it went in is left.
    full = [candidate(f"d{n}", size=60_000, records=10_000) for n in range(2)]
    assert grouped(full, rules()) == []


def test_a_file_that_is_too_large_is_split():
    assert grouped([candidate("d", size=180_001)], rules()) == [["d"]]
    assert grouped([candidate("d", "a", size=180_001, only=True)], rules("file")) == [["d"]]


def test_file_scoped_deletes_stay_at_file_granularity():
    alone = [candidate(f"d{n}", letter, only=True) for n, letter in enumerate("abcdef")]
    assert grouped(alone, rules("file")) == []
    assert grouped(alone, rules("partition")) == [["d0", "d1", "d2", "d3", "d4", "d5"]]
    again = [candidate(f"e{n}", letter, only=True) for n, letter in enumerate("aab")]
    assert grouped([*alone, *again], rules("file")) == [["d0", "e0", "e1", "d1", "e2"]]
    # One that is for several data files may be for any between its bounds.
    several = [candidate(f"s{n}", "bd") for n in range(2)]
    assert grouped([*alone, *several], rules("file")) == [["d1", "s0", "s1", "d2", "d3"]]
    unbounded = candidate("u")
    assert grouped([*alone, unbounded], rules("file")) == [["u", "d0", "d1", "d2", "d3", "d4", "d5"]]


def test_deletes_with_row_values_stay_beside_plain_ones():
    plain = [candidate(f"d{n}", letter, only=True) for n, letter in enumerate("abc")]
    valued = [replace(candidate(f"v{n}", letter, only=True), has_values=True) for n, letter in enumerate("abc")]
    assert grouped([*plain, *valued], rules("file")) == []
    more = [replace(candidate("w", "a", only=True), has_values=True), candidate("e", "b", only=True)]
    assert grouped([*plain, *valued, *more], rules("file", min_input_files=4)) == [["v0", "w", "d1", "e"]]


def test_idle_deletes_are_a_group_of_their_own():
    idle = replace(candidate("i", "x"), is_idle=True)
    assert grouped([idle, candidate("d")], rules()) == [["i"]]
    small = [candidate(f"d{n}") for n in range(5)]
    assert grouped([*small, idle], rules()) == [["i"], ["d0", "d1", "d2", "d3", "d4"]]


def test_groups_end_where_the_options_say():
    files = [candidate(f"d{n}") for n in range(10)]
    assert [len(group) for group in grouped(files, rules(max_file_group_input_files=5))] == [5, 5]
    assert [len(group) for group in grouped(files, rules(max_file_group_size_bytes=6000))] == [6]


def test_vectors_take_all_files_of_a_data_file_in_one_group():
    files = [candidate("x", "ac"), candidate("y", "b", only=True), candidate("z", "d", only=True), candidate("w", "cd")]
    some = rules(makes_vectors=True, max_file_group_input_files=1)
    assert grouped(files, some) == [["x", "y", "w", "z"]]
    apart = [candidate(f"d{n}", letter, only=True, size=100_000) for n, letter in enumerate("abb")]
    assert grouped(apart, some) == [["d0"], ["d1", "d2"]]
    # A bound that was cut: `b` may stand for any path that begins so.
    cut = [candidate("c", "ab"), candidate("d", "bb", only=True)]
    cut[1] = Candidate(cut[1].read, "bb", "bb")
    assert grouped(cut, some) == [["c", "d"]]


@for_each(
    ("order", "expected"),
    [("none", "pqr"), ("bytes-asc", "qrp"), ("bytes-desc", "prq"), ("files-asc", "qpr"), ("files-desc", "rpq")],
)
def test_groups_come_in_the_order_that_is_asked_for(order, expected):
    counts = {"p": (6, 9000), "q": (5, 1000), "r": (7, 2000)}
    files = {
        (0, key.encode()): tuple(candidate(f"{key}{n}", size=size) for n in range(count))
        for key, (count, size) in counts.items()
    }
    ordered = groups_of(PositionDeletes(by_partition=files), rules(rewrite_job_order=order))
    assert "".join(partition[1].decode() for partition, _ in ordered) == expected


def test_small_files_are_mostly_frame():
    assert content_bytes(candidate("d", size=1500, records=3).file) == 48
    assert content_bytes(candidate("d", size=100_000, records=3).file) == 100_000 - 2048
    assert content_bytes(candidate("d", size=1500, records=1000).file) == 1500


def test_task_count_follows_target_size_or_file_count():
    large = [candidate(f"d{n}", size=110_000, records=50_000) for n in range(4)]
    assert tasks_count(large, rules()) == 4
    small = [candidate(f"d{n}", records=1) for n in range(1200)]
    assert tasks_count(small, rules("partition")) == 1
    assert tasks_count(small, rules("file")) == 3
    assert tasks_count(small, rules(makes_vectors=True)) == 3


def group(files: list[Candidate], tasks: int, live: str = "abcdef") -> DeleteGroup:
    return DeleteGroup(
        number=0,
        spec_id=0,
        partition="",
        files=tuple(one.read for one in files),
        live=tuple(packed_parts({path: LiveFile(1) for path in live})),
        tasks_count=tasks,
    )


def context() -> TaskContext:
    metadata = memory_table().metadata
    return TaskContext(metadata=metadata, sizes=SIZES, granularity="file", file_format="PARQUET", run_id="run")


def test_tasks_split_paths_by_row_count():
    files = [candidate(f"d{n}", letter, only=True, records=100) for n, letter in enumerate("abcdef")]
    tasks = [one.task for one in deletes_tasks(group(files, 3), context())]
    assert [(task.first_path, task.end_path) for task in tasks] == [(None, "c"), ("c", "e"), ("e", None)]
    assert [[source.file.referenced_data_file for source in task.sources] for task in tasks] == [
        ["a", "b"],
        ["c", "d"],
        ["e", "f"],
    ]


def test_rows_for_one_data_file_are_in_one_task_however_many():
    files = [candidate("d0", "b", only=True, records=10**6), candidate("d1", "ef", records=10)]
    tasks = [one.task for one in deletes_tasks(group(files, 4), context())]
    ranges = [(task.first_path, task.end_path) for task in tasks]
    assert sum(task.takes("b") for task in tasks) == 1
    assert ranges[0][0] is None
    assert ranges[-1][1] is None
    assert [end for _, end in ranges[:-1]] == [first for first, _ in ranges[1:]]
    # A file that is for several is read by all tasks.
    assert all(any(source.file.referenced_data_file is None for source in task.sources) for task in tasks)


def test_paths_that_are_not_live_belong_to_a_task_too():
    files = [candidate(f"d{n}", letter, only=True) for n, letter in enumerate("xyz")]
    tasks = deletes_tasks(group(files, 2, live=""), context())
    assert sum(len(one.task.sources) for one in tasks) == 3


def test_tasks_take_the_live_parts_that_their_ranges_meet(monkeypatch):
    """Each task went over all data files of the partition, and took those of its range along, path by path."""
    monkeypatch.setattr(live_files, "PART_FILES", 100)
    paths = [f"f{n:04d}" for n in range(2000)]
    files = [candidate(f"d{n}", records=1000) for n in range(4)]
    given = replace(group(files, 8), live=tuple(packed_parts({path: LiveFile(1) for path in paths})))
    tasks = deletes_tasks(given, context())
    assert len(tasks) == 8
    for one in tasks:
        live = load_live_files(one.live, NO_STORAGE)
        assert [path for path in paths if one.task.takes(path) and live.get(path) is None] == []
    assert len(given.live) == 20
    assert sum(len(one.live) for one in tasks) <= len(given.live) + len(tasks)
    # The rows of files that are for any of them are spread over the partition.
    counts = [sum(one.task.takes(path) for path in paths) for one in tasks]
    assert max(counts) < 1.2 * min(counts)


def test_options_have_the_names_and_defaults_of_iceberg():
    options = parse_options(RewritePositionDeletesOptions, {})
    assert options.min_input_files == 5
    assert options.max_file_group_size_bytes == 100 * 1024**3
    sizes = delete_file_sizes(options, {})
    assert (sizes.target_bytes, sizes.min_bytes, sizes.max_bytes) == (67_108_864, 50_331_648, 120_795_955)
    assert delete_file_sizes(options, {"write.delete.target-file-size-bytes": "1000"}).target_bytes == 1000
    given = parse_options(RewritePositionDeletesOptions, {"target-file-size-bytes": "10"})
    assert delete_file_sizes(given, {"write.delete.target-file-size-bytes": "1000"}).target_bytes == 10
    for unknown in ("max-files-to-rewrite", "delete-file-threshold", "use-starting-sequence-number"):
        with pytest.raises(OptionError, match=unknown):
            parse_options(RewritePositionDeletesOptions, {unknown: "1"})
    with pytest.raises(OptionError, match="max-file-size-bytes"):
        delete_file_sizes(parse_options(RewritePositionDeletesOptions, {"max-file-size-bytes": "5"}), {})


def test_table_properties_set_granularity_and_file_size():
    assert delete_granularity({}) == "file"
    assert delete_granularity({"write.delete.granularity": "PARTITION"}) == "partition"
    with pytest.raises(UsageError, match=r"write\.delete\.granularity"):
        delete_granularity({"write.delete.granularity": "row"})
    with pytest.raises(UsageError, match=r"write\.delete\.target-file-size-bytes"):
        delete_file_sizes(RewritePositionDeletesOptions(), {"write.delete.target-file-size-bytes": "64 MB"})
