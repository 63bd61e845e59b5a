"""The charts of the page: what is drawn, and what is said of it to those who do not see it."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.health.values import DataHealth, SizeBucket
from icekeep.maintenance.history import GrowthPoint, TableTotals
from icekeep.reports.page.charts import ages_chart, growth_charts, round_step, runs_chart, scores_chart, sizes_chart
from icekeep.spec.types import DAY_MS, HOUR_MS, MIB
from kit.cases import cases
from kit.reports import NOW_MS, bare_table, full_history, full_run, full_table


def bars(chart):
    """By class the titles of the bars or dots."""
    root = ElementTree.fromstring(chart.svg)
    groups = [g for g in root.iter("g") if (g.get("class") or "").startswith("color-")]
    return {g.get("class"): [title.text for title in g.iter("title")] for g in groups}


def label(chart):
    return ElementTree.fromstring(chart.svg).get("aria-label")


def data_of(**files):
    """Files by powers of two, `k20=3`: three of 1 MiB or more; the target is 512 MiB."""
    buckets = [SizeBucket(least_bytes=1 << int(name[1:]), files_count=n, bytes=0) for name, n in files.items()]
    return DataHealth(target_file_bytes=512 * MIB, histogram=tuple(buckets))


def points(values, name="data_files_count", step_ms=2 * DAY_MS):
    nothing = GrowthPoint(
        timestamp_ms=0, snapshot_id=0, data_files_count=None, bytes=None, delete_files_count=None, metadata_bytes=None
    )
    return [replace(nothing, timestamp_ms=NOW_MS + n * step_ms, **{name: value}) for n, value in enumerate(values)]


def test_files_of_each_size_are_a_bar_of_the_kind_that_it_is():
    chart = sizes_chart([data_of(k20=3, k28=1, k29=2, k30=4)])
    assert bars(chart) == {
        "color-0": ["1 MiB to 2 MiB: 3 files"],
        "color-1": ["256 MiB to 512 MiB: 1 file", "512 MiB to 1 GiB: 2 files"],
        "color-2": ["1 GiB to 2 GiB: 4 files"],
    }
    assert label(chart).startswith("Data files by size: 1 MiB to 2 MiB: 3 files; 256 MiB")


def test_sizes_without_a_file_have_their_place():
    heights = [float(x) for x in re.findall(r'<rect x="([\d.]+)"', sizes_chart([data_of(k20=1, k25=1)]).svg)]
    few = [float(x) for x in re.findall(r'<rect x="([\d.]+)"', sizes_chart([data_of(k20=1, k21=1)]).svg)]
    assert heights[1] - heights[0] > 4.5 * (few[1] - few[0])


def test_file_sizes_add_up_by_their_relation_to_target():
    small = replace(data_of(k20=5), target_file_bytes=MIB)
    chart = sizes_chart([data_of(k20=3), small])
    assert (chart.svg, chart.summary) == ("", "8 files of 1 MiB to 2 MiB: 3 smaller than the target, 5 about right")
    chart = sizes_chart([data_of(k20=3, k29=1), small])
    assert bars(chart) == {
        "color-0": ["1 MiB to 2 MiB: 3 files"],
        "color-1": ["1 MiB to 2 MiB: 5 files", "512 MiB to 1 GiB: 1 file"],
    }
    assert "1 MiB to 2 MiB: 8 files" in label(chart)


def test_files_of_one_size_are_a_sentence():
    chart = sizes_chart([data_of(k29=1)])
    assert (chart.svg, chart.summary, chart.legend) == ("", "1 file of 512 MiB to 1 GiB: about right", ())


def test_without_a_file_there_is_no_chart():
    assert sizes_chart([data_of()]) is None


def test_scores_are_counted_in_tens_by_their_bands():
    tables = [replace(bare_table(), score=score) for score in (0.0, 9.9, 49.9, 50.0, 79.9, 80.0, 99.9, 100.0)]
    chart = scores_chart(tables)
    assert bars(chart) == {
        "color-0": ["score 0 to 9: 2 tables", "score 40 to 49: 1 table"],
        "color-1": ["score 50 to 59: 1 table", "score 70 to 79: 1 table"],
        "color-2": ["score 80 to 89: 1 table", "score 90 to 100: 2 tables"],
    }


def test_a_table_with_a_fault_is_broken_whatever_its_score():
    assert len(scores_chart([bare_table()]).legend) == 3
    chart = scores_chart([bare_table(), replace(full_table(), score=55.0), replace(bare_table(), score=55.0)])
    assert bars(chart) == {
        "color-1": ["score 50 to 59: 1 table"],
        "color-2": ["score 90 to 100: 1 table"],
        "color-3": ["score 50 to 59: 1 table, broken"],
    }
    assert chart.legend[-1] == ("color-3", "broken: it has faults")
    assert label(chart) == "Tables by score: 2 tables of 50 to 59; 1 table of 90 to 100; 1 table broken"


def test_tables_are_counted_by_the_age_of_their_last_maintenance():
    def table(days):
        seen = full_table().last_maintenance[0]
        return replace(full_table(), last_maintenance=(replace(seen, timestamp_ms=NOW_MS - days * DAY_MS),))

    chart = ages_chart([table(0), table(3), table(6), table(400), bare_table()], NOW_MS)
    assert bars(chart) == {
        "color-0": ["1 day: 1 table", "7 days: 2 tables", "older: 1 table"],
        "color-1": ["never: 1 table"],
    }


def test_growth_has_line_per_figure_and_marks_maintenance():
    history = full_history()
    charts = growth_charts(history.growth, history.runs)
    assert [chart.title for chart in charts] == [
        "Data files",
        "Bytes of data and deletes",
        "Delete files",
        "Bytes of metadata",
    ]
    assert all(
        "M" in ElementTree.fromstring(chart.svg).find(".//g[@class='color-0']/path").get("d") for chart in charts
    )
    first = charts[0]
    assert first.summary == "10 on 2026-03-05, 49 on 2026-09-20"
    assert label(first) == f"Data files over time: {first.summary}"
    assert bars(first)["color-1"][0].startswith("maintenance on 03-")
    assert "at most" in charts[2].summary


def test_unknown_value_has_no_point_and_empty_series_no_chart():
    assert growth_charts(points([None, 3, None]), []) == ()
    assert growth_charts(points([0, 0, 0]), []) == ()
    assert growth_charts(points([5, 6], step_ms=0), []) == ()
    [chart] = growth_charts(points([5, None, 7]), [])
    assert chart.summary == "5 on 2026-09-21, 7 on 2026-09-25"


def test_commits_of_one_day_are_told_with_their_times():
    [chart] = growth_charts(points([5, 7], step_ms=HOUR_MS), [])
    assert chart.summary == "5 on 09-21 14:13, 7 on 09-21 15:13"


def test_a_clock_that_was_wrong_does_not_turn_the_line_around():
    [chart] = growth_charts(points([5, 6, 7])[::-1], [])
    assert chart.summary == "5 on 2026-09-21, 7 on 2026-09-25"
    [right] = growth_charts(points([5, 6, 7]), [])
    assert chart.svg == right.svg


def test_a_peak_is_told():
    [chart] = growth_charts(points([5, 90, 7]), [])
    assert chart.summary.endswith(", at most 90 on 2026-09-23")


def test_runs_are_pairs_of_bars_the_oldest_first():
    runs = [full_run(0), full_run(1), replace(full_run(2), before=None), replace(full_run(3), before=full_run(3).after)]
    chart = runs_chart(runs)
    told = ["2026-09-11: 46 before, 3 after", "2026-09-21: 45 before, 3 after"]
    assert bars(chart) == {"color-0": told, "color-1": told}
    assert runs_chart(runs[2:]) is None


def test_run_leaving_no_files_keeps_titles_of_others():
    emptied = replace(full_run(1), after=TableTotals(data_files_count=0))
    chart = runs_chart([full_run(0), emptied])
    assert bars(chart)["color-1"] == ["2026-09-21: 45 before, 3 after"]


@given(st.integers(0, 10**15), st.booleans())
@cases(100)
def test_a_scale_has_few_lines(most, is_bytes):
    step = round_step(most, is_bytes=is_bytes)
    assert step * 4 >= most
    assert step == 1 or step * 4 / 2.5 < most


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**60)), min_size=2, max_size=8))
@cases(30)
def test_chart_is_well_formed_and_inside_its_box(values):
    for chart in growth_charts(points(values, "bytes"), []):
        root = ElementTree.fromstring(chart.svg)
        [line] = root.findall(".//g[@class='color-0']/path")
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", line.get("d"))]
        assert all(-1 <= number <= 270 for number in numbers)


@pytest.mark.parametrize("chart", [sizes_chart([data_of(k20=3, k29=1)]), *growth_charts(points([1, 5, 2]), [])])
def test_a_chart_has_nothing_but_its_drawing(chart):
    root = ElementTree.fromstring(chart.svg)
    assert {one.tag for one in root.iter()} <= {"svg", "g", "path", "rect", "text", "circle", "title"}
    names = {name for one in root.iter() for name in one.attrib}
    assert not names & {"id", "style", "xmlns", "fill", "stroke", "width"} - {"width"}
