import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.sorting import SortOrder as ForeignOrder

from icekeep.errors import InvalidTableError
from icekeep.spec.sorting import (
    UNSORTED,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
    sort_order_from_json,
    sort_order_to_json,
)
from icekeep.spec.transforms import Bucket, Identity, UnknownTransform, parse_transform

EXAMPLE = {
    "order-id": 1,
    "fields": [
        {"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first"},
        {"transform": "bucket[4]", "source-id": 3, "direction": "desc", "null-order": "nulls-last"},
    ],
}


def test_the_example_of_appendix_c_is_read():
    assert sort_order_from_json(EXAMPLE) == SortOrder(
        order_id=1,
        fields=(
            SortField(source_id=2, transform=Identity()),
            SortField(
                source_id=3,
                transform=Bucket(4),
                direction=SortDirection.DESC,
                null_order=NullOrder.NULLS_LAST,
            ),
        ),
    )


def one_field(**keys: Any) -> dict[str, Any]:
    field = {"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first", **keys}
    return {"order-id": 1, "fields": [{key: value for key, value in field.items() if value is not None}]}


@pytest.mark.parametrize(
    "form",
    [
        EXAMPLE,
        {"order-id": 0, "fields": []},
        {"order-id": 1, "fields": [], "owner": "me"},
        one_field(note=[1]),
        one_field(**{"transform": "zorder", "source-id": None, "source-ids": [1, 2]}),
    ],
)
def test_an_order_is_written_as_it_was_read_with_keys_that_we_do_not_know(form: dict[str, Any]):
    assert sort_order_to_json(sort_order_from_json(form)) == form


def test_a_transform_of_several_columns_is_unknown():
    order = sort_order_from_json(one_field(**{"source-id": None, "source-ids": [1, 2]}))
    assert order.fields[0].transform == UnknownTransform("identity")


def test_directions_are_read_whatever_their_case():
    assert sort_order_from_json(one_field(direction="DESC", **{"null-order": "NULLS-LAST"})).fields[0] == SortField(
        source_id=2, transform=Identity(), direction=SortDirection.DESC, null_order=NullOrder.NULLS_LAST
    )


def test_orders_are_values():
    with pytest.raises(AttributeError):
        UNSORTED.order_id = 1
    with pytest.raises(AttributeError):
        SortField(source_id=1, transform=Identity()).source_id = 2


def test_order_0_is_unsorted():
    assert UNSORTED.is_unsorted
    assert sort_order_from_json({"order-id": 0, "fields": []}) == UNSORTED
    assert not sort_order_from_json(EXAMPLE).is_unsorted


@pytest.mark.parametrize(
    "form",
    [
        None,
        [],
        {"order-id": 1},
        {"order-id": "1", "fields": []},
        {"order-id": True, "fields": []},
        {"order-id": 1, "fields": ["id"]},
        {"order-id": 0, "fields": EXAMPLE["fields"]},
        one_field(direction="up"),
        one_field(direction=None),
        one_field(**{"null-order": "first"}),
        one_field(**{"null-order": None}),
        one_field(**{"source-id": None}),
        one_field(transform=None),
        one_field(transform="bucket[0]"),
    ],
)
def test_json_that_is_no_sort_order_breaks_the_table(form: Any):
    with pytest.raises(InvalidTableError):
        sort_order_from_json(form)


FIELDS = st.builds(
    SortField,
    source_id=st.integers(1, 100),
    transform=st.sampled_from(["identity", "bucket[4]", "truncate[3]", "day", "void"]).map(parse_transform),
    direction=st.sampled_from(SortDirection),
    null_order=st.sampled_from(NullOrder),
    extra=st.just({}),
)


@given(st.integers(1, 100), st.lists(FIELDS, max_size=3).map(tuple))
def test_orders_agree_with_pyiceberg(order_id: int, fields: tuple[SortField, ...]):
    form = sort_order_to_json(SortOrder(order_id=order_id, fields=fields))
    theirs = json.loads(ForeignOrder.model_validate_json(json.dumps(form)).model_dump_json())
    assert theirs == form
    assert sort_order_from_json(theirs) == SortOrder(order_id=order_id, fields=fields)
