"""The lists of what peers' tests require, in `tests/interop/peers/`, and the command that compares them with releases."""

import importlib.util
import io
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from kit import peers
from kit.cases import for_each
from kit.pages import anchors
from kit.peers import VERDICTS, Suite, compare, is_test, methods_in, named_tests, open_source, read_suite, suites
from kit.shell import ROOT

COMMAND = ROOT / "tests" / "interop" / "peers" / "compare.py"
METHODS = [(name, file, method, what) for name, suite in suites().items() for file, method, what in suite.methods()]


def test_there_is_a_list_for_each_of_the_five_peers():
    assert {*suites()} == {"iceberg_compaction", "iceberg_go", "iceberg_java", "pyiceberg", "trino"}
    assert {path.suffix for path in peers.LISTS.iterdir() if path.is_file()} == {".py", ".yaml"}


def test_each_method_has_a_requirement_and_one_verdict():
    wrong = [
        (name, file, method)
        for name, file, method, what in METHODS
        if len(what.requires.split()) < 3 or len(what.verdicts) != 1 or not (what.tests or what.reason.strip())
    ]
    assert wrong == []


def test_each_test_that_a_list_names_is_there():
    assert len({test for *_, what in METHODS for test in what.tests}) > 200
    assert [(name, method, test) for name, _, method, what in METHODS for test in what.tests if not is_test(test)] == []


def test_no_test_is_named_twice_for_one_method():
    assert [(name, method) for name, _, method, what in METHODS if len({*what.tests}) < len(what.tests)] == []


def test_each_page_that_is_named_is_there_and_has_the_place():
    """A verdict `better` needs a page."""
    for name, _, method, what in METHODS:
        links = re.findall(r"docs/[\w/.-]+\.md(?:#[\w-]+)?", what.reason)
        assert links or what.better is None, (name, method)
        for link in links:
            page, _, anchor = link.partition("#")
            assert (ROOT / page).is_file(), (name, method, link)
            assert not anchor or anchor in anchors(ROOT / page), (name, method, link)


