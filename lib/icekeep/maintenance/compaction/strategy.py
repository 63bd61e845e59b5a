"""What a run does with the rows of the files it rewrites: leave their order as it is, or put them in one.

The arguments are those of Iceberg's procedure: `strategy` is `binpack` or `sort`, and `sort_order` is the order of a sort,
a z-order and Hilbert's curve among them; without it a sort takes the table's order, and with it alone a sort is meant.
"""

from collections.abc import Sequence

import msgspec

from icekeep.errors import OptionError, UnsupportedError, UsageError, argument
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import UNSORTED, CurveKeys, SortField, SortKey, SortOrder, build_sort_order, parse_sort_order
from icekeep.spec.transforms import Identity, UnknownTransform
from icekeep.spec.types import MAX_INT

BINPACK = "binpack"
SORT = "sort"

ORDER_KEY = "icekeep.order"
"""In the summary of a snapshot: along which curve its new files were written, which no field of a file could say."""

_BY_ANY_ORDER = ("compression-factor", "shuffle-partitions-per-file")
_BY_ZORDER = ("var-length-contribution", "max-output-size")


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of new files are ordered, and what that takes.

    Attributes:
        text: for people, such as `binpack`, `sort by day ASC NULLS FIRST` or `zorder(a, b)`.
        ordering: of the rows of one partition; null leaves them as they are.
        sort_order_id: what new files say: the id of the table's order that this is, else 0. Where it is not 0, a file that
            says something else is not in this order.
        compression_factor: new bytes for one of the old ones, as the user expects them.
        shuffle_partitions_per_file: into how many parts the rows of one new file are shuffled.
        warnings: what the user should know before it runs.
    """

    text: str
    ordering: Ordering | None = None
    sort_order_id: int = UNSORTED.order_id
    compression_factor: float = 1.0
    shuffle_partitions_per_file: int = 1
    warnings: tuple[str, ...] = ()


def chosen_strategy(
    strategy: str | None, sort_order: str | None, metadata: TableMetadata, options: RewriteDataFilesOptions
) -> Strategy:
    """Work out what the arguments ask for; the columns are those of the current schema.

    Raises:
        UsageError, NotFoundError: the arguments contradict each other, the order cannot be read, or it does not fit the
            table.
        OptionError: an option belongs to another strategy.
        UnsupportedError: the table's order has a transform that is not known.
    """
    name = (strategy or (BINPACK if sort_order is None else SORT)).lower()
    if name not in (BINPACK, SORT):
        raise UsageError(f"there is no strategy {strategy!r}; give {BINPACK} or {SORT}", strategy=strategy)
    if name == BINPACK:
        if sort_order is not None:
            raise UsageError(
                f"strategy {BINPACK} takes no sort order ({sort_order!r}); give strategy {SORT}", strategy=strategy
            )
        _refuse(options, (*_BY_ANY_ORDER, *_BY_ZORDER), f"a strategy of {SORT}")
        return Strategy(text=BINPACK)
    if sort_order is None:
        found = _by_table_order(metadata)
    elif isinstance(keys := parse_sort_order(sort_order), CurveKeys):
        found = _along_curve(keys, metadata, options)
    else:
        found = _by_keys(keys, metadata)
    if found.ordering is None or found.ordering.curve is None or found.ordering.curve.kind != "zorder":
        _refuse(options, _BY_ZORDER, "a sort order such as zorder(a, b)")
    return msgspec.structs.replace(
        found,
        compression_factor=options.compression_factor or 1.0,
        shuffle_partitions_per_file=options.shuffle_partitions_per_file or 1,
    )


def order_mark(strategy: Strategy) -> str | None:
    """What the summary of a snapshot says under `ORDER_KEY` whose files were written along a curve; else `None`."""
    curve = None if strategy.ordering is None else strategy.ordering.curve
    if curve is None:
        return None
    ids = ",".join(map(str, curve.column_ids))
    return f"{curve.kind}({ids})/{curve.var_length_contribution}/{curve.max_output_bytes}"


def order_summary(strategy: Strategy) -> dict[str, str]:
    """What a run adds to the summaries of its snapshots."""
    mark = order_mark(strategy)
    return {} if mark is None else {ORDER_KEY: mark}


def snapshots_in_order(strategy: Strategy, metadata: TableMetadata) -> frozenset[int]:
    """The snapshots that say that their files were written along the very curve of a strategy."""
    mark = order_mark(strategy)
    if mark is None:
        return frozenset()
    return frozenset(s.snapshot_id for s in metadata.snapshots if (s.summary or {}).get(ORDER_KEY) == mark)


def _by_table_order(metadata: TableMetadata) -> Strategy:
    order = metadata.sort_order
    if order.is_unsorted:
        raise UsageError(f"the table at {metadata.location!r} has no sort order; give one as {argument('sort_order')}")
    for field in order.fields:
        if isinstance(field.transform, UnknownTransform):
            raise UnsupportedError(
                f"sort order {order.order_id} has the transform {str(field.transform)!r}, which is not known; give another "
                f"one as {argument('sort_order')}"
            )
    return Strategy(
        text=_sort_text(order.fields, metadata.schema),
        ordering=Ordering(fields=order.fields),
        sort_order_id=order.order_id,
    )


def _by_keys(keys: Sequence[SortKey], metadata: TableMetadata) -> Strategy:
    fields = build_sort_order(metadata.schema, keys).fields
    text = _sort_text(fields, metadata.schema)
    order_id = next((order.order_id for order in metadata.sort_orders if _is_same(order, fields)), UNSORTED.order_id)
    unknown = f"{text}: that is none of the table's sort orders, so the new files will not say that they are sorted"
    return Strategy(
        text=text,
        ordering=Ordering(fields=fields),
        sort_order_id=order_id,
        warnings=() if order_id else (unknown,),
    )


def _along_curve(keys: CurveKeys, metadata: TableMetadata, options: RewriteDataFilesOptions) -> Strategy:
    fields = build_sort_order(metadata.schema, keys.columns).fields
    constant = {field.source_id for field in metadata.spec.fields if isinstance(field.transform, Identity)}
    warnings = tuple(
        f"{keys.kind}: column {name!r} is left out, since it has one value in each partition"
        for name, field in zip(keys.columns, fields, strict=True)
        if field.source_id in constant
    )
    ids = tuple(dict.fromkeys(field.source_id for field in fields if field.source_id not in constant))
    if not ids:
        raise UsageError(f"all columns of the {keys.kind} have one value in each partition; name others")
    text = f"{keys.kind}({', '.join(metadata.schema.names_by_id[i] for i in ids)})"
    curve = Curve(
        kind=keys.kind,
        column_ids=ids,
        var_length_contribution=options.var_length_contribution or 8,
        max_output_bytes=options.max_output_size or MAX_INT,
    )
    return Strategy(text=text, ordering=Ordering(curve=curve), warnings=warnings)


def _is_same(order: SortOrder, fields: Sequence[SortField]) -> bool:
    return [_facts(field) for field in order.fields] == [_facts(field) for field in fields]


def _facts(field: SortField) -> tuple[int, str, str, str]:
    return field.source_id, str(field.transform), field.direction, field.null_order


def _sort_text(fields: Sequence[SortField], schema: Schema) -> str:
    return "sort by " + ", ".join(_field_text(field, schema) for field in fields)


def _field_text(field: SortField, schema: Schema) -> str:
    name = schema.names_by_id[field.source_id]
    term = name if isinstance(field.transform, Identity) else f"{field.transform}({name})"
    return f"{term} {field.direction.upper()} {field.null_order.replace('-', ' ').upper()}"


def _refuse(options: RewriteDataFilesOptions, names: Sequence[str], needed: str) -> None:
    for name in names:
        given = getattr(options, name.replace("-", "_"))
        if given is not None:
            raise OptionError(name, given=given, expected=f"it together with {needed}, or leave it out")
