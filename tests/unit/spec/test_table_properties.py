"""One way to read a property, and one line where its value is wrong, wherever it is honoured."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.catalog.metadata_files import compression_suffix, deletes_old_metadata
from icekeep.commit.live_files import MergePolicy
from icekeep.commit.manifest_writer import manifest_compression, manifest_target_bytes
from icekeep.commit.retry import RetryPolicy
from icekeep.errors import PropertyError
from icekeep.formats.deletes.positions import delete_format, delete_granularity
from icekeep.formats.options import write_options
from icekeep.maintenance.deletion.last_look import is_gc_enabled
from icekeep.maintenance.position_deletes.options import RewritePositionDeletesOptions, delete_file_sizes
from icekeep.planning.scan.tasks import read_options
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import (
    boolean_property,
    choice,
    data_layout,
    metrics_modes,
    probability,
    retry_number,
    whole_number,
)
from icekeep.spec.retention import RetentionPolicy, select_expired
from icekeep.spec.updates import log_previous
from kit.cases import for_each
from kit.metadata import MetadataBuilder


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
def test_what_is_no_whole_number_is_refused_in_one_line_everywhere(key: str, text: str) -> None:
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
def test_what_is_neither_true_nor_false_is_refused_in_one_line_everywhere(key: str, text: str) -> None:
    with pytest.raises(PropertyError, match=f"^table property '{key}' is '{text}'; set 'true' or 'false'$"):
        BOOLEANS[key]({key: text})


@for_each("text", ["brotly", "", "v3", " zstd", "none "])
@for_each("key", CHOICES)
def test_what_is_none_of_some_names_is_refused_in_one_line_everywhere(key: str, text: str) -> None:
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


def test_a_probability_is_a_decimal_number() -> None:
    assert [probability({"a": text}, "a", 0.5) for text in ("0.25", ".25", "25e-2", "+0.25")] == [0.25] * 4


@pytest.mark.parametrize(("codec", "level"), [("gzip", "10"), ("zstd", "23"), ("gzip", "-2")])
def test_a_level_that_the_codec_of_manifests_does_not_have_is_refused(codec: str, level: str) -> None:
    names = ("write.manifest.compression-codec", "write.manifest.compression-level")
    with pytest.raises(PropertyError, match=f"^table property '{names[1]}' is '{level}'; set a whole number, -"):
        manifest_compression(dict(zip(names, (codec, level), strict=True)))
    assert manifest_compression(dict(zip(names, ("snappy", level), strict=True))) == ("snappy", None)


def test_merging_is_turned_off_by_what_says_so_and_by_nothing_else() -> None:
    assert MergePolicy.of(table({"commit.manifest-merge.enabled": "False"})) is None
    assert MergePolicy.of(table({"commit.manifest-merge.enabled": "TRUE"})) == MergePolicy.of(table({}))


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


def test_fewer_inferred_columns_than_none_is_the_default_as_in_java() -> None:
    schema = table({}).schema
    key = "write.metadata.metrics.max-inferred-column-defaults"
    assert metrics_modes({key: "-1"}, schema, None) == metrics_modes({}, schema, None)
    assert metrics_modes({key: "0"}, schema, None) != metrics_modes({}, schema, None)


def test_a_property_that_is_not_set_has_its_default() -> None:
    assert (whole_number({}, "a", 7), retry_number({}, "a", 7), boolean_property({}, "a", True)) == (7, 7, True)
    assert (choice({}, "a", "x", {"x": 1}), probability({}, "a", 0.5)) == (1, 0.5)
    with pytest.raises(PropertyError, match="set a whole number, 3 or more"):
        whole_number({"a": "2"}, "a", 7, least=3)
