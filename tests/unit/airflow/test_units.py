import json

from hypothesis import given
from hypothesis import strategies as st

from icekeep.airflow.units import JobOnTable, Unit, packed, units_of, unpacked
from kit.cases import cases


def call(table: str, job: str = "compact", *, submit: bool = False) -> JobOnTable:
    return JobOnTable(job=job, table=table, submit=submit)


def test_a_unit_is_a_table_in_the_order_in_which_tables_are_due():
    calls = [call("c.d.z"), call("c.d.z", "expire_snapshots"), call("c.d.a", submit=True)]
    assert units_of(calls, 2) == [Unit(name="c.d.z", calls=tuple(calls[:2])), Unit(name="c.d.a", calls=(calls[2],))]


def test_where_tables_are_many_small_ones_share_a_unit_before_large_ones_do():
    calls = [call(f"c.d.t{number}", submit=number < 2) for number in range(10)]
    assert [unit.name for unit in units_of(calls, 5)] == [
        "c.d.t0",
        "c.d.t1",
        "c.d.t2 and 2 more",
        "c.d.t5 and 2 more",
        "c.d.t8 and 1 more",
    ]


@cases(60)
@given(
    st.lists(st.builds(call, st.integers(0, 30).map("c.d.t{}".format), submit=st.booleans()), max_size=60),
    st.integers(1, 12),
)
def test_units_hold_each_call_once_and_are_not_more_than_wanted(calls, count):
    units = units_of(calls, count)
    assert sorted(units_calls := [one for unit in units for one in unit.calls], key=str) == sorted(calls, key=str)
    is_mixed = any(one.submit for one in calls) and not all(one.submit for one in calls)
    assert len(units) <= max(count, 2 if is_mixed else 1)
    tables = [table for unit in units for table in {one.table for one in unit.calls}]
    assert len(tables) == len({*tables})
    for table in tables:
        assert [one for one in units_calls if one.table == table] == [one for one in calls if one.table == table]


def test_a_unit_comes_out_of_xcom_as_it_went_in():
    units = [
        Unit(name="c.d.t", calls=(JobOnTable(job="compact", table="c.d.t", arguments=("--where=é",), until_ms=7),))
    ]
    through = json.loads(json.dumps(packed(units)))
    assert [unpacked(one) for one in through] == units
