"""Values as a notebook shows them: the numbers, units and rows of the command line, as tables that hold no markup of others."""

import re
from importlib import import_module
from io import StringIO
from typing import Any, get_args

import msgspec

import icekeep
from icekeep.health.job import table_health
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.expire.job import plan_expire_snapshots
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.console.notebook import FOR_PEOPLE, html_of
from icekeep.operations.console.terminal import print_tables
from icekeep.operations.console.values import plain_values
from icekeep.operations.jobs import JOBS, resolve
from icekeep.planning.scan.report import plan_scan
from icekeep.rendered import Rendered
from kit.browser import Page
from kit.cases import for_each
from kit.job_world import World
from kit.runtime import no_spark


class Told(Rendered, frozen=True, kw_only=True):
    status: str = "done"
    rewritten_bytes_count: int = 1536
    elapsed_ms: int = 2500
    note: str = "<script>alert(1)</script>"
    groups: tuple[dict[str, Any], ...] = ({"partition": "day=<b>", "files_count": 1234},)
    files: tuple[str, ...] = tuple(f"file-{number}" for number in range(250))


def cells(html: str) -> list[str]:
    return re.findall(r"<td[^>]*>(.*?)</td>", html)


def test_numbers_have_units_and_texts_are_no_markup() -> None:
    html = Told()._repr_html_()
    assert cells(html)[:8] == [
        "status",
        "done",
        "rewritten_bytes_count",
        "1,536 (1.5 KiB)",
        "elapsed",
        "2.5 s",
        "note",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
    ]
    assert "<script" not in html
    assert "day=<b>" not in html
    assert "<b>Told</b>" in html


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """What has names of others where names of fields stand, too."""

    table: str = "db.a\x1b[31m"
    counts: dict[str, int] = msgspec.field(default_factory=lambda: {"db.b\x1b[31m": 1})
    rows: tuple[dict[str, Any], ...] = ({"db.c\u202e": {"db.d\x07": "db.e\x1b[31m"}},)
    lists: dict[str, tuple[str, ...]] = msgspec.field(default_factory=lambda: {"db.f\x9b": ("db.g\x1b[31m: gone",)})


def test_control_characters_are_escaped_as_in_terminal() -> None:
    stream = StringIO()
    print_tables("db.h\x1b[31m", plain_values(Named()), stream)
    text, html = stream.getvalue(), html_of(Named())
    assert [char for char in text.replace("\n", "") + html if not char.isprintable()] == ["\n"] * html.count("\n")
    for name in ("a\\x1b[31m", "b\\x1b[31m", "c\\u202e", "d\\x07=db.e\\x1b[31m", "f\\x9b", "g\\x1b[31m: gone"):
        assert f"db.{name}" in text
        assert f"db.{name}" in html
    assert "db.h\\x1b[31m" in text


def test_rows_are_a_table_with_numbers_on_the_right() -> None:
    html = Told()._repr_html_()
    assert "<th>partition</th><th>files_count</th>" in html
    assert '<td style="text-align: right; white-space: nowrap">1,234</td>' in html
    assert "<details open><summary>groups (1)</summary>" in html


def test_long_lists_are_folded_and_cut() -> None:
    html = Told()._repr_html_()
    assert "<details><summary>files (250)</summary>" in html
    assert "file-99\n" in html + "\n" or "file-99</pre>" in html
    assert "file-100" not in html
    assert "... and 150 more" in html


def public_values() -> list[type]:
    found = (getattr(icekeep, name) for name in icekeep.__all__)
    return [one for one in found if isinstance(one, type) and issubclass(one, msgspec.Struct)]


@for_each(
    "value", [one for one in public_values() if one.__name__.endswith(("Result", "Plan", "Health", "Explanation"))]
)
def test_every_result_and_plan_of_the_door_is_shown_to_notebooks(value: type) -> None:
    assert issubclass(value, Rendered)


def test_notebook_shows_same_tables_as_command_line() -> None:
    """The functions that commands name for people are those that notebooks use, for all types that the door has."""
    by_type = {}
    for one in (*JOBS.values(), *COMMANDS.values()):
        if one.for_people is None:
            continue
        function = resolve(one.for_people)
        hint = next(iter(import_module(function.__module__).__dict__[function.__name__].__annotations__.values()))
        for type_ in get_args(hint) or (hint,):
            by_type[type_.__name__] = one.for_people
    public = {one.__name__ for one in public_values()}
    assert {name: where for name, where in by_type.items() if name in public} == {
        name: where for name, where in FOR_PEOPLE.items() if name != "TableHealth"
    }


def test_real_values_of_a_table_are_well_formed() -> None:
    world = World(3)
    values = [
        plan_scan(world.table, no_spark),
        table_health(world.table, no_spark),
        check(world.table, no_spark),
        plan_compact(world.table, no_spark),
        plan_expire_snapshots(world.table, no_spark),
        compact(world.table, no_spark),
    ]
    for value in values:
        html = html_of(value)
        assert type(value).__name__ in html
        Page(html)
        assert len(html) < 60_000
