"""Which parts of an open data file a filter needs, by what the file itself says of the values in each.

On a table that is sorted, and whose files are large, a filter needs a few row groups of many.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from icekeep.formats.base import FileReader
from icekeep.formats.filter import evaluate
from icekeep.spec.filters.evaluators import file_may_match
from icekeep.spec.filters.expressions import Expression, predicates
from icekeep.spec.types import PrimitiveType


def parts_that_may_match(
    reader: FileReader, columns: pa.Schema, parts: Sequence[int] | None, bound: Expression
) -> Sequence[int] | None:
    """Those of some parts that may hold a row which matches a filter; nothing is decoded for that.

    Args:
        columns: the file's, with the field ids that they have for the table.
        parts: positions, `None` for all of the file, which is also what is returned where nothing is known of any part.
        bound: a filter over rows.
    """
    types = {
        predicate.field.field_id: predicate.field.type
        for predicate in predicates(bound)
        if isinstance(predicate.field.type, PrimitiveType)
    }
    known = reader.part_metrics(columns, types)
    if known is None:
        return parts
    may_match = evaluate(
        bound, lambda one: np.array([file_may_match(one, metrics) for metrics in known], np.bool_), len(known)
    )
    asked = range(len(known)) if parts is None else parts
    # One that is not there is an error of whoever reads it.
    return [number for number in asked if number >= len(known) or may_match[number]]
