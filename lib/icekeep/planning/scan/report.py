"""Report what a scan would read, what pruning saves and which deletes apply; explain why a file is read or pruned.

An explanation repeats each pruning step for one file, and shows the statistics that it goes by.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError
from icekeep.events import SILENT
from icekeep.planning.deletes import EVERY_PAIR, MATCHED_DATA_COLUMNS, deletes_in_use
from icekeep.planning.entries import DecodedEntries, EntryFilter, Reading, SpecFilter, chosen_reading, folded
from icekeep.planning.scan.plan import (
    COLUMNS,
    FILE_COLUMNS,
    FileSize,
    Scan,
    ScanTotals,
    SizeDistribution,
    VersionArguments,
    few_files,
    open_scan,
    planned_files_with_deletes,
)
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.session import SparkSource, check_source, limits_of
from icekeep.rendered import Rendered
from icekeep.spec.filters.evaluators import file_may_match, manifest_may_match, partition_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, predicates
from icekeep.spec.filters.parsing import format_expression
from icekeep.spec.manifests.structs import DataFile, FieldSummary, FileContent, ManifestFile, Status
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import NestedField, Type
from icekeep.spec.values import value_from_bytes, value_to_text
from icekeep.spelling import counted

_METRICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_COLUMNS = FILE_COLUMNS | {*_METRICS}


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One predicate of the filter at one step, the statistics that decided it, and whether rows may match."""

    step: str
    asked: str
    known: str
    may_match: bool


class Explanation(Rendered, frozen=True, kw_only=True):
    """Whether a scan reads a file; `pruned_by` is the first step that drops it, `None` if it is read.

    The steps are `manifest` (partition summaries), `partition`, `metrics` (bounds and counts), and before them `status`
    (the entry says that the file was deleted) and `version` (an incremental scan that did not append it).
    """

    file_path: str
    is_read: bool
    pruned_by: str | None
    manifest_path: str
    snapshot_id: int | None
    sequence_number: int | None
    partition: str
    spec_id: int
    record_count: int
    file_size_in_bytes: int
    evidence: tuple[Evidence, ...] = ()


def explain_file(
    table: Table,
    file: str,
    spark: SparkSource = None,
    *,
    where: str | Expression = ALWAYS_TRUE,
    **version: Unpack[VersionArguments],
) -> Explanation:
    """Explain why a scan reads a data file or prunes it.

    Args:
        file: the file's location, or the end of it.
        where: which rows the scan asks for.
        **version: what is read: `ref`, `snapshot_id`, `as_of`, or what was appended from `start_snapshot_id` to
            `end_snapshot_id`; by default the head of `main`.

    Raises:
        NotFoundError: no manifest of the version lists such a file.
        UsageError: several files' locations end so, or `file` is no text.
    """
    if not isinstance(file, str):
        raise UsageError(
            f"{file!r} is no file; give the location of a data file, or the end of it, and then the session"
        )
    check_source(spark)
    scan = open_scan(table, where=where, **version)
    with spark_run("plan_scan", table.name, SILENT):
        entry, manifest = _entry_of(scan, spark, file)
    return explain_entry(scan, entry, manifest)


def explain_entry(scan: Scan, entry: Mapping[str, Any], manifest: ManifestFile) -> Explanation:
    """`explain_file` for a whole row of `planning.manifests.ENTRIES`, its maps as `dict`, in a manifest of the scan."""
    spec = scan.data.specs[manifest.partition_spec_id]
    partition = PartitionCodec(spec.partition).decode(entry["partition"])
    evidence, pruned_by = [], None
    for step, kept, questions in _steps(scan, entry, manifest, spec, partition):
        evidence += questions
        if not kept and pruned_by is None:
            pruned_by = step
    return Explanation(
        is_read=pruned_by is None,
        pruned_by=pruned_by,
        partition=scan.table.metadata.partition_path(entry["spec_id"], partition),
        evidence=tuple(evidence),
        **{name: entry[name] for name in _SHOWN},
    )


_SHOWN = (
    "file_path",
    "manifest_path",
    "snapshot_id",
    "sequence_number",
    "spec_id",
    "record_count",
    "file_size_in_bytes",
)


