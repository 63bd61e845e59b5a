import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.dangling import DeleteScopes, MinNumbers, is_dangling
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.matched_deletes import reaches, reaching_deletes
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.reach import (
    AppliedDelete,
    applied_delete,
    is_deletion_vector,
    may_name,
    only_data_file,
    own_path,
    partition_key,
    path_digest,
)
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.spec.transforms import Identity, Void
from icekeep.spec.types import STRING
from icekeep.spec.values import lower_bound, upper_bound
from kit.cases import for_each
from kit.examples import check_examples

POSITION, EQUALITY = FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES


def _spec(spec_id, *transforms):
    fields = (
        PartitionField(source_id=n, field_id=999 + n, name=f"p{n}", transform=t) for n, t in enumerate(transforms, 1)
    )
    return PartitionSpec(spec_id=spec_id, fields=tuple(fields))


# Spec 0 is unpartitioned, 3 as well, since all its fields were dropped (v1); 1 and 2 have one field each.
SPECS = {0: _spec(0), 1: _spec(1, Identity()), 2: _spec(2, Identity()), 3: _spec(3, Void())}
PARTITIONS = {0: [()], 1: [("x",), ("y",), (None,)], 2: [("x",)], 3: [(None,)]}


def entry(path, number, *, spec_id=1, partition=("x",), content=FileContent.DATA, **file):
    return ManifestEntry(
        status=Status.EXISTING,
        sequence_number=number,
        data_file=DataFile(
            file_path=path,
            file_format=file.pop("file_format", "PARQUET"),
            content=content,
            spec_id=spec_id,
            partition=partition,
            record_count=1,
            file_size_in_bytes=1,
            **file,
        ),
    )


def positions(number, path="p", **file):
    return entry(path, number, content=POSITION, **file)


def equality(number, path="e", **file):
    return entry(path, number, content=EQUALITY, **{"equality_ids": (1,), **file})


def vector(number, data="a", offset=4, path="v.puffin", **file):
    more = {"referenced_data_file": data, "content_offset": offset, "content_size_in_bytes": 9, **file}
    return positions(number, path, file_format="puffin", **more)


def bounded(lower, upper):
    field_id = DELETE_FILE_PATH.field_id
    return {
        "lower_bounds": None if lower is None else {field_id: lower},
        "upper_bounds": None if upper is None else {field_id: upper},
    }


A = entry("a", 5)


def dangling_deletes(deletes, data, parts=1):
    """As a commit finds them: deletes and data files come in several manifests, and are looked at one by one."""
    asked = DeleteScopes.union(DeleteScopes.of(deletes[n::parts], SPECS) for n in range(parts))
    least = MinNumbers.union(MinNumbers.of(asked, data[n::parts]) for n in range(parts))
    of_table = min((e.sequence_number for e in data), default=9)
    return tuple(delete for delete in deletes if is_dangling(delete, least, of_table, SPECS))


_ELSEWHERE = [{"partition": ("y",)}, {"partition": (None,)}, {"spec_id": 2}]


@for_each("make", [positions, equality])
@for_each("where", _ELSEWHERE)
def test_deletes_stay_in_their_spec_and_partition(make, where):
    assert not reaches(make(9, **where), A, SPECS)


@for_each("make", [positions, vector])
@for_each("where", _ELSEWHERE)
def test_single_file_delete_must_share_spec_and_partition(make, where):
    # Iceberg Java fails scans of such tables as well (PR #16957).
    of_a = {"referenced_data_file": "a"} if make is positions else {}
    delete = make(9, **of_a, **where)
    for asked in (lambda: reaches(delete, A, SPECS), lambda: reaching_deletes([A], [delete], SPECS)):
        with pytest.raises(InvalidTableError, match=r"is for data file 'a', which has another partition spec or part"):
            asked()
    # Nor does anybody know whether it is dangling, so it stays.
    assert dangling_deletes([delete], [A]) == ()
    # One that is too old, or whose data file is gone, reaches nothing wherever it lies.
    older, lost = make(4, **of_a, **where), make(9, referenced_data_file="b", **where)
    for harmless in (older, lost):
        assert not reaches(harmless, A, SPECS)
        assert dangling_deletes([harmless], [A]) == (harmless,)
    assert reaching_deletes([A], [older, lost], SPECS) == {"a": ()}


