"""What will be rewritten: candidates -> groups of files of one partition, in the order of execution. Pure, printable.

A group is one unit of failure and of partial progress; it becomes one or more tasks, each about one new file.
"""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from icekeep.maintenance.compaction.options import FileSizes, RewriteDataFilesOptions
from icekeep.maintenance.compaction.packing import expected_output_files, input_split_bytes, pack
from icekeep.spec.snapshots import MAIN


class CandidateFile(msgspec.Struct, frozen=True, kw_only=True):
    """A live data file as it was read; `partition` is its tuple as bytes."""

    file_path: str
    file_format: str
    spec_id: int
    partition: bytes
    record_count: int
    file_size_in_bytes: int
    snapshot_id: int | None
    sequence_number: int
    file_sequence_number: int | None
    manifest_path: str
    split_offsets: tuple[int, ...] | None = None
    first_row_id: int | None = None


class FileGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one partition that are rewritten together; sizes in bytes, `partition` as its path (`day=2013-01-05`)."""

    partition: str
    spec_id: int
    files_count: int
    bytes: int
    expected_files_count: int
    split_bytes: int
    write_max_bytes: int
    files: tuple[CandidateFile, ...]


class RewritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the job will do, on the head of `branch`, whose snapshot and sequence number these are.

    `other_specs_files_count` counts candidates that are left as they are, since they are of older partition specs.
    """

    branch: str = MAIN
    snapshot_id: int | None
    sequence_number: int
    schema_id: int
    target_file_size_bytes: int
    candidate_files_count: int
    files_to_rewrite_count: int
    bytes_to_rewrite: int
    expected_files_count: int
    other_specs_files_count: int = 0
    groups: tuple[FileGroup, ...] = ()


def plan_groups(
    files: Iterable[CandidateFile],
    options: RewriteDataFilesOptions,
    sizes: FileSizes,
    partition_path: dict[bytes, str],
    spec_id: int,
) -> tuple[FileGroup, ...]:
    """Pack candidates of one spec into groups and drop the groups that are not worth it.

    Args:
        partition_path: the path of each partition, for people.
    """
    by_partition: dict[bytes, list[CandidateFile]] = defaultdict(list)
    for file in files:
        by_partition[file.partition].append(file)
    groups = []
    for partition in sorted(by_partition, key=lambda p: (partition_path[p], p)):
        in_order = sorted(by_partition[partition], key=lambda f: f.file_path)
        bins = pack(
            in_order,
            lambda f: f.file_size_in_bytes,
            options.max_file_group_size_bytes,
            options.max_file_group_input_files,
        )
        groups += [_group(b, partition_path[partition], spec_id, sizes) for b in bins]
    kept = [g for g in groups if _worth_it(g, options, sizes)]
    return tuple(_in_job_order(_at_most(kept, options, sizes), options.rewrite_job_order))


def _group(files: list[CandidateFile], partition: str, spec_id: int, sizes: FileSizes) -> FileGroup:
    size = sum(f.file_size_in_bytes for f in files)
    return FileGroup(
        partition=partition,
        spec_id=spec_id,
        files_count=len(files),
        bytes=size,
        expected_files_count=expected_output_files(size, sizes),
        split_bytes=input_split_bytes(size, sizes),
        write_max_bytes=sizes.write_max_bytes,
        files=tuple(files),
    )


def _worth_it(group: FileGroup, options: RewriteDataFilesOptions, sizes: FileSizes) -> bool:
    """Iceberg's rule, for groups that do not come out as they went in."""
    if options.rewrite_all:
        return True
    if not _makes_a_difference(group, sizes):
        return False
    several = group.files_count > 1
    return (
        (several and group.files_count >= options.min_input_files)
        or (several and group.bytes > sizes.target_bytes)
        or group.bytes > sizes.max_bytes
    )


def _makes_a_difference(group: FileGroup, sizes: FileSizes) -> bool:
    """Whether a file is too large or fewer come out; else each run would only do the same again (it must converge)."""
    too_large = any(f.file_size_in_bytes > sizes.max_bytes for f in group.files)
    return too_large or group.expected_files_count < group.files_count


def _at_most(groups: list[FileGroup], options: RewriteDataFilesOptions, sizes: FileSizes) -> list[FileGroup]:
    """The first groups up to `max-files-to-rewrite` files in all, the last one cut to what is left."""
    if options.max_files_to_rewrite is None:
        return groups
    out: list[FileGroup] = []
    left = options.max_files_to_rewrite
    for group in groups:
        if left <= 0:
            break
        if group.files_count > left:
            group = _group(list(group.files[:left]), group.partition, group.spec_id, sizes)
            if not options.rewrite_all and not _makes_a_difference(group, sizes):
                break
        out.append(group)
        left -= group.files_count
    return out


def _in_job_order(groups: list[FileGroup], order: str) -> list[FileGroup]:
    by = {"bytes": lambda g: g.bytes, "files": lambda g: g.files_count}.get(order.partition("-")[0])
    return groups if by is None else sorted(groups, key=by, reverse=order.endswith("-desc"))