@pytest.fixture
def command():
    """The module of the command, which lies beside the lists."""
    spec = importlib.util.spec_from_file_location("compare_peers", COMMAND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_printed_counts_match_lists(command, capsys):
    assert command.main([]) == 0
    head, *rows = capsys.readouterr().out.splitlines()[: len(suites()) + 2]
    assert head.split() == ["suite", "same", "better", "differs", "not", "applicable", "missing", "methods"]
    printed = {re.split(r"\s{2,}", row)[0]: [int(count) for count in row.split()[-6:]] for row in rows}
    for suite in suites().values():
        verdicts = [verdict for _, _, method in suite.methods() for verdict in method.verdicts]
        assert printed.pop(suite.suite) == [*(verdicts.count(verdict) for verdict in VERDICTS), len(verdicts)]
    assert printed.pop("all")[-1] == len(METHODS)
    assert printed == {}


def test_the_command_reports_how_a_release_differs(command, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(
        peers, "suites", lambda: {"peer": suite_of({"TestExpire.java": {"methods": listed("testOne")}})}
    )
    monkeypatch.setattr(command, "suites", peers.suites)
    path = tmp_path / "TestExpire.java"
    path.write_text("@Test void testOne() {}")
    assert command.main([f"peer={tmp_path}"]) == 0
    path.write_text("@Test void testOne() {}\n@Test void testAnotherThing() {}")
    assert command.main([f"peer={tmp_path}"]) == 1
    assert "  new       TestExpire.java: testAnotherThing" in capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit):
        command.main(["nobody=/"])


def test_a_test_is_found_by_its_path_and_name():
    assert is_test("unit/test_peers.py::test_a_test_is_found_by_its_path_and_name")
    assert is_test("unit/spec/retention.txt::Refs do not age by default")
    assert not is_test("unit/spec/retention.txt::Refs")
    assert not is_test("unit/test_peers.py::test_without_a_body")
    assert not is_test("unit/test_nothing.py::test_x")
    assert "TestMemoryCatalog::test_nothing_is_found_in_a_catalog_that_was_never_used" in named_tests(
        ROOT / "tests" / "unit" / "catalog" / "test_memory.py"
    )


JAVA = """
class TestExpire {
  @Test
  public void testOne() throws IOException {
    table.expireSnapshots();
  }

  private void helper() {}

  @TestTemplate
  @SuppressWarnings("unchecked")
  public void testTwo() {}

  @ParameterizedTest
  @ValueSource(ints = {1, 2})
  void testThree(int version) {}
}
"""
RUST = """
#[tokio::test]
async fn test_one() {}

#[test]
#[should_panic]
fn test_two() {}

fn helper() {}
"""
PYTHON = """
def test_one(): pass

class TestExpire:
    async def test_two(self): pass

def helper(): pass
"""
GO = """
func TestOne(t *testing.T) {}

func (s *DeleteSuite) TestTwo() {}

func helper() {}
"""


@for_each(
    ("language", "text", "names"),
    [
        ("java", JAVA, ["testOne", "testTwo", "testThree"]),
        ("rust", RUST, ["test_one", "test_two"]),
        ("python", PYTHON, ["test_one", "test_two"]),
        ("go", GO, ["TestOne", "DeleteSuite.TestTwo"]),
    ],
)
def test_tests_are_found_in_each_language(language, text, names):
    assert [*methods_in(text, language)] == names
    assert methods_in("", language) == {}


def suite_of(files: dict, **more) -> Suite:
    return peers.msgspec.convert(
        {
            "suite": "Peer",
            "repository": "https://peer.example/peer",
            "tags": "v([0-9.]+)",
            "read": "1.0",
            "language": "java",
            "watch": "Expire",
            "files": files,
            **more,
        },
        Suite,
    )


def listed(*names: str) -> dict:
    return {name: {"requires": "what it is about", "missing": "a test"} for name in names}


def test_new_gone_renamed_and_moved_tests_are_reported(tmp_path):
    suite = suite_of(
        {
            "v*/TestExpire.java": {"methods": listed("testOne", "testTwoOfThem", "testSomethingElse", "testMoved")},
            "TestOther.java": {"methods": listed("testFour"), "about": "expire"},
            "TestGone.java": {"methods": listed("testFive")},
        },
        passed_over={"TestExpireLater.java": "it needs a cluster"},
    )
    (tmp_path / "v4.0").mkdir()
    (tmp_path / "v4.10").mkdir()
    (tmp_path / "v4.0" / "TestExpire.java").write_text("")
    (tmp_path / "v4.10" / "TestExpire.java").write_text(JAVA)
    (tmp_path / "TestOther.java").write_text(
        "@Test void testFour() { expire(); }\n@Test void testMoved() { expire(); }\n@Test void testRows() {}\n"
    )
    for name in ("TestExpireNow", "TestExpireLater"):
        (tmp_path / f"{name}.java").write_text("@Test void testSix() {}")
    assert [str(change) for change in compare(suite, open_source(tmp_path))] == [
        "new file  TestExpireNow.java -> 1 tests",
        "gone file TestGone.java",
        "gone      v*/TestExpire.java: testSomethingElse",
        "moved     v*/TestExpire.java: testMoved -> TestOther.java",
        "new       v*/TestExpire.java: testThree",
        "renamed   v*/TestExpire.java: testTwoOfThem -> testTwo",
    ]


def test_a_checkout_and_archives_of_it_are_read_alike(tmp_path):
    suite = suite_of({"src/v*/TestExpire.java": {"methods": listed("testOne", "testTwo", "testThree")}})
    (tmp_path / "src" / "v1").mkdir(parents=True)
    (tmp_path / "src" / "v1" / "TestExpire.java").write_text(JAVA)
    with zipfile.ZipFile(tmp_path / "below.jar", "w") as archive:
        archive.writestr("v1/TestExpire.java", JAVA)
    with tarfile.open(tmp_path / "around.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("peer-1.0/src/v1/TestExpire.java")
        member.size = len(JAVA)
        archive.addfile(member, io.BytesIO(JAVA.encode()))
    for source in (tmp_path, tmp_path / "around.tar.gz", tmp_path / "below.jar"):
        assert compare(suite, open_source(source)) == []


@pytest.mark.process
def test_the_newest_release_is_cloned_and_no_candidate_of_one(command, tmp_path):
    made = tmp_path / "made"
    git = ["git", "-C", str(made), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "init", "--quiet", str(made)], check=True)
    for tag in ("v0.9.0", "v0.10.0", "v0.11.0-rc1"):
        (made / "TestExpire.java").write_text(tag)
        for words in (["add", "."], ["commit", "--quiet", "--message", tag], ["tag", tag]):
            subprocess.run([*git, *words], check=True)
    repository = made.as_uri()
    for tags, content in ((r"v([0-9]+\.[0-9]+\.[0-9]+)", "v0.10.0"), (None, "v0.11.0-rc1")):
        suite = suite_of({}, repository=repository, tags=tags)
        cloned = command.clone(suite, command.newest_release(suite), tmp_path / content)
        assert open_source(Path(cloned)).read("TestExpire.java") == content
        assert open_source(Path(cloned) / ".git").paths == ["TestExpire.java"]
    with pytest.raises(SystemExit, match="has no tag like w"):
        command.newest_release(suite_of({}, repository=repository, tags="w"))


def test_a_method_that_is_listed_twice_is_an_error(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("suite: Peer\nfiles:\n  a.java:\n    methods:\n      testOne: {}\n      testOne: {}\n")
    with pytest.raises(ValueError, match="testOne: listed twice"):
        read_suite(path)
