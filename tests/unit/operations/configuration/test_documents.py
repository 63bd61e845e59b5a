import traceback
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType

from icekeep.errors import ConfigError, UsageError
from icekeep.operations.configuration.documents import Entry, checked, parse_document, read_document
from icekeep.operations.configuration.shape import Size, Span, Text, Texts
from kit.cases import for_each


def document(text: str) -> Entry:
    entry = parse_document(text, "c.yaml")
    assert entry is not None
    return entry


def test_an_entry_knows_the_path_of_its_key_and_its_line():
    entry = document("a:\n  - b\n  - c: 1\n").mapping()["a"].each()[1].mapping()["c"]
    assert entry.key_path == "a[1].c"
    assert entry.place == "c.yaml, line 3"


def test_scalars_keep_the_text_that_was_written():
    below = document("a: NO\nb: 010\nc: 2026-01-01\nd: '5'\n").mapping()
    assert [below[key].scalar() for key in "abcd"] == ["NO", "010", "2026-01-01", "5"]
    digits = "1" * 5000
    assert checked(document(f"a: {digits}"), dict[str, Any]).keys() == {"a"}


@for_each("text", ["", "# nothing\n", "~", "---\n"])
def test_a_file_without_values_is_no_document(text):
    assert parse_document(text, "c.yaml") is None


def test_a_key_that_is_given_twice_is_an_error_with_its_path():
    with pytest.raises(ConfigError, match=r"'a\.b': is given twice \(c\.yaml, line 3\)"):
        document("a:\n  b: 1\n  b: 2\n")


