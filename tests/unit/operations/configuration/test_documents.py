import traceback

import pytest

from icekeep.errors import ConfigError, UsageError
from icekeep.operations.configuration.documents import Entry, parse_document, read_document
from kit.cases import for_each


def document(text: str) -> Entry:
    entry = parse_document(text, "c.yaml")
    assert entry is not None
    return entry


def test_an_entry_knows_the_path_of_its_key_and_its_line():
    entry = document("a:\n  - b\n  - c: 1\n").mapping()["a"].sequence()[1].mapping()["c"]
    assert entry.key_path == "a[1].c"
    assert entry.place == "c.yaml, line 3"


def test_scalars_keep_the_text_that_was_written():
    below = document("a: NO\nb: 010\nc: 2026-01-01\nd: '5'\n").mapping()
    assert [below[key].scalar() for key in "abcd"] == ["NO", "010", "2026-01-01", "5"]


@for_each("text", ["", "# nothing\n", "~", "---\n"])
def test_a_file_without_values_is_no_document(text):
    assert parse_document(text, "c.yaml") is None


def test_a_key_that_is_given_twice_is_an_error_with_its_path():
    with pytest.raises(ConfigError, match=r"'a\.b': is given twice \(c\.yaml, line 3\)"):
        document("a:\n  b: 1\n  b: 2\n")


def test_an_unknown_key_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'a\.x': there is no such key; there is b, c \(c\.yaml, line 2\)"):
        document("a:\n  x: 1\n").mapping()["a"].mapping({"b", "c"})


def test_an_unknown_key_that_is_nearly_a_known_one_is_told_with_that():
    with pytest.raises(
        ConfigError, match=r"'a\.compcat': there is no such key; did you mean 'compact'\? \(c\.yaml, line 2\)"
    ):
        document("a:\n  compcat: 1\n").mapping()["a"].mapping({"check", "compact"})


def test_a_missing_key_that_was_mistyped_is_told_with_what_was_given():
    with pytest.raises(ConfigError, match=r"'a\.type': is missing; there is 'tpye': did you mean 'type'\? \(c\.yaml"):
        document("a:\n  tpye: sql\n").mapping()["a"].required("type")


def test_a_missing_key_is_an_error_with_the_path_that_it_would_have():
    with pytest.raises(ConfigError, match=r"'a\.name': is missing"):
        document("a:\n  x: 1\n").mapping()["a"].required("name")


@for_each(
    ("text", "question", "problem"),
    [
        ("a: [1]", lambda e: e.scalar(), "should be a single value, but is a list"),
        ("a:", lambda e: e.scalar(), "should be a single value, but is no value"),
        ("a: 5", lambda e: e.text(), "should be text, but is a number"),
        ("a: yes", lambda e: e.text(), "should be text, but is true or false"),
        ("a: '  '", lambda e: e.text(), "is empty"),
        ("a: x", lambda e: e.mapping(), "should be keys with values, but is text"),
        ("a: x", lambda e: e.sequence(), "should be a list, but is text"),
        ("a: '3'", lambda e: e.whole_number(minimum=0), "should be a whole number, but is text"),
        ("a: 1.5", lambda e: e.whole_number(minimum=0), "should be a whole number, but is a number"),
        ("a: 010", lambda e: e.whole_number(minimum=0), "should be a whole number"),
        (
            "a: 010",
            lambda e: e.whole_number(minimum=0),
            "should be a whole number in decimal digits alone, with no 0 before",
        ),
        ("a: 1_000", lambda e: e.whole_number(minimum=0), "should be a whole number in decimal digits alone"),
        ("a: 22:00", lambda e: e.whole_number(minimum=0), "should be a whole number in decimal digits alone"),
        ("a: -1", lambda e: e.whole_number(minimum=0), "is -1; give a whole number of 0 or more"),
        ("a: -0.5", lambda e: e.number(minimum=0), "is -0.5; give a number of 0 or more"),
        ("a: .inf", lambda e: e.number(minimum=0), "should be a number"),
        ("a: '1'", lambda e: e.number(minimum=0), "should be a number, but is text"),
        ("a: 1", lambda e: e.boolean(), "should be true or false, but is a number"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_both(text, question, problem):
    with pytest.raises(ConfigError, match=f"'a': {problem}"):
        question(document(text).mapping()["a"])


@for_each(("text", "value"), [("true", True), ("off", False), ("Yes", True), ("FALSE", False)])
def test_booleans_are_yaml_s(text, value):
    assert document(f"a: {text}").mapping()["a"].boolean() is value


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
    first, second = document.mapping()["b"].sequence()
    assert first.mapping()["x"].whole_number(minimum=0) == second.mapping()["x"].whole_number(minimum=0) == 1


@for_each("levels", [5, 9, 15])
def test_aliases_of_aliases_have_an_end(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    with pytest.raises(
        ConfigError, match=r"makes the file expand to more than 10,000 entries through aliases; .* \(f.yaml, line 1\)"
    ):
        parse_document("\n".join(lines), "f.yaml")


def test_a_file_without_aliases_may_have_as_many_entries_as_it_has():
    assert len(parse_document("\n".join(f"k{n}: v" for n in range(12_000)), "f.yaml").mapping()) == 12_000


@for_each("text", ["[" * 5_000, "a: &a [*a]", "{a: " * 30 + "1" + "}" * 30])
def test_what_is_nested_without_end_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="is nested deeper than 20 levels"):
        parse_document(text, "f.yaml")