class _Rows:
    """A `Fold` that keeps whole entries: the few of a path."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, decoded: DecodedEntries) -> None:
        self.rows += decoded.entries.to_pylist(maps_as_pydicts="lossy")

    def merge(self, other: "_Rows") -> None:
        self.rows += other.rows


def _entry_of(scan: Scan, spark: SparkSource, file: str) -> tuple[dict[str, Any], ManifestFile]:
    """The entry of a file, a live one if there is any, and its manifest."""
    manifests = {m.manifest_path: m for m in (*scan.data.opened, *scan.data.skipped)}
    specs = {spec_id: SpecFilter(spec.partition) for spec_id, spec in scan.data.specs.items()}
    wanted = EntryFilter(specs=specs, live_only=False, path_end=file)
    rows = folded(scan.table.storage, spark, [*manifests.values()], wanted, _COLUMNS, _Rows).rows
    paths = sorted({row["file_path"] for row in rows})
    if not paths:
        raise NotFoundError(f"no manifest of this version lists a data file {file!r}", file=file)
    if len(paths) > 1 and file not in paths:
        raise UsageError(
            f"{len(paths)} data files end with {file!r}, such as {paths[0]!r} and {paths[1]!r}; give more of it"
        )
    path = file if file in paths else paths[0]
    entry = min((row for row in rows if row["file_path"] == path), key=lambda row: row["status"] == Status.DELETED)
    return entry, manifests[entry["manifest_path"]]


def _steps(
    scan: Scan, entry: Mapping[str, Any], manifest: ManifestFile, spec: SpecFilter, partition: tuple[Any, ...]
) -> Iterator[tuple[str, bool, list[Evidence]]]:
    """Each step, whether it keeps the file, and the evidence."""
    yield "status", entry["status"] != Status.DELETED, []
    added_by = scan.wanted.added_by
    yield "version", added_by is None or (entry["status"] == Status.ADDED and entry["snapshot_id"] in added_by), []
    fields = spec.partition.fields

    def asked(
        step: str, filter_: Expression, may_match: Callable[[Expression], bool], known: Callable[[NestedField], str]
    ) -> tuple[str, bool, list[Evidence]]:
        evidence = [
            Evidence(step=step, asked=format_expression(leaf), known=known(leaf.field), may_match=may_match(leaf))
            for leaf in predicates(filter_)
        ]
        return step, may_match(filter_), evidence

    if spec.matches is not ALWAYS_TRUE:
        summaries = manifest.partitions
        by_id = dict(zip((f.field_id for f in fields), summaries or (), strict=False))
        yield asked(
            "manifest",
            spec.matches,
            lambda filter_: summaries is None or manifest_may_match(filter_, fields, summaries),
            lambda field: _summary_text(field, by_id.get(field.field_id)),
        )
        values = {f.field_id: value for f, value in zip(fields, partition, strict=True)}
        yield asked(
            "partition",
            spec.matches,
            lambda filter_: partition_matches(filter_, fields, partition),
            lambda field: value_to_text(field.type, values[field.field_id]),
        )
    if scan.rows is not ALWAYS_TRUE:
        file = DataFile(
            file_path=entry["file_path"],
            file_format=entry["file_format"],
            spec_id=entry["spec_id"],
            record_count=entry["record_count"],
            file_size_in_bytes=entry["file_size_in_bytes"],
            content=FileContent.DATA,
            **{name: entry[name] for name in _METRICS},
        )
        yield asked(
            "metrics",
            scan.rows,
            lambda filter_: file_may_match(filter_, file),
            lambda field: metrics_text(field, file),
        )


def _summary_text(field: NestedField, summary: FieldSummary | None) -> str:
    if summary is None:
        return "no summary"
    nulls = "with nulls" if summary.contains_null else "no nulls"
    return f"{_range(field.type, summary.lower_bound, summary.upper_bound)}, {nulls}"


def metrics_text(field: NestedField, file: DataFile) -> str:
    """The metrics of a column in one file, for people."""
    lower, upper = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    counted = "nulls not counted" if nulls is None else f"{nulls:,} nulls of {file.record_count:,} rows"
    return f"{_range(field.type, lower, upper)}, {counted}"


def _range(type_: Type, lower: bytes | None, upper: bytes | None) -> str:
    texts = []
    for bound in (lower, upper):
        text = "?"
        if bound is not None:
            try:
                text = value_to_text(type_, value_from_bytes(type_, bound))
            except (InvalidTableError, UnsupportedError):
                text = f"X'{bound.hex().upper()}'"
        texts.append(text)
    return "no bounds" if lower is None and upper is None else " to ".join(texts)


class DeletesInUse(msgspec.Struct, frozen=True, kw_only=True):
    """Distinct delete files that a scan must apply; the bytes of a deletion vector are those of its blob."""

    deletion_vectors_count: int = 0
    deletion_vectors_bytes: int = 0
    deletion_vectors_record_count: int = 0
    position_delete_files_count: int = 0
    position_delete_files_bytes: int = 0
    position_delete_files_record_count: int = 0
    equality_delete_files_count: int = 0
    equality_delete_files_bytes: int = 0
    equality_delete_files_record_count: int = 0


class PartitionSize(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, by its path (`day=2013-01-05`), and the files that the scan reads of it."""

    partition: str
    spec_id: int
    files_count: int
    bytes: int


