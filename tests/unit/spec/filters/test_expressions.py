import pickle

import pytest

from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    And,
    BoundPredicate,
    Expression,
    Not,
    Operation,
    Or,
    Predicate,
    bound_set,
    chain,
    conjunction,
    disjunction,
)
from icekeep.spec.types import INT, NestedField
from kit.cases import for_each

OP = Operation


FIELD = NestedField(field_id=1, name="c1", type=INT)
TERM = BoundPredicate(OP.EQ, FIELD, (1,))


def test_constants_are_folded():
    assert conjunction([]) == ALWAYS_TRUE
    assert disjunction([]) == ALWAYS_FALSE
    assert conjunction([ALWAYS_TRUE, TERM, ALWAYS_TRUE]) == TERM
    assert conjunction([TERM, ALWAYS_FALSE]) == ALWAYS_FALSE
    assert disjunction([ALWAYS_FALSE, TERM]) == TERM
    assert disjunction([TERM, ALWAYS_TRUE]) == ALWAYS_TRUE


@pytest.mark.parametrize("constant", [ALWAYS_TRUE, ALWAYS_FALSE])
def test_constants_stay_the_same_objects_on_their_way_to_executors(constant: Expression):
    assert pickle.loads(pickle.dumps(constant)) is constant
    assert pickle.loads(pickle.dumps(Not(constant))).child is constant


def test_a_bound_set_is_sorted_and_distinct():
    assert bound_set(OP.IN, FIELD, [3, 1, 3]) == BoundPredicate(OP.IN, FIELD, (1, 3))
    assert bound_set(OP.NOT_IN, FIELD, [3, 3]) == BoundPredicate(OP.NOT_EQ, FIELD, (3,))


@for_each(
    "expression",
    [
        Predicate(OP.EQ, "a", (1,)),
        And(ALWAYS_TRUE, ALWAYS_FALSE),
        Or(ALWAYS_TRUE, ALWAYS_FALSE),
        Not(ALWAYS_TRUE),
        TERM,
    ],
)
def test_expressions_are_values(expression: Expression):
    assert pickle.loads(pickle.dumps(expression)) == expression
    with pytest.raises(AttributeError, match="immutable"):
        setattr(expression, expression.__struct_fields__[0], None)


def test_a_chain_is_taken_apart_in_order_and_stops_at_another_connective():
    a, b, c, d = (Predicate(OP.IS_NULL, name) for name in "abcd")
    either = Or(c, d)
    assert chain(And, [And(And(a, b), either)]) == [a, b, either]
    assert chain(Or, [either, And(a, b)]) == [c, d, And(a, b)]
    assert chain(And, []) == []
