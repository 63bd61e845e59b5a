"""Why a scan reads a file, or does not: each pruning step asked again about one file, with the evidence it went by."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Unpack

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError
from icekeep.events import SILENT
from icekeep.planning.entries.decode import DecodedEntries, EntryFilter, SpecFilter
from icekeep.planning.entries.read import folded
from icekeep.planning.scan.plan import FILE_COLUMNS, Scan, open_scan
from icekeep.planning.scan.versions import VersionArguments
from icekeep.planning.spark.source import SparkSource, check_source
from icekeep.planning.spark.steps import spark_run
from icekeep.rendered import Rendered
from icekeep.spec.filters.evaluators import file_may_match, manifest_may_match, partition_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, And, BoundPredicate, Expression, Or, chain
from icekeep.spec.filters.formatting import format_expression
from icekeep.spec.manifests.encode import PartitionCodec
from icekeep.spec.manifests.structs import DataFile, FieldSummary, FileContent, ManifestFile, Status
from icekeep.spec.types import NestedField, Type
from icekeep.spec.values import value_from_bytes, value_to_text

_METRICS = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
_COLUMNS = FILE_COLUMNS | {*_METRICS}


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One question of the filter at one step, what it was answered by, and whether rows may match it."""

    step: str
    asked: str
    known: str
    may_match: bool


class Explanation(Rendered, frozen=True, kw_only=True):
    """What becomes of a file in a scan; `pruned_by` is the first step that drops it, `None` if it is read.

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
    """Say why a scan reads a data file or not.

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
        entry, manifest = _found(scan, spark, file)
    return explain_entry(scan, entry, manifest)


def explain_entry(scan: Scan, entry: Mapping[str, Any], manifest: ManifestFile) -> Explanation:
    """Say the same of an entry that was read.

    Args:
        entry: all of a row of `entry_schema.ENTRIES`, its maps as `dict`.
        manifest: of the scan, which has the entry.
    """
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
    """A `Fold` that keeps the few entries that a path picks, whole."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, decoded: DecodedEntries) -> None:
        self.rows += decoded.entries.to_pylist(maps_as_pydicts="lossy")

    def merge(self, other: "_Rows") -> None:
        self.rows += other.rows


def _found(scan: Scan, spark: SparkSource, file: str) -> tuple[dict[str, Any], ManifestFile]:
    """The entry of a file, a live one if there is one, and its manifest."""
    manifests = {m.manifest_path: m for m in (*scan.data.opened, *scan.data.skipped)}
    specs = {spec_id: SpecFilter(spec.partition) for spec_id, spec in scan.data.specs.items()}
    wanted = EntryFilter(specs=specs, live_only=False, path_end=file)
    rows = folded(scan.table.storage, spark, [*manifests.values()], wanted, _COLUMNS, _Rows).rows
    paths = sorted({row["file_path"] for row in rows})
    exact = [path for path in paths if path == file]
    if not paths:
        raise NotFoundError(f"no manifest of this version lists a data file {file!r}", file=file)
    if len(paths) > 1 and not exact:
        raise UsageError(
            f"{len(paths)} data files end with {file!r}, such as {paths[0]!r} and {paths[1]!r}; give more of it"
        )
    path = (exact or paths)[0]
    entries = sorted((row for row in rows if row["file_path"] == path), key=lambda row: row["status"] == Status.DELETED)
    return entries[0], manifests[entries[0]["manifest_path"]]


_Step = tuple[str, bool, list[Evidence]]


def _steps(
    scan: Scan, entry: Mapping[str, Any], manifest: ManifestFile, spec: SpecFilter, partition: tuple[Any, ...]
) -> Iterator[_Step]:
    yield "status", entry["status"] != Status.DELETED, []
    added_by = scan.wanted.added_by
    yield "version", added_by is None or (entry["status"] == Status.ADDED and entry["snapshot_id"] in added_by), []
    fields = spec.partition.fields
    if spec.matches is not ALWAYS_TRUE:
        summaries = manifest.partitions
        by_id = dict(zip((f.field_id for f in fields), summaries or (), strict=False))
        kept = summaries is None or manifest_may_match(spec.matches, fields, summaries)
        yield (
            "manifest",
            kept,
            _asked(
                "manifest",
                spec.matches,
                lambda leaf: summaries is None or manifest_may_match(leaf, fields, summaries),
                lambda field: _summary_text(field, by_id.get(field.field_id)),
            ),
        )
        values = {f.field_id: value for f, value in zip(fields, partition, strict=True)}
        yield (
            "partition",
            partition_matches(spec.matches, fields, partition),
            _asked(
                "partition",
                spec.matches,
                lambda leaf: partition_matches(leaf, fields, partition),
                lambda field: value_to_text(field.type, values[field.field_id]),
            ),
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
        yield (
            "metrics",
            file_may_match(scan.rows, file),
            _asked(
                "metrics", scan.rows, lambda leaf: file_may_match(leaf, file), lambda field: metrics_text(field, file)
            ),
        )


def _asked(
    step: str,
    filter_: Expression,
    may_match: Callable[[Expression], bool],
    known: Callable[[NestedField], str],
) -> list[Evidence]:
    return [
        Evidence(step=step, asked=format_expression(leaf), known=known(leaf.field), may_match=may_match(leaf))
        for leaf in _leaves(filter_)
    ]


def _leaves(filter_: Expression) -> Iterable[BoundPredicate]:
    match filter_:
        case BoundPredicate():
            yield filter_
        case And() | Or():
            for term in chain(type(filter_), [filter_]):
                yield from _leaves(term)


def _summary_text(field: NestedField, summary: FieldSummary | None) -> str:
    if summary is None:
        return "no summary"
    nulls = "with nulls" if summary.contains_null else "no nulls"
    return f"{_range(field.type, summary.lower_bound, summary.upper_bound)}, {nulls}"


def metrics_text(field: NestedField, file: DataFile) -> str:
    """What the metrics of a file say of a column, for people."""
    lower, upper = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    counted = "nulls not counted" if nulls is None else f"{nulls:,} nulls of {file.record_count:,} rows"
    return f"{_range(field.type, lower, upper)}, {counted}"


def _range(type_: Type, lower: bytes | None, upper: bytes | None) -> str:
    if lower is None and upper is None:
        return "no bounds"
    return f"{_bound(type_, lower)} to {_bound(type_, upper)}"


def _bound(type_: Type, bound: bytes | None) -> str:
    if bound is None:
        return "?"
    try:
        return value_to_text(type_, value_from_bytes(type_, bound))
    except (InvalidTableError, UnsupportedError):
        return f"X'{bound.hex().upper()}'"
