"""What people see of results on a terminal: every line fits, no word is broken, nothing that says something is lost unsaid."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.operations.console.looks import OutputStyle
from icekeep.operations.console.terminal import print_tables
from icekeep.rendered import Details
from kit.cases import for_each

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def printed(monkeypatch):
    """What a terminal of some columns shows."""

    def show(values, width=80, title="compact db.t: done", **look):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        stream = Terminal()
        print_tables(title, values, stream, OutputStyle(**look))
        return stream.getvalue()

    return show


@pytest.fixture
def lines(printed):
    return lambda *args, **kwargs: [_STYLE.sub("", line) for line in printed(*args, **kwargs).splitlines()]


RESULT = {
    "snapshot_id": 4711,
    "rewritten_data_files_count": 1095,
    "rewritten_bytes_count": 3 * 2**20,
    "failed_data_files_count": 0,
    "error": None,
    "estimated": {"cpu_ms": 1_500, "started_ms": 1_767_225_600_000},
}


def test_people_get_labels_one_unit_and_times_with_their_zone(lines):
    assert lines(RESULT) == [
        "compact db.t: done",
        "snapshot id           4711",
        "rewritten data files  1,095",
        "rewritten bytes       3.0 MiB",
        "estimated cpu         1.5 s",
        "estimated started     2026-01-01 00:00:00 UTC",
        "2 values that are 0 or unknown are not shown; --wide shows everything",
    ]


def test_wide_shows_all(lines):
    shown = lines(RESULT, is_wide=True)
    assert "failed data files     0" in shown
    assert "error                 -" in shown
    assert not any("--wide" in line for line in shown)


ROWS = [
    {
        "table": f"warehouse.{'very_' * n}long_namespace.events_{n}",
        "score": str(30 * n),
        "bytes": 2**20 * n,
        "requests": 1_000 + n,
        "manifests": 10 * n,
        "note": None,
        "why": "thirty of thirty data files are small beside others, and nobody has looked at them for weeks",
    }
    for n in range(1, 5)
]


@for_each("width", [40, 60, 80, 120, 250])
def test_a_table_fits_any_width_and_breaks_no_word(width, lines):
    shown = lines({"tables": ROWS}, width)
    assert max(map(len, shown)) <= width
    said = {word for line in shown if "small beside" in line or "thirty" in line for word in line.split()}
    whole = {"MiB", *(word for row in ROWS for text in row.values() for word in str(text).split())}
    assert {word for word in said - whole if word.isalpha()} == set()


def test_what_matters_least_goes_first_and_is_named(lines):
    assert any(line.startswith("no room for: requests, manifests; --wide") for line in lines({"tables": ROWS}, 65))
    assert not any("no room" in line for line in lines({"tables": ROWS}, 250))
    # A column that says nothing is no loss.
    assert not any("note" in line for line in lines({"tables": ROWS}, 250))
    assert any("note" in line for line in lines({"tables": ROWS}, 250, is_wide=True))


def test_names_are_cut_in_the_middle_and_numbers_never(lines):
    shown = lines({"tables": ROWS}, 60)
    assert any(re.match(r"warehou\S*….*events_4 ", line) for line in shown)
    assert any("4.0 MiB" in line for line in shown)


def test_columns_are_those_that_are_asked_for(lines):
    shown = lines({"tables": ROWS}, 80, columns=("requests", "table"))
    head = next(line for line in shown if line.startswith("table  ") or "requests" in line)
    assert head.split() == ["table", "requests"]
    with_unknown = lines({"tables": ROWS}, 200, columns=("nope", "table"))
    assert with_unknown[:-1] == lines({"tables": ROWS}, 200, columns=("table",))
    assert with_unknown[-1].startswith("--columns: no table here has a column 'nope'; there are table, score, ")


def test_details_are_named_and_left_to_those_who_ask(lines):
    values = {"tables": ROWS, "why": Details(["one", "two"]), "next": "look again"}
    assert "why (2): --wide shows them" in lines(values)
    assert lines(values)[-1] == "next  look again"
    assert "two" in lines(values, is_wide=True)


@for_each(
    ("name", "value", "is_coloured"),
    [
        ("status", "failed", True),
        ("score", "42", True),
        ("faults_count", 3, True),
        ("faults_count", 0, False),
        ("job", "failed", False),
    ],
)
def test_colour_says_what_is_well_and_what_is_not(name, value, is_coloured, printed):
    row = {"a": "x", name: value, "b": 1}
    assert bool(re.search(r"\x1b\[3[123]m", printed({"rows": [row]}))) == is_coloured
    assert "31m" not in printed({"rows": [row]}, color="never")


def test_piped_output_ignores_flags_except_forced_colour():
    plain = io.StringIO()
    print_tables("compact db.t: done", RESULT, plain)
    for look in (OutputStyle(is_wide=True), OutputStyle(columns=("bytes",)), OutputStyle(color="never")):
        piped = io.StringIO()
        print_tables("compact db.t: done", RESULT, piped, look)
        assert piped.getvalue() == plain.getvalue()
    coloured = io.StringIO()
    print_tables("compact db.t: done", RESULT, coloured, OutputStyle(color="always"))
    assert "rewritten data files" in coloured.getvalue()


def test_nobody_who_wants_no_colour_gets_any(monkeypatch, printed):
    assert "31m" in printed({}, title="compact db.t: failed")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    print_tables("compact db.t: failed", {}, stream)
    assert "31m" not in stream.getvalue()


@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.text("ab_./é", max_size=60), "n": st.integers(0, 2**40), "text": st.text("ab c", max_size=200)}
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(40, 200),
)
def test_no_line_is_wider_than_the_terminal(rows, width):
    stream = Terminal()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        patched.setenv("TERM", "xterm")
        print_tables("t: done", {"rows": rows}, stream)
    assert all(len(_STYLE.sub("", line)) <= width for line in stream.getvalue().splitlines())