class PlanScanResult(Rendered, frozen=True, kw_only=True):
    """What a scan would read; sizes in bytes, counts of live data files before and after each pruning step.

    Attributes:
        manifests_count: of the version, delete manifests among them.
        total_data_files_count: that the version has; `None` where a manifest list of version 1 does not say.
        total_files_bytes: of its data and delete files, as far as the snapshot's summary says.
        opened_data_files_count: listed by the manifests that were opened.
        pruned_by_partition_count: of these, pruned by their partition.
        pruned_by_metrics_count: of the rest, pruned by their bounds and counts.
        median_file_bytes, median_partition_bytes: to one percent.
        file_skew, partition_skew: the largest divided by the median.
        reading: where manifests were decoded, by what, and why.
        slow_manifests_count: opened data manifests that were decoded entry by entry, since the fast decoder failed.
    """

    snapshot_id: int | None
    schema_id: int
    manifests_count: int
    opened_manifests_count: int
    skipped_manifests_count: int
    opened_delete_manifests_count: int
    skipped_delete_manifests_count: int
    total_data_files_count: int | None
    total_files_bytes: int | None
    opened_data_files_count: int
    opened_data_files_bytes: int
    pruned_by_partition_count: int
    pruned_by_partition_bytes: int
    pruned_by_metrics_count: int
    pruned_by_metrics_bytes: int
    data_files_count: int
    data_files_bytes: int
    record_count: int
    deletes: DeletesInUse
    partitions_count: int
    smallest_file_bytes: int | None
    median_file_bytes: int | None
    largest_file_bytes: int | None
    file_skew: float | None
    median_partition_bytes: int | None
    largest_partition_bytes: int | None
    partition_skew: float | None
    reading: str
    slow_manifests_count: int = 0
    elapsed_ms: int = 0
    largest_files: tuple[FileSize, ...] = ()
    largest_partitions: tuple[PartitionSize, ...] = ()


def plan_scan(
    table: Table,
    spark: SparkSource = None,
    *,
    where: str | Expression = ALWAYS_TRUE,
    **version: Unpack[VersionArguments],
) -> PlanScanResult:
    """Report what a scan would read.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed below
            two million entries, or 200,000 where there are deletes.
        where: which rows are asked for; an `ExpressionError` where it cannot be read or bound.
        **version: what is read: `ref`, `snapshot_id`, `as_of`, or what was appended from `start_snapshot_id` to
            `end_snapshot_id`; by default the head of `main`.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole, or deletes contradict the data.
    """
    check_source(spark)
    began_ms = table.runtime.monotonic_ms()
    scan = open_scan(table, where=where, **version)
    with spark_run("plan_scan", table.name, SILENT):
        result = _result(scan, spark)
    return msgspec.structs.replace(result, elapsed_ms=table.runtime.monotonic_ms() - began_ms)


def plan_scan_job(
    table: Table,
    spark: SparkSource = None,
    *,
    explain: str | None = None,
    where: str | Expression = ALWAYS_TRUE,
    **version: Unpack[VersionArguments],
) -> PlanScanResult | Explanation:
    """The job: `plan_scan`, or `explain_file` if a file is named; raises what they raise."""
    if explain is not None:
        return explain_file(table, explain, spark, where=where, **version)
    return plan_scan(table, spark, where=where, **version)


