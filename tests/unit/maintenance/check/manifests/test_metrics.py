"""What entries say of columns: bounds that are no values (225), crossed bounds (226) and counts that cannot be (227)."""

from unittest import mock

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.maintenance.check import manifests as metrics
from icekeep.maintenance.check.manifests import METRIC_COLUMNS, ColumnTypes, check_metrics
from icekeep.planning.manifests import STORED
from icekeep.spec.types import INT, LONG, STRING, UNKNOWN, UUID, decimal
from icekeep.spec.values import value_from_bytes
from kit.cases import cases

TYPES = {1: INT, 2: LONG, 3: STRING, 4: UUID, 5: decimal(9, 2), 6: UNKNOWN, 7: STRING, 8: LONG}
KNOWN = ColumnTypes(TYPES, frozenset(TYPES.keys() - {7}))
IDS = st.integers(0, 9)
BOUNDS = st.sampled_from([b"", b"a", b"b", b"\xff", b"\1\0\0\0", b"\2\0\0\0", b"\3\0\0\0\0\0\0\0", bytes(16)])
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            name: st.none() | st.dictionaries(IDS, BOUNDS if "bounds" in name else st.integers(-1, 3), max_size=5)
            for name in METRIC_COLUMNS
        }
    ),
    max_size=4,
)


def batch_of(entries):
    columns = [
        pa.array([None if e[n] is None else [*e[n].items()] for e in entries], STORED.field(n).type)
        for n in METRIC_COLUMNS
    ]
    return pa.RecordBatch.from_arrays(columns, names=[*METRIC_COLUMNS])


def told(entries, known=KNOWN):
    found = {}
    for number, row, detail in check_metrics(batch_of(entries), known):
        found.setdefault((number, row), detail)
    return found


def value(type_, bound):
    if bound is None:
        return None
    try:
        return value_from_bytes(type_, bound)
    except InvalidTableError:
        return None


def wrong_columns(entry):
    """The same, one column at a time."""
    wrong = {225: set(), 226: set(), 227: set()}
    counts, nulls, nans, lower, upper = ({} if entry[name] is None else entry[name] for name in METRIC_COLUMNS)
    for id_, type_ in TYPES.items():
        if type_ is not UNKNOWN:
            low, high = (value(type_, bounds.get(id_)) for bounds in (lower, upper))
            if (id_ in lower and low is None) or (id_ in upper and high is None):
                wrong[225].add(id_)
            if None not in (low, high) and type_ is not UUID and id_ in KNOWN.plain and low > high:
                wrong[226].add(id_)
        some = [one[id_] for one in (counts, nulls, nans) if id_ in one]
        if id_ in KNOWN.plain and any(n < 0 or (id_ in counts and n > counts[id_]) for n in some):
            wrong[227].add(id_)
    return wrong


@cases(200)
@given(ENTRIES)
def test_each_column_is_judged_as_if_it_were_alone(entries):
    expected = {
        (number, row): ", ".join(map(str, sorted(ids)))
        for row, entry in enumerate(entries)
        for number, ids in wrong_columns(entry).items()
        if ids
    }
    found = told(entries)
    assert found.keys() == expected.keys()
    assert all(f" {ids} " in found[key] for key, ids in expected.items())


def test_columns_of_one_type_are_looked_at_together():
    """A manifest of a wide table has few entries, each with thousands of bounds."""
    wide = {id_: STRING if id_ % 2 else LONG for id_ in range(1, 2001)}
    bounds = {id_: b"a" if id_ % 2 else bytes(8) for id_ in wide}
    counts = dict.fromkeys(wide, 1)
    entry = dict(zip(METRIC_COLUMNS, (counts, counts, {}, bounds, bounds), strict=True))
    with mock.patch.object(metrics, "decode_bounds", wraps=metrics.decode_bounds) as decoding:
        assert told([entry] * 2, ColumnTypes(wide, frozenset(wide))) == {}
    assert decoding.call_count == 4
