"""A manifest that may hold a file of a partition is never taken for one that cannot."""

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.dangling import DeleteScopes, FieldRange, PossibleManifests, partition_ranges
from icekeep.spec.manifests.structs import FieldSummary
from icekeep.spec.transforms import UnknownTransform
from kit.memory_catalog import MemoryCatalog
from kit.tables import BY_KIND, BY_SCORE, add, data_file, manifests_of, memory_table

TEXTS = st.one_of(st.none(), st.text(alphabet="abc", max_size=2))
NUMBERS = st.one_of(st.none(), st.floats(width=32))


def ranges(values, spec=BY_KIND, **changes):
    """The range of a manifest of files with these partition values; one that holds all where there is none."""
    files = [data_file(f"f{n}", partition=(value,)) for n, value in enumerate(values)]
    table = add(memory_table(MemoryCatalog(), spec=spec), *files)
    (manifest,) = manifests_of(table)
    return only_range(replace(manifest, **changes), table.metadata)


def only_range(manifest, metadata):
    return next(iter(partition_ranges(manifest, metadata)), FieldRange(True, True, None, None))


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
def test_what_lies_between_the_bounds_may_be_there_and_nothing_else(values, asked):
    known = sorted(value for value in values if value is not None)
    expected = None in values if asked is None else bool(known) and known[0] <= asked <= known[-1]
    assert ranges(values).may_hold(asked) is expected


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_of_numbers_whose_order_is_in_doubt_all_may_be_there(values):
    found = ranges(values, BY_SCORE)
    assert all(found.may_hold(value) for value in values)


def test_of_values_of_an_unknown_transform_all_may_be_there():
    field = replace(BY_KIND.fields[0], transform=UnknownTransform("zorder"))
    metadata = memory_table(MemoryCatalog(), spec=replace(BY_KIND, fields=(field,))).metadata
    (manifest,) = manifests_of(add(memory_table(MemoryCatalog(), spec=BY_KIND), data_file("f", partition=("b",))))
    found = only_range(manifest, metadata)
    assert all(found.may_hold(value) for value in ("a", 5, b"c"))
    assert (found.lower, found.upper, found.may_hold(None)) == (None, None, False)


def test_bounds_that_are_crossed_bound_nothing():
    crossed = FieldSummary(contains_null=False, lower_bound=b"y", upper_bound=b"b")
    found = ranges(["b", "y"], partitions=(crossed,))
    assert all(found.may_hold(value) for value in ("a", "b", "m", "y", "z"))
    assert (found.lower, found.upper) == (None, None)
    assert not found.may_hold(None)


def test_without_summaries_all_may_be_there():
    assert ranges(["b"], partitions=None).may_hold("a")


def test_bounds_that_are_left_out_or_cannot_be_read_bound_nothing():
    for lower, upper in ((None, b"c"), (b"a", None), (b"\xff", b"\xff")):
        found = ranges(["b"], partitions=(FieldSummary(contains_null=True, lower_bound=lower, upper_bound=upper),))
        assert found.may_hold("b")
    assert not ranges(["b"], partitions=(FieldSummary(contains_null=False, lower_bound=b"a"),)).may_hold(None)
    assert not ranges(["b"], partitions=(FieldSummary(contains_null=False, upper_bound=b"a"),)).may_hold("b")


@given(
    st.lists(st.sampled_from([None, *"abc"]), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from([None, *"abcd"]), st.integers(0, 3), max_size=3),
    st.integers(0, 3),
    st.booleans(),
)
@example(["b"], {"b": 1}, 1, True)
def test_manifests_are_left_closed_only_where_no_partition_that_is_asked_for_may_be_there(
    values, asked, least, is_told
):
    files = [data_file(f"f{n}", partition=(value,)) for n, value in enumerate(values)]
    table = add(memory_table(MemoryCatalog(), spec=BY_KIND), *files)
    (manifest,) = manifests_of(table)
    manifest = replace(manifest, min_sequence_number=least, **({} if is_told else {"partitions": None}))
    scopes = DeleteScopes(partitions={(0, (value,)): number for value, number in asked.items()})
    found = only_range(manifest, table.metadata)
    expected = any(number >= least and found.may_hold(value) for value, number in asked.items())
    assert PossibleManifests(scopes, table.metadata).holds_reached_files(manifest) is expected


def test_a_table_without_partitions_has_one_that_may_be_asked_for():
    table = add(memory_table(MemoryCatalog()), "a")
    possible = PossibleManifests(DeleteScopes(partitions={(0, ()): 1}), table.metadata)
    assert possible.holds_reached_files(manifests_of(table)[0])
    assert not possible.holds_reached_files(replace(manifests_of(table)[0], min_sequence_number=2))
    assert not possible.holds_reached_files(replace(manifests_of(table)[0], partition_spec_id=7))
