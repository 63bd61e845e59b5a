"""A data file and the entries that name it: what it holds is read once, and each entry is held against it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, and_more, first_line
from icekeep.formats.reader import SourceFile
from icekeep.maintenance.checking.content.known import Known
from icekeep.maintenance.checking.content.metrics import BOUNDS, NANS, NULLS, VALUES, wrong_metrics
from icekeep.maintenance.checking.content.reading import Claims, Content, leaf_types, read_content, top_level
from icekeep.maintenance.checking.content_classes import DATA_FILE_UNREADABLE
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.partitioning import identity_values
from icekeep.spec.schema import Schema

Row = Mapping[str, Any]
"""An entry as Python values, with `manifest`, the number of its manifest."""

_ROWS, _TYPES, _REQUIRED = 402, 403, 404
_UNSORTED, _PARTITION, _BLOOM, _STATISTICS, _OFFSETS, _UNKNOWN_IDS = 409, 410, 418, 419, 422, 423
_MAX_NAMES = 5


class Told(msgspec.Struct, frozen=True):
    """What an entry says of columns; see `metrics.Told`."""

    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]

    @classmethod
    def of(cls, row: Row) -> "Told":
        return cls(*(dict(row[name] or ()) for name in cls.__struct_fields__))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a class, before it is said where: of an entry, or of the file whatever entries say."""

    number: int
    detail: str
    columns: tuple[int, ...] = ()
    recorded: Any = None
    found: Any = None


class Judge:
    """Tells the faults of data files.

    Args:
        known: the table.
        tally: is told.
    """

    def __init__(self, known: Known, tally: Tally) -> None:
        self._known, self._tally = known, tally

    def file(self, rows: Sequence[Row]) -> None:
        """Look at one file; `rows` are all entries that name it.

        Raises:
            TryAgainError: the store is out of reach.
        """
        rows = sorted(rows, key=lambda row: (self._known.ages[row["manifest"]], row["manifest"]))
        path = rows[0]["file_path"]
        if any(row["key_metadata"] is not None for row in rows):
            self._tally.gap(f"the rows of file {path!r}", "it is encrypted")
            return
        schema = self._known.schemas[int(self._known.schema_ids[rows[0]["manifest"]])]
        try:
            content = self._read(rows, schema)
        except MissingFileError:
            # Told among files.
            return
        except InvalidTableError as error:
            recorded = rows[0]["file_format"]
            self._tell(rows, Finding(number=DATA_FILE_UNREADABLE, detail=first_line(error), recorded=recorded))
            return
        except UnsupportedError as error:
            self._tally.gap(f"the rows of file {path!r}", first_line(error))
            return
        self._of_file(rows, content, schema)
        self._of_entries(rows, content, schema)

    @cached_property
    def _codecs(self) -> PartitionCodecs:
        return PartitionCodecs(self._known.partitions)

    def _partition(self, row: Row) -> tuple[Any, ...]:
        return self._codecs.decode(row["spec_id"], row["partition"])

    def _read(self, rows: Sequence[Row], schema: Schema) -> Content:
        known, first = self._known, rows[0]
        source = SourceFile(
            location=first["file_path"],
            file_format=first["file_format"],
            constants=identity_values(known.specs[first["spec_id"]], self._partition(first)),
            name_mapping=known.name_mapping,
        )
        orders = {row["sort_order_id"] for row in rows} & known.sort_orders.keys()
        claims = Claims(
            partitions=[(known.specs[row["spec_id"]], self._partition(row)) for row in _claims(rows).values()],
            orders=[known.sort_orders[number] for number in sorted(orders)],
        )
        return read_content(known.decode.storage, source, schema, claims)

    def _of_file(self, rows: Sequence[Row], content: Content, schema: Schema) -> None:
        for finding in _file_findings(content, schema):
            self._tell(rows, finding)
        for why in content.bloom_gaps:
            self._tally.gap(f"a Bloom filter of file {rows[0]['file_path']!r}", why)
        if content.columns is not None:
            for id_, why in sorted(content.columns.unreadable.items()):
                self._tally.gap(f"column {schema.names_by_id[id_]!r} of file {rows[0]['file_path']!r}", why)

    def _of_entries(self, rows: Sequence[Row], content: Content, schema: Schema) -> None:
        found: dict[int, list[tuple[Row, Finding]]] = {}
        watches = dict(zip(_claims(rows), content.partitions, strict=False))
        for row in rows:
            findings = [*_entry_findings(row, content, schema)]
            watch = watches.get(_claim(row))
            if watch is not None and watch.others:
                findings.append(self._elsewhere(row, sorted(watch.source_ids), watch.others))
            for finding in findings:
                found.setdefault(finding.number, []).append((row, finding))
        for told in found.values():
            self._tell([row for row, _ in told], told[0][1])

    def _elsewhere(self, row: Row, columns: Sequence[int], others: Mapping[str, Sequence[Any]]) -> Finding:
        fields = self._known.specs[row["spec_id"]].fields
        recorded = {field.name: value for field, value in zip(fields, self._partition(row), strict=True)}
        shown = ", ".join(f"{name!r} {others[name][0]} where its entry says {recorded[name]}" for name in others)
        return Finding(
            number=_PARTITION,
            detail=f"it has rows of other partitions: of {shown}",
            columns=tuple(columns),
            recorded=[_text(recorded[name]) for name in others],
            found=[[_text(value) for value in values] for values in others.values()],
        )

    def _tell(self, rows: Sequence[Row], finding: Finding) -> None:
        first = rows[0]
        self._tally.add(
            Fault(
                number=finding.number,
                where=first["file_path"],
                detail=finding.detail,
                snapshot_id=self._known.since[first["manifest"]],
                facts={
                    "manifest": self._known.manifest_paths[first["manifest"]],
                    "manifests": [self._known.manifest_paths[row["manifest"]] for row in rows],
                    "file_path": first["file_path"],
                    "content_offset": None,
                    "spec_id": first["spec_id"],
                    "columns": [*finding.columns],
                    "recorded": finding.recorded,
                    "found": finding.found,
                },
            )
        )


