import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.storage.locations import canonical, is_under, join, local_path, parse_location
from kit.cases import cases, for_each

COMPONENTS = st.sampled_from(["a", "b", "t", "t1", "t10", "x=%2F", "c c", "é", ".", "..", ""])
PATHS = st.lists(COMPONENTS, max_size=6).map(lambda parts: "/" + "/".join(parts))


@for_each(
    ("location", "parts"),
    [
        ("file:///a/b", ("file", "", "/a/b")),
        ("file:/a/b", ("file", "", "/a/b")),
        ("/a/b", ("file", "", "/a/b")),
        ("FILE:///a", ("file", "", "/a")),
        ("file://localhost/a", ("file", "", "/a")),
        ("file://host/share", ("file", "host", "/share")),
        ("//a/b", ("file", "", "//a/b")),
        ("/a:b/c", ("file", "", "/a:b/c")),
        ("s3://bucket/db/t//x", ("s3", "bucket", "/db/t//x")),
        ("s3://bucket", ("s3", "bucket", "/")),
        ("hdfs://namenode:8020/a", ("hdfs", "namenode:8020", "/a")),
        ("abfss://files@account.dfs.core.windows.net/a", ("abfss", "files@account.dfs.core.windows.net", "/a")),
        ("memory:/a", ("memory", "", "/a")),
        ("file:///a?b#c%20d", ("file", "", "/a?b#c%20d")),
        ("file:///a\nb", ("file", "", "/a\nb")),
    ],
)
def test_a_location_has_a_scheme_an_authority_and_a_path(location, parts):
    assert parse_location(location) == parts


@for_each("location", ["", "a/b", "./a", "file:a/b", "file:", "~/a", "a\0b", "/a\0b", "file:///\0"])
def test_a_location_that_is_relative_or_carries_nul_is_refused(location):
    with pytest.raises(InvalidTableError, match="location"):
        parse_location(location)


@for_each(
    "spellings",
    [
        ("file:/a", "file:///a", "/a", "//a", "/a/", "/./a", "/b/../a", "/../a", "file://localhost/a", "FILE:///a"),
        ("s3://b/k", "s3a://b/k", "s3n://b/k", "s3://b//k", "s3://b/k/", "s3://b/x/../k"),
        ("abfs://f@a/k", "abfss://f@a/k", "wasbs://f@a/k"),
        ("file:///", "/", "//", "/..", "/."),
    ],
)
def test_spellings_of_one_file_have_one_key(spellings):
    assert len({canonical(s) for s in spellings}) == 1


def test_different_files_have_different_keys():
    files = [
        "/a",
        "/A",
        "/a/b",
        "/a%2Fb",
        "/a b",
        "/a%20b",
        "s3://a/a",
        "s3://b/a",
        "gs://a/a",
        "file://host/a",
        "hdfs:///a",
    ]
    assert len({canonical(f) for f in files}) == len(files)


@cases(200)
@given(PATHS)
def test_a_key_is_the_key_of_itself(path):
    assert canonical(canonical(path)) == canonical(path)


@cases(200)
@given(PATHS, PATHS)
def test_location_under_root_extends_components_of_root(path, root):
    components, root_components = (canonical(p)[len("file://") :].strip("/").split("/") for p in (path, root))
    root_components = [c for c in root_components if c]
    components = [c for c in components if c]
    expected = len(components) > len(root_components) and components[: len(root_components)] == root_components
    assert is_under(path, root) == expected


@for_each(
    ("location", "root", "expected"),
    [
        ("/wh/tbl/data/f", "/wh/tbl", True),
        ("file:/wh/tbl/data/f", "file:///wh/tbl/", True),
        ("/wh/tbl2/f", "/wh/tbl", False),
        ("/wh/tb", "/wh/tbl", False),
        ("/wh/tbl", "/wh/tbl", False),
        ("/wh/tbl/", "/wh/tbl", False),
        ("/wh/tbl/../other/f", "/wh/tbl", False),
        ("/wh/other/../tbl/f", "/wh/tbl", True),
        ("/wh//tbl/./f", "/wh/tbl", True),
        ("/a", "/", True),
        ("/", "/", False),
        ("s3a://b/t/f", "s3://b/t", True),
        ("s3://b2/t/f", "s3://b/t", False),
        ("s3://b/t/f", "/t", False),
    ],
)
def test_a_file_is_under_a_root_by_whole_components(location, root, expected):
    assert is_under(location, root) is expected


@for_each(
    ("parts", "joined"),
    [
        (("file:/wh/", "db", "t"), "file:/wh/db/t"),
        (("file:///", "a"), "file:/a"),
        (("s3://b", "k/l"), "s3://b/k/l"),
        (("/wh", "...", "a..b"), "/wh/.../a..b"),
        (("/wh",), "/wh"),
    ],
)
def test_joining_appends_with_single_slashes(parts, joined):
    assert join(*parts) == joined
    assert parse_location(joined)


@for_each("part", ["", "/abs", "..", "a/../b", "a//b", ".", "a/", "../x"])
def test_joining_never_climbs_out(part):
    with pytest.raises(InvalidTableError, match="not a plain relative path"):
        join("/wh", part)


def test_a_local_path_is_the_literal_path():
    assert local_path("file:///a/b=x%2Fy") == "/a/b=x%2Fy"
    assert local_path("file:/a") == local_path("/a") == "/a"


@for_each("location", ["s3://b/k", "file://host/share", "hdfs:///a", "memory:/a"])
def test_what_is_not_on_this_machine_has_no_local_path(location):
    with pytest.raises(UnsupportedError, match=location):
        local_path(location)
