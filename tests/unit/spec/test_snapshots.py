"""Snapshots and references; properties are read in one way, with one line where a value is wrong."""

from typing import Any

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import icekeep.spec.properties
import icekeep.spec.snapshots
from icekeep.catalog.metadata_files import compression_suffix, deletes_old_metadata
from icekeep.commit.live_files import MergePolicy
from icekeep.commit.manifest_writer import manifest_compression, manifest_target_bytes
from icekeep.commit.retry import RetryPolicy
from icekeep.errors import InvalidTableError, OptionError, PropertyError, UsageError
from icekeep.formats.deletes.rewrite import delete_format, delete_granularity
from icekeep.formats.options import write_options
from icekeep.maintenance.delete.reachable import is_gc_enabled
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions, delete_file_sizes
from icekeep.planning.scan.tasks import read_options
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import (
    COUNTS,
    DEFAULT,
    FULL,
    NONE,
    MetricsMode,
    data_directory,
    data_layout,
    metadata_directory,
    metrics_modes,
    probability,
)
from icekeep.spec.retention import RetentionPolicy, select_expired
from icekeep.spec.snapshots import (
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    carried,
    checked_properties,
    is_reserved,
    object_from_json,
    object_to_json,
    validated_ref,
)
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Bucket, Day, Identity, Truncate, Void
from icekeep.spec.types import DATE, INT, STRING, ListType, MapType, StructType
from icekeep.spec.updates import log_previous
from kit.cases import for_each
from kit.columns import column, schema_of
from kit.examples import check_examples
from kit.metadata import MetadataBuilder
from kit.strategies import json_values


@for_each(
    "key",
    [
        "operation",
        "total-records",
        "added-dvs",
        "changed-partition-count",
        "manifests-kept",
        "partitions.day=2026-01-31",
        "engine-name",
        "app-id",
        "iceberg-version",
        "icekeep.run-id",
        "flink.job-id",
        "spark.app.id",
        "kafka.connect.offsets.x",
        "wap.id",
        "published-wap-id",
        "source-snapshot-id",
        "trino_query_id",
    ],
)
def test_keys_that_others_write_cannot_be_one_s_own(key):
    assert is_reserved(key)
    with pytest.raises(UsageError, match="cannot be a key of your own in a snapshot's summary"):
        checked_properties({key: "x"})


@for_each("given", [{"": "x"}, {" ": "x"}, {"a\nb": "x"}, {"a*": "x"}, {"a": 5}, {5: "x"}])
def test_what_is_no_key_or_value_is_refused(given):
    with pytest.raises(UsageError):
        checked_properties(given)


def test_keys_are_carried_by_name_or_by_what_they_begin_with():
    summary = {"pipeline-id": "1", "custom.a": "2", "custom": "3", "total-records": "4", "operation": "append"}
    assert carried(summary, ("pipeline-id", "custom.*")) == {"pipeline-id": "1", "custom.a": "2"}
    assert carried(summary, ("total-*", "to*")) == {}
    assert carried(summary, ("*",)) == {"pipeline-id": "1", "custom.a": "2", "custom": "3"}
    assert carried(summary, ()) == {}


SNAPSHOT = {"snapshot-id": 1, "timestamp-ms": 2}
STATISTICS = {"snapshot-id": 1, "statistics-path": "s3://b/s", "file-size-in-bytes": 9, "file-footer-size-in-bytes": 4}


def test_spec_keys_are_read_into_attributes():
    full = {**SNAPSHOT, "parent-snapshot-id": 3, "sequence-number": 4, "manifest-list": "s3://b/l", "schema-id": 5}
    snapshot = object_from_json(Snapshot, {**full, "summary": {"operation": "append"}, "key-id": "k"}, "snapshot")
    assert snapshot == Snapshot(
        snapshot_id=1,
        timestamp_ms=2,
        parent_snapshot_id=3,
        sequence_number=4,
        manifest_list="s3://b/l",
        schema_id=5,
        summary={"operation": "append"},
        key_id="k",
    )


def test_null_and_absent_are_the_same():
    with_null = object_from_json(Snapshot, {**SNAPSHOT, "schema-id": None, "sequence-number": None}, "snapshot")
    assert with_null == object_from_json(Snapshot, SNAPSHOT, "snapshot")
    assert "schema-id" not in object_to_json(with_null)


def test_keys_that_are_not_known_come_back_as_they_were():
    unknown = {"x-new": {"deep": [1, None, {"a": 2.5}]}, "x-null": None, "extra": "mine"}
    assert object_to_json(object_from_json(Snapshot, {**SNAPSHOT, **unknown}, "snapshot")) == {
        **SNAPSHOT,
        "sequence-number": 0,
        **unknown,
    }