def _result(scan: Scan, spark: SparkSource) -> PlanScanResult:
    metadata, snapshot = scan.table.metadata, scan.version.snapshot
    reading = chosen_reading(scan.data.opened, limits_of(spark).folded_entries_count)
    totals = folded(scan.table.storage, spark, scan.data.opened, scan.wanted, COLUMNS, ScanTotals, reading)
    steps, sizes, partitions = totals.steps, totals.sizes, totals.partition_sizes()
    has_deletes = scan.deletes.opened and steps.by_metrics.files_count
    in_use = _deletes_in_use(scan, spark) if has_deletes else DeletesInUse()
    counts = [m.live_files_count for m in scan.data.opened + scan.data.skipped]
    total_bytes = ""
    if snapshot is not None and scan.version.appended_by is None:
        total_bytes = (snapshot.summary or {}).get("total-files-size", "")
    largest = []
    for (spec_id, key), files_count, size_bytes in totals.largest_partitions():
        path = metadata.partition_path(spec_id, PartitionCodec(metadata.partition_type(spec_id)).decode(key))
        largest.append(PartitionSize(partition=path, spec_id=spec_id, files_count=files_count, bytes=size_bytes))
    return PlanScanResult(
        snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        schema_id=scan.version.schema.schema_id,
        manifests_count=len(scan.listed),
        opened_manifests_count=len(scan.data.opened),
        skipped_manifests_count=len(scan.data.skipped),
        opened_delete_manifests_count=len(scan.deletes.opened),
        skipped_delete_manifests_count=len(scan.deletes.skipped),
        total_data_files_count=None if None in counts else sum(count or 0 for count in counts),
        total_files_bytes=int(total_bytes) if total_bytes.isdecimal() else None,
        opened_data_files_count=steps.opened.files_count,
        opened_data_files_bytes=steps.opened.bytes,
        pruned_by_partition_count=steps.opened.files_count - steps.by_partition.files_count,
        pruned_by_partition_bytes=steps.opened.bytes - steps.by_partition.bytes,
        pruned_by_metrics_count=steps.by_partition.files_count - steps.by_metrics.files_count,
        pruned_by_metrics_bytes=steps.by_partition.bytes - steps.by_metrics.bytes,
        data_files_count=steps.by_metrics.files_count,
        data_files_bytes=steps.by_metrics.bytes,
        record_count=totals.record_count,
        deletes=in_use,
        partitions_count=len(totals.bytes_by_partition),
        smallest_file_bytes=sizes.least,
        median_file_bytes=sizes.quantile(0.5),
        largest_file_bytes=sizes.greatest,
        file_skew=_skew(sizes),
        median_partition_bytes=partitions.quantile(0.5),
        largest_partition_bytes=partitions.greatest,
        partition_skew=_skew(partitions),
        reading=_reading_line(reading, steps.slow_manifests_count),
        slow_manifests_count=steps.slow_manifests_count,
        largest_files=tuple(totals.largest),
        largest_partitions=tuple(largest),
    )


def _reading_line(reading: Reading, slow_count: int) -> str:
    text = f"{reading.decoder} on the {reading.by}: {reading.reason}"
    return f"{text}; {counted(slow_count, 'manifests')} by fastavro, as it failed on them" if slow_count else text


def _skew(sizes: SizeDistribution) -> float | None:
    median = sizes.quantile(0.5)
    return round(sizes.greatest / median, 1) if median and sizes.greatest is not None else None


def _deletes_in_use(scan: Scan, spark: SparkSource) -> DeletesInUse:
    few = few_files(scan, limits_of(spark), MATCHED_DATA_COLUMNS, max_pairs=EVERY_PAIR)
    if few is None or few.reaching is None:
        in_use = deletes_in_use(planned_files_with_deletes(scan, spark, MATCHED_DATA_COLUMNS))
        [row] = collected(in_use, "looking for the deletes in use")
        return DeletesInUse(**row.asDict())
    used = few.reaching.deletes.filter(pa.array(few.reaching.used)).to_pylist()
    totals: Counter[str] = Counter()
    for file in {(file["file_path"], file["content_offset"]): file for file in used}.values():
        kind = "deletion_vectors" if file["file_format"].lower() == "puffin" else "position_delete_files"
        if file["content"] == FileContent.EQUALITY_DELETES:
            kind = "equality_delete_files"
        totals[f"{kind}_count"] += 1
        size_bytes = file["content_size_in_bytes" if kind == "deletion_vectors" else "file_size_in_bytes"]
        totals[f"{kind}_bytes"] += size_bytes or 0
        totals[f"{kind}_record_count"] += file["record_count"]
    return DeletesInUse(**totals)