class Below(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    check: int | UnsetType = UNSET
    compact: str | UnsetType = UNSET


class Shape(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Text
    whole: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    price: Annotated[float, Meta(ge=0)] | UnsetType = UNSET
    on: bool | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET
    below: Below | UnsetType = UNSET
    many: dict[str, dict[str, Below]] | UnsetType = UNSET
    each: list[Below | None] | UnsetType = UNSET
    span: Span | UnsetType | None = UNSET
    size: Size | UnsetType = UNSET


@for_each(
    ("text", "key_path", "problem"),
    [
        ("{}", ".name", "is missing"),
        ("{nam: x}", "nam", "there is no such key; did you mean 'name'?"),
        ("{name: x, below: {x: 1}}", "below.x", "there is no such key; there is check, compact (c.yaml, line 1)"),
        ("{name: x, below: {compcat: 1}}", "below.compcat", "there is no such key; did you mean 'compact'?"),
        ("{name: 5}", "name", "should be text, but is a number"),
        ("{name: yes}", "name", "should be text, but is true or false"),
        ("{name: 2026-01-01}", "name", "should be text, but is a date"),
        ("{name: }", "name", "should be text, but is no value"),
        ("{name: '  '}", "name", "is empty"),
        ("{name: x, below: y}", "below", "should be keys with values, but is text"),
        ("[1]", "", "should be keys with values, but is a list"),
        ("{name: x, texts: y}", "texts", "should be a list, but is text"),
        ("{name: x, texts: []}", "texts", "is empty"),
        ("{name: x, texts: [y, 5]}", "texts[1]", "should be text, but is a number"),
        ("{name: x, whole: '3'}", "whole", "should be a whole number, but is text"),
        ("{name: x, whole: 1.5}", "whole", "should be a whole number, but is a number"),
        ("{name: x, whole: 010}", "whole", "should be a whole number in decimal digits alone, with no 0 before them"),
        ("{name: x, whole: 1_000}", "whole", "should be a whole number in decimal digits alone"),
        ("{name: x, whole: 22:00}", "whole", "should be a whole number in decimal digits alone"),
        ("{name: x, whole: %s}" % ("1" * 5000), "whole", "should be a whole number in decimal digits alone"),
        ("{name: x, whole: -1}", "whole", "is -1; give a whole number of 0 or more"),
        ("{name: x, price: -0.5}", "price", "is -0.5; give a number of 0 or more"),
        ("{name: x, price: .inf}", "price", "should be a number in decimal digits alone"),
        ("{name: x, price: '1'}", "price", "should be a number, but is text"),
        ("{name: x, on: 1}", "on", "should be true or false, but is a number"),
        ("{name: x, span: 5}", "span", "should be a span such as 30m, 36h or 7d, but is a number"),
        ("{name: x, size: 5.5}", "size", "should be a whole number of bytes, or a size such as 2GiB, but is a number"),
        ("{name: x, many: {a: {b: }}}", "many.a.b", "should be keys with values, but is no value"),
        ("{name: x, many: {a: {b: {}}, c.d: {e: {}, f: {check: x}}}}", "many.c.d.f.check", "should be a whole number"),
        ("{name: x, each: [null, {check: x}]}", "each[1].check", "should be a whole number, but is text"),
    ],
)
def test_what_a_shape_does_not_take_is_an_error_with_its_path(text, key_path, problem):
    with pytest.raises(ConfigError) as caught:
        checked(document(text), Shape)
    assert str(caught.value).startswith(f"configuration key {key_path!r}: {problem}")
    assert "(c.yaml, line 1)" in str(caught.value)


def test_mistyped_key_is_suggested_for_missing_one():
    error = document("a:\n  tpye: sql\n").mapping()["a"].missing("type")
    assert (
        str(error) == "configuration key 'a.type': is missing; there is 'tpye': did you mean 'type'? (c.yaml, line 2)"
    )


@for_each(("text", "found"), [("[1]", "a list"), ("", "no value"), ("{b: 1}", "keys with values")])
def test_a_single_value_is_no_other(text, found):
    with pytest.raises(ConfigError, match=f"'a': should be a single value, but is {found}"):
        document(f"a: {text}").mapping()["a"].scalar()


@for_each(("text", "value"), [("true", True), ("off", False), ("Yes", True), ("FALSE", False)])
def test_booleans_are_yaml_s(text, value):
    assert document(f"a: {text}").mapping()["a"].plain() is value


@pytest.mark.parametrize("text", ["a: !!binary aGVsbG8=", "a: !mine x", "a: !!python/name:os.system"])
def test_a_tag_is_refused(text):
    with pytest.raises(ConfigError, match="has a tag"):
        document(text)


def test_a_tree_that_contains_itself_is_refused():
    with pytest.raises(ConfigError, match="nested deeper"):
        document("a: &a\n  b: *a\n")


@for_each("text", ["a: 's3cret", "token: *s3cret", "a: b: s3cret", "token: %s3cret", "\ts3cret", "a: \x07"])
def test_broken_yaml_is_an_error_that_does_not_repeat_the_text(text):
    with pytest.raises(UsageError, match=r"configuration file 'c\.yaml' is not YAML: ") as caught:
        document(text)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_values_do_not_show_in_a_repr():
    entry = document("token: s3cret\n")
    assert "s3cret" not in repr(entry)
    assert "s3cret" not in repr(entry.mapping())


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(UsageError, match=r"cannot read configuration file '.*nothing\.yaml': no such file"):
        read_document(str(tmp_path / "nothing.yaml"))
    with pytest.raises(UsageError, match=r"latin\.yaml': it is not UTF-8"):
        read_document(str(tmp_path / "latin.yaml"))


def test_aliases_are_read_as_what_they_stand_for():
    document = parse_document("a: &a {x: 1, y: [2, 3]}\nb: [*a, *a]", "f.yaml")
    assert document.plain()["b"] == [{"x": 1, "y": [2, 3]}] * 2


@for_each("levels", [5, 9, 15])
def test_aliases_of_aliases_have_an_end(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    with pytest.raises(
        ConfigError, match=r"makes the file expand to more than 10,000 entries through aliases; .* \(f.yaml, line 1\)"
    ):
        parse_document("\n".join(lines), "f.yaml")


def test_file_without_aliases_may_have_many_entries():
    assert len(parse_document("\n".join(f"k{n}: v" for n in range(12_000)), "f.yaml").mapping()) == 12_000


@for_each("text", ["[" * 5_000, "a: &a [*a]", "{a: " * 30 + "1" + "}" * 30])
def test_what_is_nested_without_end_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="is nested deeper than 20 levels"):
        parse_document(text, "f.yaml")