@pytest.mark.parametrize(("spec_id", "partition"), [(0, ()), (3, (None,))])
def test_only_unpartitioned_equality_deletes_are_global(spec_id, partition):
    assert reaches(equality(6, spec_id=spec_id, partition=partition), A, SPECS)
    assert not reaches(equality(5, spec_id=spec_id, partition=partition), A, SPECS)
    assert not reaches(positions(6, spec_id=spec_id, partition=partition), A, SPECS)
    # An equality delete of a partition does not reach files that are in none.
    assert not reaches(equality(6), entry("a", 5, spec_id=0, partition=()), SPECS)


@for_each("bounds", [(None, None), (b"b", None), (None, b"b"), (b"b", b"d"), (b"d", b"b"), (b"x", b"y"), (b"b", b"")])
def test_path_bounds_that_differ_keep_no_delete_from_a_data_file(bounds):
    """They may be wrong, or the wrong way round (ClickHouse #118113), and rows that are deleted would come back."""
    file = positions(5, **bounded(*bounds)).data_file
    assert all(may_name(file, path) for path in "abcde")


def test_own_path_is_referenced_file_or_equal_bounds():
    paths = [bounded(b"data/b", b"data/b"), bounded(b"data/a", b"data/b"), bounded(b"data/b", None), {}]
    assert [own_path(positions(5, **bounds).data_file) for bounds in paths] == [b"data/b", None, None, None]
    named = {"referenced_data_file": "data/é"}
    assert [own_path(positions(5, **named, **bounds).data_file) for bounds in paths] == ["data/é".encode()] * 4
    assert own_path(vector(5, "a").data_file) == b"a"
    assert own_path(equality(5, **paths[0]).data_file) is None


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4), st.one_of(st.none(), st.integers(1, 4)))
def test_truncated_path_bounds_never_lose_a_path(paths, length):
    try:
        lower = lower_bound(STRING, min(paths), length)
        upper = upper_bound(STRING, max(paths), length)
    except UnicodeEncodeError:
        return
    whole = positions(5, **bounded(lower, upper)).data_file
    # As writers do that cut an upper bound and forget to increment it.
    careless = positions(5, **bounded(lower, max(paths)[:length].encode())).data_file
    assert all(may_name(file, path) for file in (whole, careless) for path in paths)


def test_vector_replaces_position_but_not_equality_deletes():
    deletes = [positions(5), positions(9, "q"), equality(6), vector(7)]
    assert reaching_deletes([A], deletes, SPECS) == {"a": (deletes[2], deletes[3])}
    # A vector that is too old, or of another file, takes the place of nothing.
    for other in (vector(4), vector(7, "b")):
        assert reaching_deletes([A], [*deletes[:3], other], SPECS) == {"a": tuple(deletes[:3])}


def test_vectors_in_one_puffin_file_are_told_apart_by_offset():
    b = entry("b", 5)
    of_a, of_b = vector(7, "a", 4), vector(7, "b", 40)
    assert reaching_deletes([A, b], [of_a, of_b], SPECS) == {"a": (of_a,), "b": (of_b,)}
    assert applied_delete(of_a) == AppliedDelete("v.puffin", 4, 7)
    assert len({applied_delete(of_a), applied_delete(of_b), applied_delete(replace(of_a, sequence_number=8))}) == 3
    assert pickle.loads(pickle.dumps(applied_delete(of_a))) == applied_delete(of_a)


