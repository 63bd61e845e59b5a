"""Golden texts (`kit/golden.py`): what is compared, written and left over."""

import ast
from pathlib import Path

import pytest

from kit.golden import Golden, as_text, read_sections

TESTS = Path(__file__).parents[1]
REFUSED = "[test_other: a]\nkept\n\n[test_refused]\na: no\nb: never\n    at all\n\n[test_refused: branch]\n{}\n"


def asking(file, *asked, update=False):
    check = Golden(file, "test_refused", update=update)
    for one in asked:
        check(*one)
    check.finish(all_asked=True)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "test_x.golden.txt").write_text(REFUSED)
    return tmp_path / "test_x.golden.txt"


def test_same_texts(file):
    asking(file, ({"a": "no", "b": "never\nat all\n"},), ({}, "branch"))


def test_another_text_shows_its_diff(file):
    with pytest.raises(pytest.fail.Exception, match=r"(?s)\[test_refused\] of test_x.golden.txt.*-a: no\n\+a: yes\n"):
        asking(file, ({"a": "yes", "b": "never\nat all"},))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([({"a": "no", "b": "never\nat all"},)], "does not ask for"),
        ([("{}", "branch"), ("[]", "branch")], "with two texts"),
    ],
)
def test_unused_or_ambiguous(file, asked, says):
    with pytest.raises(AssertionError, match=says):
        asking(file, *asked)


def test_a_new_section_is_not_there(file):
    with pytest.raises(pytest.fail.Exception, match="new"):
        asking(file, ("text", "new"))


def test_update(file):
    asking(file, ("other",), ([1], "new"), update=True)
    assert read_sections(file) == {"test_other: a": "kept", "test_refused": "other", "test_refused: new": "[\n  1\n]"}
    asking(file, ("other",), ([1], "new"))


def test_no_text_has_a_head():
    with pytest.raises(AssertionError):
        as_text("a\n[test_b]\n")


def test_every_section_has_its_test():
    lost = []
    for golden in TESTS.rglob("*.golden.txt"):
        module = golden.with_name(golden.name.replace(".golden.txt", ".py"))
        tests = {node.name for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.FunctionDef)}
        lost += [f"{golden}: {one}" for one in read_sections(golden) if one.partition(": ")[0] not in tests]
    assert lost == []
