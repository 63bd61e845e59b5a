import msgspec
import pytest

from icekeep.errors import OptionError
from icekeep.maintenance.compact.options import (
    RATES_BYTES_A_SECOND,
    CompactionEstimate,
    RewriteDataFilesOptions,
    RewriteMethod,
    Work,
    estimate,
)
from icekeep.maintenance.options import parse_options
from icekeep.maintenance.rewrite.options import FileSizes, file_sizes
from kit.cases import for_each

MIB = 1 << 20


def parsed(**given) -> RewriteDataFilesOptions:
    return parse_options(RewriteDataFilesOptions, {name.replace("_", "-"): str(value) for name, value in given.items()})


def test_names_and_defaults_are_those_of_iceberg():
    options = RewriteDataFilesOptions()
    assert dict(zip(options.__struct_encode_fields__, msgspec.structs.astuple(options), strict=True)) == {
        "target-file-size-bytes": None,
        "min-file-size-bytes": None,
        "max-file-size-bytes": None,
        "min-input-files": 5,
        "rewrite-all": False,
        "max-file-group-size-bytes": 100 * 1024**3,
        "max-file-group-input-files": 2**63 - 1,
        "delete-file-threshold": 2**31 - 1,
        "delete-ratio-threshold": 0.3,
        "max-files-to-rewrite": None,
        "rewrite-job-order": "none",
        "output-spec-id": None,
        # Iceberg's is 5, since each group is a Spark job of its own there.
        "max-concurrent-file-group-rewrites": None,
        "partial-progress.enabled": False,
        "partial-progress.max-commits": 10,
        "partial-progress.max-failed-commits": None,
        "use-starting-sequence-number": True,
        "remove-dangling-deletes": False,
        # Iceberg's defaults of these are 1.0, 1, 8 and the largest int; null tells whether they were given.
        "compression-factor": None,
        "shuffle-partitions-per-file": None,
        "var-length-contribution": None,
        "max-output-size": None,
        # Taken for Iceberg's calls.
        "cache-delete-files": False,
        # Ours.
        "stitch": "auto",
    }


@for_each(
    "name", [n for n in RewriteDataFilesOptions.__struct_encode_fields__ if n not in ("rewrite-job-order", "stitch")]
)
@for_each("value", ["-1", "some", ""])
def test_no_option_takes_what_is_neither_number_nor_truth(name, value):
    with pytest.raises(OptionError, match=f"option {name} is '{value}'"):
        parse_options(RewriteDataFilesOptions, {name: value})


@for_each(
    "name",
    ["target-file-size-bytes", "max-file-size-bytes", "min-input-files", "max-file-group-size-bytes",
     "max-file-group-input-files", "max-files-to-rewrite", "max-concurrent-file-group-rewrites",
     "partial-progress.max-commits", "delete-file-threshold", "delete-ratio-threshold", "compression-factor",
     "shuffle-partitions-per-file", "var-length-contribution", "max-output-size"],
)  # fmt: skip
def test_some_options_must_be_above_zero(name):
    with pytest.raises(OptionError):
        parse_options(RewriteDataFilesOptions, {name: "0"})
    assert parse_options(RewriteDataFilesOptions, {name: "1"})


@for_each("name", ["min-file-size-bytes", "output-spec-id", "partial-progress.max-failed-commits"])
def test_some_options_may_be_zero(name):
    assert parse_options(RewriteDataFilesOptions, {name: "0"})


@for_each("order", ["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"])
def test_job_orders_are_those_of_iceberg(order):
    # RewriteJobOrder.fromName takes the names of its constants, and what procedures are given.
    for spelled in (order, order.upper(), order.upper().replace("-", "_"), order.title().replace("-", "_")):
        assert parsed(rewrite_job_order=spelled).rewrite_job_order == order
    for wrong in (f"{order}-", order.replace("-", " ") + " "):
        with pytest.raises(OptionError, match="one of none, bytes-asc"):
            parsed(rewrite_job_order=wrong)


def test_sizes_follow_the_tables_target_by_icebergs_ratios():
    sizes = file_sizes(RewriteDataFilesOptions(), 512 * MIB)
    assert (sizes.target_bytes, sizes.min_bytes, sizes.max_bytes) == (512 * MIB, 384 * MIB, int(512 * MIB * 1.8))
    # Half way between the target and the greatest size: 1.4 times the target.
    assert sizes.write_max_bytes == int(512 * MIB * 1.4)


def test_options_go_before_the_table():
    sizes = file_sizes(parsed(target_file_size_bytes=1000), 512 * MIB)
    assert (sizes.target_bytes, sizes.min_bytes, sizes.max_bytes, sizes.write_max_bytes) == (1000, 750, 1800, 1400)
    given = parsed(target_file_size_bytes=1000, min_file_size_bytes=0, max_file_size_bytes=1001)
    assert file_sizes(given, 512 * MIB) == FileSizes(target_bytes=1000, min_bytes=0, max_bytes=1001)


@for_each(
    ("given", "option"),
    [
        ({"min_file_size_bytes": 1000}, "min-file-size-bytes"),
        ({"min_file_size_bytes": 5000}, "min-file-size-bytes"),
        ({"max_file_size_bytes": 1000}, "max-file-size-bytes"),
        ({"max_file_size_bytes": 5}, "max-file-size-bytes"),
        ({"target_file_size_bytes": 1}, "max-file-size-bytes"),
    ],
)
def test_sizes_that_are_not_in_order_are_refused(given, option):
    with pytest.raises(OptionError, match=f"option {option} is .*target-file-size-bytes"):
        file_sizes(parsed(**{"target_file_size_bytes": 1000, **given}), 512 * MIB)


def test_stitching_is_chosen_by_itself_unless_the_user_does():
    assert [parsed(stitch=text).stitch for text in ("auto", "NEVER", "always")] == ["auto", "never", "always"]
    with pytest.raises(OptionError, match="one of auto, never, always"):
        parsed(stitch="sometimes")


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_factor_is_a_number(value):
    with pytest.raises(OptionError, match="compression-factor"):
        parsed(compression_factor=value)


def estimated(*works: Work, slots: int = 2) -> CompactionEstimate:
    return estimate(works, slots=slots, groups_count=1, files_count=10, new_files_count=2, delete_bytes=7)


def test_nothing_to_do_costs_nothing_but_the_look():
    assert (
        estimate([], slots=2, groups_count=0, files_count=0, new_files_count=0, delete_bytes=0) == CompactionEstimate()
    )


def test_estimate_reads_and_writes_each_byte_once():
    found = estimated(Work(RewriteMethod.REENCODE, 100 * MIB, 2), Work(RewriteMethod.STITCH, 50 * MIB, 1))
    assert (found.read_bytes, found.written_bytes, found.requests_count) == (150 * MIB + 7, 150 * MIB, 12)


def test_every_method_that_does_more_costs_more():
    costs = [estimated(Work(method, 1000 * MIB, 4)).cpu_ms for method in RewriteMethod]
    assert costs == sorted(costs)
    assert costs[1] == 1000 * MIB * 1000 // RATES_BYTES_A_SECOND[RewriteMethod.REENCODE] + 4 * 60


def test_slots_divide_elapsed_time_up_to_the_task_count():
    work = Work(RewriteMethod.REENCODE, 900 * MIB, 3)
    one, three, many = (estimated(work, slots=slots) for slots in (1, 3, 30))
    assert one.cpu_ms == three.cpu_ms == many.cpu_ms
    assert three.elapsed_ms == many.elapsed_ms == one.cpu_ms // 3 + 120
    assert one.elapsed_ms == one.cpu_ms + 120