@for_each(("file", "expected"), [("puffin", True), ("PUFFIN", True), ("PARQUET", False), ("avro", False)])
def test_a_deletion_vector_is_positions_in_puffin(file, expected):
    assert is_deletion_vector(positions(1, file_format=file).data_file) is expected
    assert not is_deletion_vector(entry("a", 1, file_format=file).data_file)


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidTableError, match="'a' has 2 deletion vectors"):
        reaching_deletes([A], [vector(7), vector(8, path="w.puffin")], SPECS)
    with pytest.raises(InvalidTableError, match=r"'v\.puffin' does not say which data file"):
        reaches(vector(7, None), A, SPECS)
    with pytest.raises(InvalidTableError, match=r"'v\.puffin' does not say which data file"):
        may_name(vector(7, None).data_file, "a")
    with pytest.raises(InvalidTableError, match="'a' is live more than once"):
        reaching_deletes([A, A], [], SPECS)
    for make, name in ((equality, "e"), (positions, "p")):
        with pytest.raises(InvalidTableError, match=f"'{name}' has partition spec 7"):
            reaches(make(9, spec_id=7), A, SPECS)
        with pytest.raises(InvalidTableError, match=f"'{name}' has partition spec 7"):
            reaching_deletes([], [make(9, spec_id=7)], SPECS)
    with pytest.raises(IcekeepBug, match="'b' is a data file"):
        reaches(entry("b", 9), A, SPECS)
    with pytest.raises(IcekeepBug, match="'p' has no sequence number"):
        reaches(positions(None), A, SPECS)


def _places():
    return st.sampled_from([(spec_id, partition) for spec_id, all_ in PARTITIONS.items() for partition in all_])


_PATHS = st.sampled_from("abcd")
_NUMBERS = st.integers(0, 4)


@st.composite
def _data(draw):
    paths = draw(st.sets(_PATHS, max_size=4))
    places = {path: draw(_places()) for path in sorted(paths)}
    return [entry(p, draw(_NUMBERS), spec_id=spec, partition=at) for p, (spec, at) in places.items()]


@st.composite
def _tables(draw):
    """Data files and deletes; those of one data file lie where it does, but for a few."""
    data = draw(_data())
    places = {e.data_file.file_path: (e.data_file.spec_id, e.data_file.partition) for e in data}
    out, with_vector = [], set()
    for n in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["positions", "equality", "vector", "of one file", "bounded"]))
        path = draw(_PATHS)
        spec_id, partition = draw(_places())
        if kind in ("vector", "of one file") and draw(st.integers(0, 9)):
            spec_id, partition = places.get(path, (spec_id, partition))
        where = {"path": f"d{n}", "spec_id": spec_id, "partition": partition}
        if kind == "vector" and path not in with_vector:
            with_vector.add(path)
            out.append(vector(draw(_NUMBERS), path, **where))
        elif kind == "equality":
            out.append(equality(draw(_NUMBERS), **where))
        elif kind == "of one file":
            out.append(positions(draw(_NUMBERS), referenced_data_file=path, **where))
        elif kind == "bounded":
            lower, upper = sorted([path, draw(_PATHS)])
            out.append(positions(draw(_NUMBERS), **bounded(lower.encode(), upper.encode()), **where))
        else:
            out.append(positions(draw(_NUMBERS), **where))
    return data, out


def _are_broken(data, deletes):
    """Whether a delete file is for a live data file in another partition and would reach it."""
    return any(
        (d := delete.data_file).referenced_data_file == (f := e.data_file).file_path
        and delete.sequence_number >= e.sequence_number
        and (d.spec_id, d.partition) != (f.spec_id, f.partition)
        for delete in deletes
        for e in data
    )


def _oracle(data, delete, others):
    """The scope rules of the spec, sentence by sentence."""
    d, f = delete.data_file, data.data_file
    same = (d.spec_id, d.partition) == (f.spec_id, f.partition)
    if d.content is EQUALITY:
        return data.sequence_number < delete.sequence_number and (same or d.spec_id in (0, 3))
    if d.file_format == "puffin":
        return d.referenced_data_file == f.file_path and data.sequence_number <= delete.sequence_number and same
    low, high = ((b or {}).get(DELETE_FILE_PATH.field_id) for b in (d.lower_bounds, d.upper_bounds))
    return (
        d.referenced_data_file in (None, f.file_path)
        and data.sequence_number <= delete.sequence_number
        and same
        and (low is None or low != high or f.file_path.startswith(low.decode()))
        and not any(o.data_file.file_format == "puffin" and _oracle(data, o, ()) for o in others)
    )


