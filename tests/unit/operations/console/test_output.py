import errno
import io
import json
import re
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from icekeep.errors import UsageError
from icekeep.operations.console import output
from icekeep.operations.console.output import (
    format_json,
    require_directory,
    write_result_file,
    write_text,
    written_at_once,
)
from icekeep.operations.console.terminal import print_tables
from icekeep.operations.console.values import format_value, plain_values
from icekeep.spec.types import format_bytes
from kit.cases import for_each
from kit.changes import thrown
from kit.runtime import FakeRuntime


class File(msgspec.Struct, frozen=True):
    file_path: str
    size_bytes: int
    record_count: int | None = None


class Nested(msgspec.Struct, frozen=True):
    target_bytes: int


class Plan(msgspec.Struct, frozen=True):
    snapshot_id: int | None
    sizes: Nested
    ref_names: tuple[str, ...] = ()
    files: tuple[File, ...] = ()


def tables(values):
    stream = io.StringIO()
    print_tables("compact db.t: done", plain_values(values), stream)
    return stream.getvalue()


@for_each(
    ("name", "value", "shown"),
    [
        ("rewritten_bytes_count", 536_870_912, "536,870,912 (512.0 MiB)"),
        ("file_size_in_bytes", 12, "12"),
        ("rewritten_data_files_count", 12_345, "12,345"),
        ("snapshot_id", 2_679_567_050_731_974_635, "2679567050731974635"),
        ("elapsed_ms", 1_234, "1.2 s"),
        ("max_ref_age_ms", 604_800_000, "604800000 (7d)"),
        ("max_snapshot_age_ms", 2**63 - 1, "no limit"),
        ("timestamp_ms", 1_767_225_600_000, "1767225600000 (2026-01-01T00:00:00Z)"),
        ("x", None, "-"),
        ("x", True, "yes"),
        ("x", 0.25, "0.25"),
        ("x", [], "-"),
        ("x", ["a", "b"], "a, b"),
        ("x", list(range(1000)), "0, 1, 2, 3, 4 ... (1,000 in all)"),
        ("x", [{"a": 1}, {"a": 2}], "2 items"),
        ("x", {"bytes": 2048, "b": "c"}, "bytes=2,048 (2.0 KiB), b=c"),
        ("x", "a\x1b[31m\nb", r"a\x1b[31m\nb"),
    ],
)
def test_a_field_s_name_tells_its_unit(name, value, shown):
    assert format_value(name, value) == shown


