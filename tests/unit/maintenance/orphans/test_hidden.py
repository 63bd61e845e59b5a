import pickle

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.orphans.listing import hidden_names
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.transforms import Identity
from kit.cases import for_each

ROOT = "s3://bucket/wh/tbl"


def spec(*names: str, spec_id: int = 0) -> PartitionSpec:
    fields = (
        PartitionField(source_id=n + 1, field_id=1000 + n, name=name, transform=Identity())
        for n, name in enumerate(names)
    )
    return PartitionSpec(spec_id=spec_id, fields=tuple(fields))


def is_hidden(name: str, *specs: PartitionSpec, root: str = ROOT) -> bool:
    rule = pickle.loads(pickle.dumps(hidden_names(root, specs)))
    return rule.mask(pa.array([f"{root.rstrip('/')}/{name}"])).tolist() == [True]


@for_each(
    "name",
    [
        "_x",
        ".x",
        "data/_temporary/f",
        "data/.x/f",
        "data/_SUCCESS",
        ".icekeep/trash/r/files/f",
        "a/.part-0.crc",
        "dir/",
        "/",
    ],
)
def test_names_that_begin_with_an_underscore_or_a_dot_hide_what_is_below_them(name):
    assert is_hidden(name)


@for_each("name", ["x", "data/f.parquet", "data/a_b/c.d", "data/x=_y/f", "metadata/v1.metadata.json"])
def test_other_names_are_not_hidden(name):
    assert not is_hidden(name)


@for_each("name", ["data/_c2=x/f", "data/_c2=_x/f", "data/_c2=.x/f", "data/a=1/_c2=x/.d=3/f"])
def test_directories_of_partitions_are_not_hidden_whatever_their_values(name):
    """Java's testHiddenPartitionPaths."""
    assert not is_hidden(name, spec("_c2"), spec(".d", spec_id=1))


def test_partitions_of_older_specs_are_not_hidden_either():
    """Java's testHiddenPartitionPathsWithPartitionEvolution."""
    old, new = spec("_c2"), spec("_c3", spec_id=1)
    assert not is_hidden("data/_c2=x/f", new, old)
    assert not is_hidden("data/_c3=x/f", new, old)
    assert is_hidden("data/_c2=x/f", new)


@for_each("name", ["data/_c2/f", "data/_c2_trunc/f", "data/_c2", "data/_c22=1/f", "data/x_c2=1/.f", "data/_C2=x/f"])
def test_names_that_only_begin_like_a_partition_are_hidden(name):
    """Java's testHiddenPathsStartingWithPartitionNamesAreIgnored."""
    assert is_hidden(name, spec("_c2"))


def test_names_of_fields_are_found_as_writers_encode_them():
    assert not is_hidden("data/_a+b%2F.c=1/f", spec("_a b/.c"))
    assert not is_hidden("data/_x.y(z)=1/f", spec("_x.y(z)"))
    assert not is_hidden("data/_a%7Eb=1/f", spec("_a~b"))
    assert is_hidden("data/_xxy(z)=1/f", spec("_x.y(z)"))


def test_icekeeps_own_directory_is_hidden_under_any_spec():
    assert is_hidden("data/.icekeep/f", spec(".icekeep"))
    assert is_hidden(".icekeep", spec(".icekeep"))


@for_each("root", ["s3://bucket", "s3://bucket/", "file:///wh/_tbl", "/wh/.tbl/", "s3://bucket/.a//b"])
def test_only_names_below_the_listed_directory_count(root):
    """Java's TestFileSystemWalker: the root of a bucket, hidden directories above."""
    assert not is_hidden("data/f", root=root)
    assert is_hidden("data/_f", root=root)


def test_other_spellings_of_the_directory_change_nothing():
    rule = hidden_names("s3://bucket/wh/tbl/", [])
    spelled = ["s3a://bucket/wh/tbl/_x", "s3://bucket//wh///tbl//_x", "s3a://bucket/wh/tbl/x", "s3://bucket//wh/tbl//x"]
    assert rule.mask(pa.array(spelled)).tolist() == [True, True, False, False]
    assert rule.mask(pa.chunked_array([spelled[:1], spelled[2:]])).tolist() == [True, False, False]


@given(st.lists(st.text("ab_.=", min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_path_is_hidden_by_its_parts_alone(parts):
    specs = (spec("_a"), spec(".b", spec_id=1))
    expected = any(p[0] in "_." and not p.startswith(("_a=", ".b=")) for p in parts)
    assert is_hidden("/".join(parts), *specs) == expected
