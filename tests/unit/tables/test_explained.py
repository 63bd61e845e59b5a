"""What `explain` of a scan's DataFrame prints before Spark's own plan."""

import sys
from typing import Any

from icekeep.planning.scan.report import plan_scan
from icekeep.tables.read import explaining, plan_text
from kit.no_spark import no_spark
from kit.row_deletes import add_deletes, position_deletes
from kit.tables import BY_KIND, add, data_file, memory_table


class Rows:
    """In the place of a DataFrame: says how it was asked for its plan."""

    def explain(self, extended: Any = None, mode: Any = None) -> None:
        sys.stdout.write(f"Spark's plan, {extended}, {mode}\n")


def test_what_is_read_of_the_table_comes_first_and_spark_s_plan_as_it_was_asked_for(capsys: Any) -> None:
    asked = []

    def plan() -> Any:
        asked.append(1)
        return plan_scan(add(memory_table(), "a", "b"), no_spark)

    rows = Rows()
    assert explaining(rows, "db.events", plan) is rows  # type: ignore[arg-type, comparison-overlap]
    assert not asked, "planned before anybody asks"
    rows.explain(mode="formatted")
    out = capsys.readouterr().out
    assert out.startswith("== icekeep: scan of db.events, snapshot ")
    assert out.endswith("Spark's plan, None, formatted\n")
    assert "data files   2 of 2 read, 200 B, up to 20 rows\n" in out


def test_the_text_says_what_each_step_left_out_and_which_deletes_are_applied() -> None:
    table = memory_table(spec=BY_KIND)
    for kind in ("x", "y", "z"):
        table = add(table, data_file(f"{kind}1", partition=(kind,)), data_file(f"{kind}2", partition=(kind,)))
    table = add_deletes(table, position_deletes("d", "x1", partition=("x",)), named=("x1",))
    text = plan_text("db.events", plan_scan(table, no_spark, where="kind = 'x'"))
    assert "manifests    2 of 4 opened\n" in text
    assert "data files   2 of 6 read, 200 B, up to 20 rows\n" in text
    assert "             left out: 4 with their manifests, 0 by their partition, 0 by bounds of their columns\n" in text
    assert "deletes      1 position delete files\n" in text
    assert "deletes      none\n" in plan_text("db.events", plan_scan(table, no_spark, where="kind = 'y'"))


def test_a_table_without_data_has_nothing_to_read() -> None:
    text = plan_text("db.events", plan_scan(memory_table(), no_spark))
    assert "no snapshot ==" in text
    assert "data files   0 of 0 read" in text
