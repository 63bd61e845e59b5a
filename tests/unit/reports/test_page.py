"""The page of a report: all that the report has is on it, foreign text stays text, and nothing comes from elsewhere."""

import re
import subprocess
import sys
from base64 import b64encode
from functools import cache
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import UsageError
from icekeep.health.values import DataHealth
from icekeep.maintenance.check.faults import CLASSES
from icekeep.reports.job import report
from icekeep.reports.page.page import filled_report, report_page
from icekeep.reports.values import TableHistory
from kit.browser import Page
from kit.cases import cases, for_each
from kit.reports import LAKE, PICTURE, bare_table, full_history, full_table, lake, not_read, report_of
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "</style></details></title>",
    "{{ 7 * 7 }}{% raw %}",
    "a & b &lt;",
    "javascript:alert(1)",
    "\0\x1b[2J\r\n\u202egpj.exe",
    "\ud800",
    "Größe.表_ä",
)


def rendered(report, **more):
    return filled_report(report, **more).html


def full_report(name: str = "lake.db.full", said: str = "it is so", **changed: object):
    return report_of(
        full_table(name, said=said),
        bare_table("lake.db.bare"),
        catalogs=(said,),
        currency="EUR",
        not_read=(not_read(name, said),),
        tables_count=3,
        histories=(full_history(name, said=said),),
        **changed,
    )