@given(_tables())
def test_reaching_deletes_follow_the_spec(table):
    data, deletes = table
    if _are_broken(data, deletes):
        with pytest.raises(InvalidTableError, match="which has another partition"):
            reaching_deletes(data, deletes, SPECS)
        return
    found = reaching_deletes(iter(data), iter(deletes), SPECS)
    assert found == {a.data_file.file_path: tuple(d for d in deletes if _oracle(a, d, deletes)) for a in data}


@given(_tables(), st.integers(1, 3))
def test_dangling_deletes_reach_no_live_file(table, parts):
    """Path bounds alone make no delete dangling; everything else that reaches no live file is."""
    data, deletes = table
    if _are_broken(data, deletes):
        return
    unbounded = [replace(d, data_file=replace(d.data_file, lower_bounds=None, upper_bounds=None)) for d in deletes]
    useless = [d.data_file.file_path for d in unbounded if not any(_oracle(a, d, ()) for a in data)]
    dangling = dangling_deletes(deletes, data, parts)
    assert [d.data_file.file_path for d in dangling] == useless
    reaching = {d for found in reaching_deletes(data, deletes, SPECS).values() for d in map(applied_delete, found)}
    assert not reaching & {applied_delete(d) for d in dangling}


def test_only_position_deletes_have_a_single_data_file():
    assert only_data_file(positions(5, referenced_data_file="a").data_file) == "a"
    assert only_data_file(vector(5, "b").data_file) == "b"
    for several in (positions(5), equality(5), equality(5, referenced_data_file="a")):
        assert only_data_file(several.data_file) is None
    assert reaches(equality(6, referenced_data_file="b"), A, SPECS)


def test_delete_older_than_its_partition_is_dangling():
    here, there = entry("a", 5), entry("b", 1, partition=("y",))
    deletes = [positions(4), positions(5), equality(5), equality(6), equality(2, spec_id=0, partition=())]
    assert dangling_deletes(deletes, [here, there]) == (deletes[0], deletes[2])
    # A global one counts the whole table; with the old file gone it reaches nothing either.
    assert dangling_deletes(deletes, [here]) == (deletes[0], deletes[2], deletes[4])
    assert dangling_deletes(deletes, []) == tuple(deletes)


def test_deletes_of_removed_file_are_dangling():
    deletes = [vector(7, "gone"), vector(7, "a"), positions(7, referenced_data_file="gone")]
    assert dangling_deletes(deletes, [A]) == (deletes[0], deletes[2])


@given(_tables())
def test_delete_scopes_are_minimal(table):
    """Data files are asked only for the partitions and paths that the deletes can reach."""
    data, deletes = table
    asked = DeleteScopes.of(deletes, SPECS)
    narrow = [d for d in deletes if not (d.data_file.content is EQUALITY and d.data_file.spec_id in (0, 3))]
    assert set(asked.partitions) == {partition_key(d.data_file) for d in narrow}
    assert asked.paths == {path_digest(p) for d in narrow if (p := own_path(d.data_file)) is not None}
    for partition, number in asked.partitions.items():
        # A data file with a greater number than that is reached by none of them.
        there = [d for d in narrow if partition_key(d.data_file) == partition]
        for data_number in range(6):
            at = entry("other", data_number, spec_id=partition[0], partition=partition[1])
            loose = [replace(d, data_file=replace(d.data_file, referenced_data_file=None)) for d in there]
            reached = any(
                _oracle(
                    at,
                    replace(
                        d, data_file=replace(d.data_file, file_format="PARQUET", lower_bounds=None, upper_bounds=None)
                    ),
                    (),
                )
                for d in loose
            )
            assert reached == (data_number <= number)
    least = MinNumbers.of(asked, data)
    assert set(least.partitions) <= set(asked.partitions)
    assert set(least.paths) <= asked.paths


def test_examples():
    check_examples("spec/applicability.txt", globals())
