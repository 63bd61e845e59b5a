"""Explain why a scan reads a file or prunes it: each pruning step repeated for that file, with the statistics it goes by."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError
from icekeep.events import SILENT
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, folded
from icekeep.planning.scan.plan import FILE_COLUMNS, Scan, VersionArguments, open_scan
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.session import SparkSource, check_source
from icekeep.rendered import Rendered
from icekeep.spec.filters.evaluators import file_may_match, manifest_may_match, partition_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, predicates
from icekeep.spec.filters.parsing import format_expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestFile, Status
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import NestedField, Type
from icekeep.spec.values import value_from_bytes, value_to_text

_METRICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_COLUMNS = FILE_COLUMNS | {*_METRICS}
_SHOWN = (
    "file_path",
    "manifest_path",
    "snapshot_id",
    "sequence_number",
    "spec_id",
    "record_count",
    "file_size_in_bytes",
)


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
    manifests = {m.manifest_path: m for m in (*scan.data.opened, *scan.data.skipped)}
    specs = {spec_id: SpecFilter(spec.partition) for spec_id, spec in scan.data.specs.items()}
    wanted = EntryFilter(specs=specs, live_only=False, path_end=file)
    with spark_run("plan_scan", table.name, SILENT):
        rows = folded(table.storage, spark, [*manifests.values()], wanted, _COLUMNS, _Rows)
    paths = sorted({row["file_path"] for row in rows})
    if not paths:
        raise NotFoundError(f"no manifest of this version lists a data file {file!r}", file=file)
    if len(paths) > 1 and file not in paths:
        raise UsageError(
            f"{len(paths)} data files end with {file!r}, such as {paths[0]!r} and {paths[1]!r}; give more of it"
        )
    path = file if file in paths else paths[0]
    # A live entry, if there is any.
    entry = min((row for row in rows if row["file_path"] == path), key=lambda row: row["status"] == Status.DELETED)
    return explain_entry(scan, entry, manifests[entry["manifest_path"]])


class _Rows(list[dict[str, Any]]):
    """A `Fold` that keeps whole entries: the few of a path."""

    def add(self, decoded: DecodedEntries) -> None:
        self += decoded.entries.to_pylist(maps_as_pydicts="lossy")

    def merge(self, other: "_Rows") -> None:
        self += other


def explain_entry(scan: Scan, entry: Mapping[str, Any], manifest: ManifestFile) -> Explanation:
    """`explain_file` for a whole row of `planning.manifests.ENTRIES`, its maps as `dict`, in a manifest of the scan."""
    spec = scan.data.specs[manifest.partition_spec_id]
    fields, partition = spec.partition.fields, PartitionCodec(spec.partition).decode(entry["partition"])
    status, added_by = entry["status"], scan.wanted.added_by
    is_kept = {
        "status": status != Status.DELETED,
        "version": added_by is None or (status == Status.ADDED and entry["snapshot_id"] in added_by),
    }
    evidence: list[Evidence] = []

    def ask(
        step: str, filter_: Expression, may_match: Callable[[Expression], bool], known: Callable[[NestedField], str]
    ) -> None:
        if filter_ is not ALWAYS_TRUE:
            is_kept[step] = may_match(filter_)
            for leaf in predicates(filter_):
                asked = format_expression(leaf)
                evidence.append(Evidence(step=step, asked=asked, known=known(leaf.field), may_match=may_match(leaf)))

    summaries = manifest.partitions
    by_id = dict(zip((f.field_id for f in fields), summaries or (), strict=False))

    def summary_text(field: NestedField) -> str:
        if (summary := by_id.get(field.field_id)) is None:
            return "no summary"
        nulls = "with nulls" if summary.contains_null else "no nulls"
        return f"{_range(field.type, summary.lower_bound, summary.upper_bound)}, {nulls}"

    ask(
        "manifest",
        spec.matches,
        lambda filter_: summaries is None or manifest_may_match(filter_, fields, summaries),
        summary_text,
    )
    values = {f.field_id: value for f, value in zip(fields, partition, strict=True)}
    ask(
        "partition",
        spec.matches,
        lambda filter_: partition_matches(filter_, fields, partition),
        lambda field: value_to_text(field.type, values[field.field_id]),
    )
    file = DataFile(
        file_path=entry["file_path"],
        file_format=entry["file_format"],
        spec_id=entry["spec_id"],
        record_count=entry["record_count"],
        file_size_in_bytes=entry["file_size_in_bytes"],
        content=FileContent.DATA,
        **{name: entry[name] for name in _METRICS},
    )
    ask("metrics", scan.where, lambda filter_: file_may_match(filter_, file), lambda field: metrics_text(field, file))
    return Explanation(
        is_read=all(is_kept.values()),
        pruned_by=next((step for step, kept in is_kept.items() if not kept), None),
        partition=scan.table.metadata.partition_path(entry["spec_id"], partition),
        evidence=tuple(evidence),
        **{name: entry[name] for name in _SHOWN},
    )


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