@for_each(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * 2**40, "3.0 TiB"),
        (5 * 2**50, "5.0 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_have_binary_units(size, shown):
    assert format_bytes(size) == shown


def test_a_table_shows_single_values_nested_ones_and_rows():
    plan = Plan(7, Nested(1024), ("a",), (File("/wh/[red]/f1", 2048, 5), File("/wh/f2", 10)))
    assert tables(plan) == (
        "compact db.t: done\n"
        "snapshot_id         7\n"
        "sizes.target_bytes  1,024 (1.0 KiB)\n"
        "ref_names           a\n"
        "\n"
        "files (2)\n"
        "file_path           size_bytes   record_count\n"
        "─────────────────────────────────────────────\n"
        "/wh/[red]/f1   2,048 (2.0 KiB)              5\n"
        "/wh/f2                      10              -\n"
    )


def test_seconds_are_not_shown_under_names_in_ms():
    shown = tables({"elapsed_ms": 800, "estimated": {"cpu_ms": 1_500}, "runs": [{"at_ms": 0, "elapsed_ms": 2_000}]})
    assert "elapsed        0.8 s\nestimated.cpu  1.5 s\n" in shown
    assert re.search(r"^at_ms +elapsed$", shown, re.MULTILINE)
    assert tables({"took": {"elapsed_ms": 800}, "started_ms": 1_767_225_600_000}).count("_ms") == 1
    assert format_value("x", {"elapsed_ms": 800}) == "elapsed=0.8 s"


def test_outside_a_terminal_nothing_is_cut_or_coloured():
    long_path = "/wh/" + "x" * 3000
    shown = tables(Plan(None, Nested(1), files=(File(long_path, 1),)))
    assert long_path in shown
    assert "\x1b" not in shown
    assert not any(line.endswith(" ") for line in shown.splitlines())


def test_a_long_list_of_texts_has_a_line_for_each():
    shown = tables(Plan(None, Nested(1), tuple(f"file{n}" for n in range(7))))
    assert "ref_names (7)\nfile0\nfile1\n" in shown


def test_more_rows_than_anybody_reads_are_left_to_json():
    shown = tables(Plan(None, Nested(1), files=tuple(File(f"f{n}", n) for n in range(1234))))
    assert "files (1,234)" in shown
    assert "... and 1,134 more; --output json has them all" in shown
    assert len(shown.splitlines()) < 120


def test_json_is_one_line_and_reads_back():
    document = plain_values(Plan(2**62, Nested(1), ("ü",), (File("a\nb", 1),)))
    text = format_json(document)
    assert "\n" not in text
    assert json.loads(text) == {
        "snapshot_id": "4611686018427387904",
        "sizes": {"target_bytes": 1},
        "ref_names": ["ü"],
        "files": [{"file_path": "a\nb", "size_bytes": 1, "record_count": None}],
    }


def test_what_json_has_not_becomes_text():
    assert plain_values({"a": object, "b": {1: 2}, "c": ValueError("x")})["c"] == "x"


ODD = {"result": {"status": "done", "tables": [{"name": "db.größe-表"}, {"name": "x\udc80"}]}}


@for_each("encoding", ["ascii", "iso-8859-1", "utf-8", "cp1252"])
def test_a_stream_of_any_encoding_takes_an_answer(encoding):
    for is_json in (True, False):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        if is_json:
            stream.write(format_json(ODD, encoding))
        else:
            print_tables("title", ODD["result"], stream)
        stream.flush()
        written = stream.buffer.getvalue()
        if is_json:
            assert json.loads(written) == ODD
        else:
            assert ("─" in written.decode(encoding)) == (encoding == "utf-8")
            assert r"\udc80" in written.decode(encoding)


def test_a_text_is_utf_8_in_any_locale():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-1")
    stream.write("a")
    write_text("größe-表", stream)
    assert stream.buffer.getvalue().decode() == "agröße-表"


def test_a_result_file_appears_at_once_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("before")
    write_result_file(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_result_file_replaces_link_without_following_it(tmp_path, monkeypatch):
    target, path = tmp_path / "another's", tmp_path / "result.json"
    target.write_text("precious")
    path.symlink_to(target)
    write_result_file(str(path), {"a": 1})
    assert (target.read_text(), path.is_symlink(), json.loads(path.read_text())) == ("precious", False, {"a": 1})
    # Not even one whose name was guessed.
    monkeypatch.setattr(output, "SYSTEM", FakeRuntime())
    (tmp_path / f".result.json.{FakeRuntime().new_uuid()}.tmp").symlink_to(target)
    with pytest.raises(UsageError):
        write_result_file(str(path), {"a": 2})
    assert (target.read_text(), json.loads(path.read_text())) == ("precious", {"a": 1})


def test_two_processes_of_one_number_write_two_files(tmp_path):
    path = str(tmp_path / "result.json")
    with written_at_once(path, "result file") as first, written_at_once(path, "result file") as second:
        first.write(b"one")
        second.write(b"other")
    assert (tmp_path / "result.json").read_text() == "one"
    assert [one.name for one in tmp_path.iterdir()] == ["result.json"]


@for_each("has_links", [True, False])
def test_what_took_a_new_file_s_name_meanwhile_stays(has_links, tmp_path, monkeypatch):
    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", thrown(PermissionError(errno.EPERM, "no links here")))
    for n, meanwhile in enumerate([None, "approved"]):
        path = tmp_path / f"{has_links}{n}.jsonl"
        refused = (
            nullcontext()
            if meanwhile is None
            else pytest.raises(UsageError, match=r"plan '.*' is there already; name another")
        )
        with refused, written_at_once(str(path), "plan", is_new=True) as stream:
            stream.write(b"plan")
            if meanwhile is not None:
                path.write_text(meanwhile)
        assert path.read_text() == (meanwhile or "plan")
        assert not [*tmp_path.glob(".*")]


def test_unwritable_result_file_is_refused_before_job(tmp_path):
    require_directory(str(tmp_path / "result.json"))
    for path in (tmp_path / "nowhere" / "result.json", tmp_path):
        with pytest.raises(UsageError, match=r"cannot write result file .*: (it is|there is) .*; give a file in a dir"):
            require_directory(str(path))
    with pytest.raises(UsageError, match="cannot write result file"):
        write_result_file(str(tmp_path / "nowhere" / "result.json"), {})