def _claim(row: Row) -> tuple[int, bytes]:
    return row["spec_id"], row["partition"]


def _claims(rows: Sequence[Row]) -> dict[tuple[int, bytes], Row]:
    """One entry for each partition that entries say."""
    return {_claim(row): row for row in rows}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _names(ids: Sequence[int], schema: Schema) -> str:
    """Columns in a sentence."""
    names = [repr(schema.names_by_id[id_]) for id_ in ids[:_MAX_NAMES]]
    return f"column{'s' if len(ids) > 1 else ''} {', '.join(names)}{and_more(ids, _MAX_NAMES)}"


def _file_findings(content: Content, schema: Schema) -> Iterator[Finding]:
    columns = content.columns
    if columns is None:
        detail = "its columns have no field ids, and the table has no name mapping"
        yield Finding(number=_UNKNOWN_IDS, detail=detail)
        return
    if columns.unidentified:
        ids = sorted(columns.unidentified)
        detail = f"it has values of {_names(ids, schema)} without a field id, and the table's name mapping has no id for the name"
        yield Finding(number=_UNKNOWN_IDS, detail=detail, columns=tuple(ids))
    if columns.wrong:
        ids = sorted(columns.wrong)
        yield Finding(number=_TYPES, detail=columns.wrong[ids[0]], columns=tuple(ids))
    elif columns.zoned:
        detail = f"it marks {_names(columns.zoned, schema)} as adjusted to UTC, where the table has no time zone"
        yield Finding(number=_TYPES, detail=detail, columns=columns.zoned)
    empty = sorted({*columns.absent, *content.nulls})
    if empty:
        said = []
        if columns.absent:
            said.append(f"it lacks required {_names(columns.absent, schema)}")
        if content.nulls:
            said.append(f"required {_names(sorted(content.nulls), schema)} has {sum(content.nulls.values())} nulls")
        found = [content.nulls.get(id_) for id_ in empty]
        yield Finding(number=_REQUIRED, detail=", and ".join(said), columns=tuple(empty), found=found)
    if content.bloom_problems:
        problems = content.bloom_problems
        yield Finding(number=_BLOOM, detail=f"{problems[0]}{and_more(problems)}", found=[*problems])
    if content.statistics:
        ids = sorted(content.statistics)
        detail = f"row group {content.statistics[ids[0]]} has values of {_names(ids, schema)} that its statistics do not hold"
        parts = [content.statistics[id_] for id_ in ids]
        yield Finding(number=_STATISTICS, detail=detail, columns=tuple(ids), found=parts)


def _entry_findings(row: Row, content: Content, schema: Schema) -> Iterator[Finding]:
    recorded = row["record_count"]
    # Negative counts are told as what they are.
    if 0 <= recorded != content.row_count:
        detail = f"it has {content.row_count} rows where its entry says {recorded}"
        yield Finding(number=_ROWS, detail=detail, recorded=recorded, found=content.row_count)
    yield from _metric_findings(row, content, schema)
    offsets = row["split_offsets"] or []
    # Those beyond the file are told as such.
    beyond = any(offset >= row["file_size_in_bytes"] or offset < 0 for offset in offsets)
    if content.offsets is not None and not beyond and not _cut_well(offsets, content.offsets):
        strange = [offset for offset in offsets if offset not in content.offsets]
        detail = f"no row group or stripe begins at byte {strange[0]}, which is one of its split offsets"
        if not strange:
            detail = f"its split offsets begin at byte {offsets[0]}, and its first row group or stripe at {content.offsets[0]}"
        yield Finding(number=_OFFSETS, detail=detail, recorded=offsets, found=[*content.offsets])
    position = content.orders.get(row["sort_order_id"])
    if position is not None:
        detail = f"row {position} comes before row {position - 1} in sort order {row['sort_order_id']}"
        yield Finding(number=_UNSORTED, detail=detail, recorded=row["sort_order_id"], found=position)


def _cut_well(offsets: Sequence[int], parts: Sequence[int]) -> bool:
    """Whether splits at some offsets begin where parts begin, and leave out none."""
    return not offsets or ({*offsets} <= {*parts} and min(offsets) == min(parts))


def _metric_findings(row: Row, content: Content, schema: Schema) -> Iterator[Finding]:
    if content.columns is None:
        return
    types = leaf_types(content.columns)
    is_orc = row["file_format"].lower() == "orc"
    for wrong in wrong_metrics(Told.of(row), content.metrics, types, top_level(types, schema), is_orc=is_orc):
        yield Finding(
            number=wrong.number,
            detail=_DETAILS[wrong.number].format(_names(wrong.columns, schema), wrong.found[0], wrong.recorded[0]),
            columns=wrong.columns,
            recorded=[*wrong.recorded],
            found=[*wrong.found],
        )


_DETAILS = {
    BOUNDS: "values of {} lie outside of their bounds",
    NULLS: "{} has {} nulls where its entry says {}",
    VALUES: "{} has {} values where its entry says {}",
    NANS: "{} has {} NaNs where its entry says {}",
}