def visible(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def test_every_table_is_in_the_list_and_has_a_part_of_its_own():
    page = Page(rendered(full_report()))
    links = [value for value in page.values("href") if value.startswith("#t-")]
    assert {*links} == {"#t-1", "#t-2"}
    ids = page.values("id")
    assert len(ids) == len({*ids})
    assert {value[1:] for value in page.values("href") if value.startswith("#")} <= {*ids}
    assert set(page.values("aria-labelledby")) <= {*ids}
    for name in ("lake.db.full", "lake.db.bare"):
        # The list, the part; that of the full one is also among those with something to do, and among those not read.
        assert page.text.count(name) >= 2


def test_what_the_report_has_is_on_the_page():
    page = Page(rendered(full_report()))
    for words in (
        "42 broken",
        "100 healthy",
        "invalid-table",
        "101 it is so: 1",
        "208 it is so: 2",
        "12.5%",
        "120.6 KiB",
        "7.5",
        "And 10 more that keep less.",
        "And 11 older runs.",
        "200 of 5,000 commits",
        "45 → 3",
        "9.0 MiB → 8.0 MiB",
        "freed bytes 4.0 KiB",
        "deleted files 5",
        "0.2500 EUR",
        "not known",
        "2 more.",
    ):
        assert words in page.text, words


@for_each("said", HOSTILE)
def test_foreign_text_changes_nothing_but_text(said):
    plain, hostile = Page(rendered(full_report())), Page(rendered(full_report(f"lake.db.{said}", said)))
    assert hostile.shape == plain.shape
    assert hostile.text.count(visible(said)) >= 40
    assert len(hostile.of("script")) == len(hostile.of("style")) == 1


def named(said):
    """Of a table whose texts are all foreign, without charts of its own, which take most of the time."""
    data = DataHealth(target_file_bytes=1)
    return rendered(report_of(full_table(f"c.{said}", said=said, data=data), not_read=(not_read(said, said),)))


PLAIN = cache(lambda: Page(named("x")).shape)


@given(st.text(min_size=1, max_size=30))
@example("<script>")
@cases(100)
def test_no_name_makes_a_tag(said):
    page = Page(named(said))
    assert page.shape == PLAIN()
    assert visible(said) in page.text


def test_the_page_loads_nothing_and_runs_nothing_but_its_own():
    text = rendered(full_report(said="http://elsewhere/x.js"))
    page = Page(text)
    names = {name for _, attributes in page.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")} | (names & {"src", "srcset", "style", "xlink:href"})
    assert {value for value in page.values("href") if not value.startswith("#")} == {"data:,"}
    [policy] = [one["content"] for one in page.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    style, script = (re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1] for tag in ("style", "script"))
    for name, part in (("style", style), ("script", script)):
        digest = b64encode(sha256(part.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "url(" not in re.sub(r"url\(#\w+\)", "", style)


def test_the_page_is_ascii_and_the_same_each_time():
    first, second = (rendered(full_report(said="Größe \U0001f9ca")) for _ in range(2))
    assert first == second
    assert first.isascii()
    assert "Größe \U0001f9ca" in Page(first).text


def test_a_catalog_without_tables_says_so():
    page = Page(rendered(report_of()))
    assert "There is no table in lake." in page.text
    assert not page.of("table") + page.of("details") + page.of("figure")


def test_of_tables_that_cannot_be_read_the_reasons_are_told():
    page = Page(
        rendered(report_of(not_read=(not_read("lake.db.one", "it is spoilt"), not_read("away.*", "no answer"))))
    )
    for words in ("No table could be read.", "lake.db.one", "it is spoilt", "away.*", "no answer"):
        assert words in page.text
    assert not page.of("table")


def test_one_table_is_open_and_several_are_not():
    assert [one for one in Page(rendered(report_of(full_table()))).of("details") if "open" in one]
    several = report_of(full_table("c.a"), full_table("c.b"))
    assert not [one for one in Page(rendered(several)).of("details") if "open" in one]


def test_a_report_without_histories_or_prices_tells_what_it_has():
    page = Page(
        rendered(report_of(replace(full_table(), jobs=tuple(replace(j, cost=None) for j in full_table().jobs))))
    )
    assert "Last maintenance" in page.text
    assert "Growth is plotted" not in page.text
    assert not [title for tag, title in page.texts if tag == "th" and title == "Costs"]


def test_why_a_history_is_not_there_is_told():
    history = TableHistory(table="lake.db.full", not_read="the store is away")
    assert "its history: the store is away" in Page(rendered(report_of(full_table(), histories=(history,)))).text


def test_headings_descend_by_one_and_table_headers_are_scoped():
    page = Page(rendered(full_report()))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    assert {one.get("scope") for one in page.of("th")} == {"col", "row"}
    assert all(
        one.get("role") == "img" and one["aria-label"]
        for one in page.of("svg")
        if one.get("aria-hidden") != "true" and one.get("viewbox") != "0 0 12 12"
    )


def test_freed_and_replaced_bytes_are_distinguished():
    rewrite = replace(full_table().jobs[0], freed_bytes=0, replaced_bytes=3 << 20)
    text = Page(rendered(report_of(replace(full_table(), jobs=(rewrite,))))).text
    assert "Replaces 3.0 MiB, which expiration frees." in text
    assert "Frees 0" not in text


def test_job_command_is_in_summary_and_table_part():
    job = replace(full_table().jobs[0], command="icekeep compact --table lake.db.full")
    page = Page(rendered(report_of(full_table(jobs=(job, full_table().jobs[1]), faults=()))))
    assert "".join(text for tag, text in page.texts if tag == "code").count(job.command) == 2
    # And the one that says what the job does.
    assert len([one for one in page.of("span") if one.get("class") == "command"]) == 3


def test_small_files_are_those_that_compact_takes():
    data = replace(full_table().data, small_files_count=1_000, small_files_together_count=7)
    page = Page(rendered(report_of(replace(full_table(), data=data))))
    told = [text for tag, text in page.texts if tag in ("dt", "dd", "span")]
    at = told.index("Small, for compact")
    assert "".join(told[at + 1 : at + 3]) == "7 1,000 below the target"
    assert "7 that compact would rewrite" in page.text


def test_tiny_duration_is_not_shown_as_zero():
    job = replace(full_table().jobs[0], cpu_ms=20)
    text = Page(rendered(report_of(replace(full_table(), jobs=(job,))))).text
    assert "Takes under 0.1 s of a core" in text
    assert "0.0 s" not in text


def test_where_to_read_on_is_a_command_to_copy():
    text = Page(rendered(full_report())).text
    assert text.count("icekeep help invalid-table") == 2
    for job in ("compact", "rewrite_manifests", "remove_orphan_files"):
        assert f"icekeep help {job}" in text
    assert "icekeep help expire_snapshots" not in text


def test_of_each_fault_it_is_told_what_must_hold_and_what_to_do():
    page = Page(rendered(full_report()))
    text = page.text.replace("\n", " ")
    for number in (101, 208):
        for part in (CLASSES[number].rule, CLASSES[number].readers, CLASSES[number].mend):
            assert part.replace("`", "") in text
    assert ("code", "icekeep repair") in page.texts


def test_a_fault_of_a_later_version_has_its_name_alone():
    fault = replace(full_table().faults[0], fault_id=999)
    page = Page(rendered(report_of(full_table(faults=(fault,)))))
    assert "999 it is so: 2" in page.text
    assert "What must hold" not in page.text


def test_maintenance_run_looks_same_without_its_snapshots():
    run = replace(full_history().runs[0], run_id="compact-1", made_by="icekeep 0.1.0, run compact-1, policy nightly")
    gone = replace(run, made_by=None, before=None, after=None, policy="nightly", snapshots_count=0)
    counted = {"rewritten_data_files_count": 12, "added_data_files_count": 2, "rewritten_bytes_count": 4096}
    runs = (
        replace(run, policy="nightly"),
        replace(run, policy=None),
        replace(gone, figures=counted),
        replace(run, run_id=None, made_by="Spark 3.5.5"),
    )
    history = replace(full_history(), runs=runs, growth=())
    page = Page(rendered(report_of(full_table(), histories=(history,))))
    assert page.text.count("nightly (icekeep)") == 2
    assert "by hand (icekeep)" in page.text
    assert "Spark 3.5.5" in page.text
    assert "run compact-1" not in page.text
    assert "12 replaced by 2" in page.text
    assert "4.0 KiB replaced by 0 B" in page.text


def test_growth_is_plotted_for_largest_tables_only():
    tables = [full_table(f"c.t{n}", data=replace(full_table().data, data_files_bytes=n + 1)) for n in range(52)]
    few = replace(full_history(), growth=full_history().growth[:5], runs=())
    report = report_of(*tables, histories=tuple(replace(few, table=one.table) for one in tables))
    page = Page(rendered(report, detailed_count=6))
    assert (
        sum(
            one["aria-label"].startswith("Bytes of metadata over time") for one in page.of("svg") if "aria-label" in one
        )
        == 4
    )
    assert "Growth is plotted for the 4 largest of 52 tables." in page.text
    assert "The 6 tables with the lowest scores; the other 46 are in the list above." in page.text


def test_a_table_with_much_to_tell_takes_little_room():
    assert len(rendered(report_of(full_table(), histories=(full_history(),)))) < 80_000


def test_the_picture_of_the_readme_can_be_made_anew():
    page = Page(report_page(report(lake(days=3), no_spark, histories=True)))
    for habit in LAKE:
        assert f"lake.{habit.name}" in page.text
    assert "lake.legacy.exports" in page.text
    assert PICTURE.stat().st_size < 300_000


@pytest.mark.nightly
def test_page_of_500_tables_stays_below_ten_megabytes():
    tables = [full_table(f"catalog.namespace.table_{number:04}") for number in range(500)]
    histories = tuple(full_history(one.table) for one in tables)
    text = rendered(report_of(*tables, histories=histories, currency="EUR"))
    assert len(text) < 10_000_000
    assert len(Page(text).of("details")) == 501


def test_without_jinja_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"package 'jinja2' is not installed; icekeep\[report\] brings it"):
        report_page(report_of())


@pytest.mark.process
def test_commands_that_make_pages_are_imported_without_jinja():
    code = "import sys; sys.modules.update(jinja2=None, markupsafe=None)\n"
    code += "from icekeep.operations.commands import demo, report, serve"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
