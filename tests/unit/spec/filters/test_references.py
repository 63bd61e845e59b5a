import pytest

from icekeep.errors import ExpressionError, NotFoundError
from icekeep.spec.filters.binding import References
from icekeep.spec.filters.expressions import Operation, Predicate
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Bucket, Day, Identity, Transform, UnknownTransform, Void
from icekeep.spec.types import INT, LONG, STRING, TIMESTAMP, ListType, MapType, NestedField, StructType, Type
from kit.cases import for_each

CITY = NestedField(field_id=7, name="city", type=STRING, required=True)
ADDRESS = StructType((CITY, NestedField(field_id=8, name="zip code", type=STRING)))


def column(field_id: int, name: str, type_: Type, *, required: bool = False) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, required=required)


SCHEMA = Schema(
    fields=(
        column(1, "id", LONG, required=True),
        column(2, "ts", TIMESTAMP),
        column(3, "home", ADDRESS, required=True),
        column(4, "tags", ListType(element_id=9, element=STRING)),
        column(5, "counts", MapType(key_id=10, key=STRING, value_id=11, value=LONG)),
        column(6, "a.b", INT),
    )
)


def find(name: str, *parts: PartitionField, schema: Schema = SCHEMA, where: str = "{} = 1") -> NestedField:
    specs = [PartitionSpec(spec_id=i, fields=(part,)) for i, part in enumerate(parts)]
    predicate = parse_where(where.format(f'"{name}"'))
    assert isinstance(predicate, Predicate)
    return References(schema, specs).field(predicate)


def part(name: str, transform: Transform, source_id: int = 2) -> PartitionField:
    return PartitionField(source_id=source_id, field_id=1000, name=name, transform=transform)


def test_a_column_is_found_by_its_full_name_and_carries_it():
    assert find("id") == SCHEMA.fields[0]
    assert find("home.city") == NestedField(field_id=7, name="home.city", type=STRING, required=True)
    assert find("home.zip code").field_id == 8
    assert find("a.b").field_id == 6


def test_a_field_of_an_optional_struct_may_be_null():
    schema = Schema(fields=(column(3, "home", ADDRESS),))
    assert not find("home.city", schema=schema).required
    inner = StructType((column(3, "home", ADDRESS, required=True),))
    assert not find("who.home.city", schema=Schema(fields=(column(4, "who", inner),))).required
    assert find("who.home.city", schema=Schema(fields=(column(4, "who", inner, required=True),))).required


@pytest.mark.parametrize("name", ["tags.element", "counts.key", "counts.value"])
def test_columns_in_lists_and_maps_cannot_be_named(name: str):
    with pytest.raises(ExpressionError, match=f"^column '{name}' lies in a list or a map; a filter takes columns of"):
        find(name)
    assert find("tags").field_id == 4


@for_each(
    ("name", "hint"),
    [
        ("ID", "did you mean 'id'?"),
        ("iid", "did you mean 'id'?"),
        ("Home.City", "did you mean 'home.city'?"),
        ("city", "did you mean 'home.city'?"),
        ("home.zipcode", "did you mean 'home.zip code'?"),
        ("a_b", "did you mean 'a.b'?"),
        ("tag", "did you mean 'tags'?"),
        ("zzzz", "the columns are id, ts, home, home.city, home.zip code, tags, counts, a.b"),
    ],
)
def test_a_name_that_is_no_column_is_answered_with_the_nearest_ones(name: str, hint: str):
    with pytest.raises(NotFoundError) as caught:
        find(name)
    assert caught.value.message == f"there is no column {name!r}; {hint}"
    assert caught.value.facts == {"column": name}


def test_a_name_in_another_case_is_answered_with_that_column_alone():
    schema = Schema(fields=(column(1, "colour", INT), column(2, "colours", INT)))
    with pytest.raises(NotFoundError, match=r"did you mean 'colour'\?$"):
        find("Colour", schema=schema)
    with pytest.raises(NotFoundError, match=r"did you mean 'colour' or 'colours'\?$"):
        find("colou", schema=schema)


def test_a_very_long_name_is_not_compared_with_all_others():
    schema = Schema(fields=(column(1, "z" * 199, INT),))
    with pytest.raises(NotFoundError, match="did you mean"):
        find("z" * 200, schema=schema)
    with pytest.raises(NotFoundError, match="the columns are"):
        find("z" * 201, schema=schema)


def test_of_many_columns_the_first_ones_are_shown():
    schema = Schema(fields=tuple(column(i, f"c{i}", INT) for i in range(1, 13)))
    with pytest.raises(NotFoundError, match=r"the columns are c1, c2, c3, c4, c5, c6, c7, c8, c9, c10 and 2 more$"):
        find("zzzz", schema=schema)
    with pytest.raises(NotFoundError, match=r"did you mean 'c1'"):
        find("c_1", schema=schema)


def refused(where: str, *parts: PartitionField) -> str:
    name = parts[0].name
    with pytest.raises(NotFoundError) as caught:
        find(name, *parts, where=where)
    prefix = f"there is no column {name!r}: "
    assert caught.value.message.startswith(prefix)
    return caught.value.message.removeprefix(prefix)


def test_a_partition_field_is_no_column_and_the_same_filter_on_its_column_is_shown():
    assert refused("{} = '2026-01-31'", part("ts_day", Day())) == (
        "it is a partition field, day of column 'ts'; write days(ts) = '2026-01-31'"
    )
    assert refused("{} IN ('a', 'b')", part("place", Identity(), source_id=7)) == (
        "it is a partition field, identity of column 'home.city'; write home.city IN ('a', 'b')"
    )
    assert refused("{} = 3", part("zip_bucket", Bucket(16), source_id=8)) == (
        "it is a partition field, bucket[16] of column 'home.zip code'; write bucket(16, \"home.zip code\") = 3"
    )


@pytest.mark.parametrize("transform", [Void(), UnknownTransform("zorder")])
def test_a_partition_field_that_tells_nothing_of_its_column_is_no_filter(transform: Transform):
    assert refused("{} = 3", part("p", transform)) == (
        f"it is a partition field, {transform} of column 'ts'; filter on that column"
    )


def test_a_partition_field_of_a_dropped_column_is_said_to_be_one():
    assert refused("{} = 3", part("p", Day(), source_id=99)) == "it is a partition field whose column was dropped"


def test_the_newest_spec_that_has_the_name_says_what_it_is():
    assert "identity of column 'id'" in refused("{} = 3", part("p", Identity(), source_id=1), part("q", Day()))
    assert "identity of column 'id'" in refused("{} = 3", part("p", Day()), part("p", Identity(), source_id=1))


def test_a_column_that_a_partition_field_is_named_after_is_the_column():
    assert find("id", part("id", Identity(), source_id=1)).field_id == 1


def test_the_operation_does_not_matter_to_finding_a_column():
    assert References(SCHEMA, ()).field(Predicate(Operation.IS_NULL, "ts")).field_id == 2