@given(st.dictionaries(st.text(max_size=8).map(lambda name: f"x-{name}"), json_values(), max_size=4))
def test_any_unknown_keys_come_back(unknown: dict[str, Any]):
    given_object = {**STATISTICS, "blob-metadata": [{"type": "ndv", **unknown}], **unknown}
    assert object_to_json(object_from_json(StatisticsFile, given_object, "statistics[0]")) == given_object


@for_each("value", [None, 3, "text", [], [SNAPSHOT]])
def test_what_is_no_object_is_refused(value: Any):
    with pytest.raises(InvalidTableError) as raised:
        object_from_json(Snapshot, value, "snapshots[4]")
    assert raised.value.message == f"snapshots[4] is {value!r}; it must be an object"


@pytest.mark.parametrize("missing", ["snapshot-id", "timestamp-ms"])
def test_a_required_key_must_be_there_and_not_null(missing: str):
    without = {key: value for key, value in SNAPSHOT.items() if key != missing}
    for value in (without, {**SNAPSHOT, missing: None}):
        with pytest.raises(InvalidTableError, match=f"snapshots\\[4\\]: .*`{missing}`"):
            object_from_json(Snapshot, value, "snapshots[4]")


@for_each(
    ("key", "value"),
    [
        ("snapshot-id", "1"),
        ("snapshot-id", 1.0),
        ("snapshot-id", True),
        ("manifest-list", 5),
        ("manifests", [5]),
        ("manifests", "s3://b/m"),
        ("summary", []),
        ("schema-id", "0"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_key(key: str, value: Any):
    with pytest.raises(InvalidTableError, match=f"^snapshots\\[4\\]: expected .*{key}") as raised:
        object_from_json(Snapshot, {**SNAPSHOT, key: value}, "snapshots[4]")
    assert "\n" not in raised.value.message


BRANCH = SnapshotRef(snapshot_id=1, type="branch")
TAG = SnapshotRef(snapshot_id=1, type="tag")


@pytest.mark.parametrize("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms"])
def test_only_a_branch_has_limits_for_its_snapshots(limit):
    with pytest.raises(UsageError, match=f"'t' is a tag; only a branch can have {limit.replace('_', '-')}"):
        validated_ref("t", replace(TAG, **{limit: 5}))
    assert validated_ref("b", replace(BRANCH, **{limit: 5}))


@for_each("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms", "max_ref_age_ms"])
@for_each("value", [0, -1, 2**63])
def test_limits_are_positive_numbers_that_other_engines_can_read(limit, value):
    with pytest.raises(OptionError, match=f"option {limit} is {value}; give a whole number from 1 to"):
        validated_ref("b", replace(BRANCH, **{limit: value}))


def test_examples():
    check_examples("spec/snapshots.txt", icekeep.spec.snapshots, globals())


def table(properties: dict[str, str]) -> TableMetadata:
    return replace(MetadataBuilder().commits(2).build(), properties=properties)


READERS: dict[str, Any] = {
    "commit.retry.num-retries": lambda p: RetryPolicy.of(table(p)),
    "commit.retry.total-timeout-ms": lambda p: RetryPolicy.of(table(p)),
    "commit.manifest.min-count-to-merge": lambda p: MergePolicy.of(table(p)),
    "commit.manifest.target-size-bytes": lambda p: manifest_target_bytes(table(p)),
    "write.manifest.compression-level": manifest_compression,
    "write.metadata.previous-versions-max": lambda p: log_previous(table(p), "v1", 0).metadata_log,
    "history.expire.max-snapshot-age-ms": lambda p: select_expired(table(p), RetentionPolicy(), now_ms=10**13),
    "write.metadata.metrics.max-inferred-column-defaults": lambda p: metrics_modes(p, table(p).schema, None),
    "read.split.target-size": read_options,
    "write.target-file-size-bytes": write_options,
    "write.parquet.row-group-size-bytes": write_options,
    "write.parquet.compression-level": write_options,
    "write.delete.target-file-size-bytes": lambda p: delete_file_sizes(RewritePositionDeletesOptions(), p),
}
BOOLEANS: dict[str, Any] = {
    "commit.manifest-merge.enabled": lambda p: MergePolicy.of(table(p)),
    "read.split.adaptive-size.enabled": read_options,
    "write.object-storage.enabled": lambda p: data_layout("file:/t", p),
    "parquet.enable.dictionary": write_options,
}
CHOICES: dict[str, Any] = {
    "write.format.default": write_options,
    "write.parquet.compression-codec": write_options,
    "write.parquet.page-version": write_options,
    "write.delete.format.default": delete_format,
    "write.delete.granularity": delete_granularity,
    "write.manifest.compression-codec": manifest_compression,
    "write.metadata.compression-codec": lambda p: compression_suffix(table(p)),
    "write.metadata.metrics.default": lambda p: metrics_modes(p, table(p).schema, None),
}
SWITCHES: dict[str, Any] = {
    "gc.enabled": lambda p: is_gc_enabled(table(p)),
    "write.metadata.delete-after-commit.enabled": lambda p: deletes_old_metadata(table(p)),
}


@for_each("text", ["", "many", "1.5", " 4", "1_000", "²", "٣"])
@for_each("key", READERS)
def test_non_integer_property_is_refused_in_one_line(key: str, text: str) -> None:
    with pytest.raises(
        PropertyError,
        match=f"^table property '{key}' is '{text}'; set a whole number(, [01] or more|, -[0-9]+ to [0-9]+)?$",
    ) as raised:
        READERS[key]({key: text})
    assert raised.value.facts["property"] == key


@for_each("key", READERS)
def test_a_whole_number_is_taken_with_a_sign_as_java_takes_it(key: str) -> None:
    number = "5" if "level" in key else "1000000"
    assert READERS[key]({key: f"+{number}"}) == READERS[key]({key: number})


@for_each("text", ["ture", "yes", "1", "", " true"])
@for_each("key", BOOLEANS)
def test_non_boolean_property_is_refused_in_one_line(key: str, text: str) -> None:
    with pytest.raises(PropertyError, match=f"^table property '{key}' is '{text}'; set 'true' or 'false'$"):
        BOOLEANS[key]({key: text})


@for_each("text", ["brotly", "", "v3", " zstd", "none "])
@for_each("key", CHOICES)
def test_unknown_choice_is_refused_in_one_line(key: str, text: str) -> None:
    with pytest.raises(PropertyError, match=f"^table property '{key}' is '{text}'; set '[^;]* or '[^;]*$") as raised:
        CHOICES[key]({key: text})
    assert raised.value.facts["property"] == key


@for_each("key", CHOICES)
def test_names_are_read_in_any_case(key: str) -> None:
    choices = {"format.default": "orc", "page-version": "v2", "granularity": "partition", "metrics.default": "counts"}
    name = next((name for end, name in choices.items() if key.endswith(end)), "gzip")
    assert CHOICES[key]({key: name.title()}) == CHOICES[key]({key: name})


@pytest.mark.parametrize("key", SWITCHES)
def test_what_deletes_files_is_off_where_a_switch_is_misspelt(key: str) -> None:
    assert SWITCHES[key]({key: "True"})
    assert not any(SWITCHES[key]({key: text}) for text in ("ture", "yes", "1", "", " true", "false"))
    assert [SWITCHES[key]({}) for key in SWITCHES] == [True, False]


@for_each("text", ["0", "1", "-0.5", "few", "0.0_1", "nan", " 0.1", ""])
def test_what_is_no_probability_is_refused(text: str) -> None:
    with pytest.raises(PropertyError, match=f"^table property 'a' is '{text}'; set a number between 0 and 1$"):
        probability({"a": text}, "a", 0.5)


@pytest.mark.parametrize(("codec", "level"), [("gzip", "10"), ("zstd", "23"), ("gzip", "-2")])
def test_manifest_codec_level_out_of_range_is_refused(codec: str, level: str) -> None:
    names = ("write.manifest.compression-codec", "write.manifest.compression-level")
    with pytest.raises(PropertyError, match=f"^table property '{names[1]}' is '{level}'; set a whole number, -"):
        manifest_compression(dict(zip(names, (codec, level), strict=True)))
    assert manifest_compression(dict(zip(names, ("snappy", level), strict=True))) == ("snappy", None)


@pytest.mark.parametrize("text", ["0", "-1"])
def test_numbers_below_one_mean_what_they_mean_to_java(text: str) -> None:
    names = ("num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms")
    assert RetryPolicy.of(table({f"commit.retry.{name}": text for name in names})) == RetryPolicy(0, 0, 0, 0)
    merging = MergePolicy.of(table({"commit.manifest.min-count-to-merge": text}))
    assert merging is not None
    assert merging.min_count == int(text)
    log = log_previous(table({"write.metadata.previous-versions-max": text}), "v1", 0).metadata_log
    assert [entry.metadata_file for entry in log] == ["v1"]
    assert manifest_compression({"write.manifest.compression-level": text}) == ("gzip", int(text))


SCHEMA = schema_of(
    column(1, "a", INT),
    column(2, "s", StructType((column(3, "b", STRING),))),
    column(4, "l", ListType(element_id=5, element=INT)),
    column(6, "m", MapType(key_id=7, key=STRING, value_id=8, value=INT)),
)
KEY = "write.metadata.metrics."


def wide(count):
    return schema_of(*(column(i, f"c{i}", INT) for i in range(1, count + 1)))


def kept(modes):
    return {field_id for field_id, mode in modes.items() if mode != NONE}


MODES = [
    ("none", NONE),
    ("counts", COUNTS),
    ("full", FULL),
    ("truncate(1)", MetricsMode(counts=True, bounds=True, length=1)),
    ("TRUNCATE(100)", MetricsMode(counts=True, bounds=True, length=100)),
    ("Full", FULL),
]


@for_each(("text", "mode"), MODES)
def test_a_mode_is_the_default_of_all_or_that_of_one_column(text, mode):
    assert metrics_modes({KEY + "default": text}, SCHEMA) == dict.fromkeys((1, 3, 5, 7, 8), mode)
    one = metrics_modes({KEY + "column.s.b": text}, SCHEMA)
    assert one == {1: DEFAULT, 3: mode, 5: DEFAULT, 7: DEFAULT, 8: DEFAULT}


@for_each("text", ["", "some", "truncate", "truncate(0)", "truncate(-1)", "truncate(x)", "truncate(1"])
@for_each("key", ["default", "column.a", "column.not there"])
def test_invalid_metrics_mode_names_the_property(key, text):
    with pytest.raises(UsageError, match=f"table property '{KEY}{key}' is "):
        metrics_modes({KEY + key: text}, SCHEMA)


def test_the_limit_is_a_property():
    limit = KEY + "max-inferred-column-defaults"
    assert kept(metrics_modes({limit: "2"}, wide(3))) == {1, 2}
    assert kept(metrics_modes({limit: "0"}, wide(3))) == set()
    for text in ("many", ""):
        with pytest.raises(UsageError, match=f"table property '{limit}'"):
            metrics_modes({limit: text}, wide(3))


def test_a_column_of_its_own_mode_has_it_beyond_the_limit():
    modes = metrics_modes({KEY + "column.c120": "full", KEY + "column.c1": "none"}, wide(150))
    assert kept(modes) == {*range(2, 101), 120}
    assert modes[120] == FULL


def test_the_fields_of_a_struct_come_before_those_below_them():
    inner = StructType((column(50, "deep", StructType((column(51, "x", INT),))), column(52, "y", INT)))
    schema = schema_of(
        column(1, "s", inner),
        column(2, "l", ListType(element_id=53, element=INT)),
        column(3, "m", MapType(key_id=54, key=INT, value_id=55, value=INT)),
        column(4, "a", INT),
    )
    limit = KEY + "max-inferred-column-defaults"
    in_order = [4, 52, 51, 53, 54, 55]
    for count in range(len(in_order)):
        assert kept(metrics_modes({limit: str(count)}, schema)) == set(in_order[:count])


def test_structs_count_toward_metrics_limit():
    schema = schema_of(column(1, "s", StructType((column(2, "x", INT), column(3, "y", INT)))))
    limit = KEY + "max-inferred-column-defaults"
    assert kept(metrics_modes({limit: "2"}, schema)) == {2, 3}
    schema = schema_of(*schema.fields, column(4, "a", INT))
    assert kept(metrics_modes({limit: "3"}, schema)) == {2, 3, 4}
    assert kept(metrics_modes({limit: "2"}, schema)) == {4, 2}


def test_columns_that_the_table_is_sorted_by_keep_bounds():
    schema = schema_of(*(column(i, f"c{i}", DATE) for i in range(1, 7)))
    transforms = [Identity(), Truncate(4), Day(), Bucket(4), Void()]
    order = SortOrder(
        order_id=1, fields=tuple(SortField(source_id=i, transform=t) for i, t in enumerate(transforms, start=1))
    )
    for default in ("none", "counts"):
        modes = metrics_modes({KEY + "default": default}, schema, order)
        assert {i for i, mode in modes.items() if mode == DEFAULT} == {1, 2, 3}
    assert metrics_modes({KEY + "default": "full"}, schema, order)[1] == FULL
    assert metrics_modes({KEY + "default": "none", KEY + "column.c1": "counts"}, schema, order)[1] == COUNTS


UUID = "fb072c92-a02b-11e9-ae9c-1bb7bc9eca94"


def table_at(**properties: str) -> TableMetadata:
    named = {f"write.{name}.path": value for name, value in properties.items()}
    return MetadataBuilder(location="s3://b/t").properties(named).build()


@for_each(
    ("path", "directory"),
    [
        ("s3://other/place", "s3://other/place"),
        ("s3://other/place/", "s3://other/place"),
        ("file:/place", "file:/place"),
        ("/mnt/place", "/mnt/place"),
        ("/", ""),
        ("file:/", "file:"),
        ("bronze/files", "s3://b/t/bronze/files"),
        ("bronze/", "s3://b/t/bronze"),
        ("a:b", "s3://b/t/a:b"),
    ],
)
def test_directories_follow_absolute_and_relative_properties(path: str, directory: str):
    assert data_directory(table_at(data=path)) == directory
    assert metadata_directory(table_at(metadata=path)) == directory
    assert data_directory(table_at(metadata=path)) == "s3://b/t/data"
    assert metadata_directory(table_at(data=path)) == "s3://b/t/metadata"


def located(
    name: str, partition: str = "", path: str | None = None, table_location: str = "s3://b/db/t", **settings: str
) -> str:
    """The location of a data file; `settings` are properties `write.object-storage.*`."""
    properties = {f"write.object-storage.{key.replace('_', '-')}": value for key, value in settings.items()}
    if path is not None:
        properties["write.data.path"] = path
    return data_layout(table_location, properties).location(name, partition)


# What Iceberg Java makes of `a` and `b`, and the last 20 bits of the murmur3 hashes of longer paths.
HASHED = [
    ("a", "", "0101/0110/1001/10110010"),
    ("b", "", "1110/0111/1110/00000011"),
    ("f.parquet", "", "0111/1111/1110/11001100"),
    ("f.parquet", "day=1", "0011/1110/1010/10010110"),
    ("00007-23-b9c1-00001.orc", "kind=a%2Fb", "1011/0110/0011/10111111"),
]


@for_each(("name", "partition", "directories"), HASHED)
def test_object_storage_layout_hashes_the_file_name(name: str, partition: str, directories: str):
    rest = f"{partition}/{name}".removeprefix("/")
    assert located(name, partition, enabled="TRUE") == f"s3://b/db/t/data/{directories}/{rest}"
    bits = f"{mmh3.hash(rest, signed=False):032b}"[-20:]
    assert directories.replace("/", "") == bits


def test_shared_data_directory_includes_table_path():
    shared = {"path": "s3://shared/files", "enabled": "true"}
    assert located("f.parquet", **shared) == "s3://shared/files/0111/1111/1110/11001100/db/t/f.parquet"
    assert (
        located("f.parquet", "day=1", partitioned_paths="false", **shared)
        == "s3://shared/files/0111/1111/1110/11001100/db/t/f.parquet"
    )
    assert located("f.parquet", table_location="s3://b/t/", **shared).endswith("/11001100/t/f.parquet")
    assert located("f.parquet", table_location="/w/h/db/t", **shared).endswith("/11001100/db/t/f.parquet")
    # What lies below the located needs no such names.
    assert (
        located("f.parquet", path="s3://b/db/t/x", enabled="true") == "s3://b/db/t/x/0111/1111/1110/11001100/f.parquet"
    )


@pytest.mark.parametrize("key", ["write.folder-storage.path", "write.object-storage.path"])
def test_withdrawn_properties_are_refused_where_they_would_count(key: str):
    properties = {key: "s3://old", "write.object-storage.enabled": "true"}
    with pytest.raises(UsageError, match=f"table property '{key}' was withdrawn; set 'write.data.path' to 's3://old'"):
        data_layout("s3://b/t", properties)
    assert data_layout("s3://b/t", {**properties, "write.data.path": "s3://new"}).directory == "s3://new"
    properties["write.object-storage.enabled"] = "false"
    if "object" in key:
        assert data_layout("s3://b/t", properties).directory == "s3://b/t/data"
    else:
        with pytest.raises(UsageError, match="withdrawn"):
            data_layout("s3://b/t", properties)


@pytest.mark.parametrize("key", ["enabled", "partitioned-paths"])
def test_a_flag_is_true_or_false(key: str):
    properties = {"write.object-storage.enabled": "true", f"write.object-storage.{key}": "yes"}
    with pytest.raises(UsageError, match=f"'write.object-storage.{key}' is 'yes'; set 'true' or 'false'"):
        data_layout("s3://b/t", properties)


def test_examples_of_properties():
    check_examples("spec/properties.txt", icekeep.spec.properties, globals())
