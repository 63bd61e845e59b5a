"""Random texts in the language of `where` over a small table, and the table's rows, for engines that read the same SQL.

The columns are n, s, b and "odd name": an int, a text, a boolean and another int. All engines here agree on the texts.
"""

from itertools import product

from hypothesis import strategies as st

ROWS: tuple[tuple[int | None, str | None, bool | None, int | None], ...] = tuple(
    product((None, -1, 0, 2, 3), (None, "", "a", "ab", "a%b", "b_"), (None, True, False), (None, 1))
)
"""Values of the four columns, null among them."""

_NUMBERS = st.sampled_from(["-1", "0", "1", "2", "3", "+2", "002"])
_FRACTIONS = st.sampled_from(["2.5", "-0.5", ".5", "3.0"])
_TEXTS = st.sampled_from(["''", "'a'", "'ab'", "'a%b'", "'b_'", "'it''s'"])
_TRUTHS = st.sampled_from(["true", "false", "TRUE", "False"])
_COMPARISONS = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
_PLAIN_PATTERNS = st.sampled_from(["'%'", "'a%'", "'ab%'", "'a'", "'b%'", "''"])
_ESCAPED_PATTERNS = st.sampled_from(["'a\\%%'", "'a\\%b'", "'b\\_%'", "'b\\_'"]).map(
    lambda pattern: f"{pattern} ESCAPE '\\'"
)
_SPACES = st.sampled_from([" ", "  ", "\n", "\t "])


def texts(*, for_pyiceberg: bool = False) -> st.SearchStrategy[str]:
    """Filters of up to six predicates; those for PyIceberg leave out what its parser does not know."""
    leaves = _predicates(for_pyiceberg=for_pyiceberg)
    return st.tuples(
        st.recursive(
            leaves,
            lambda inner: st.one_of(
                st.tuples(inner, st.sampled_from(["AND", "OR", "and", "Or"]), inner).map(" ".join),
                inner.map(lambda text: f"NOT {text}"),
                inner.map(lambda text: f"({text})"),
            ),
            max_leaves=6,
        ),
        _SPACES,
    ).map(lambda pair: pair[0].replace(" AND ", f"{pair[1]}AND{pair[1]}"))


def _predicates(*, for_pyiceberg: bool) -> st.SearchStrategy[str]:
    number_names = st.sampled_from(["n", '"odd name"'] if for_pyiceberg else ["n", '"n"', '"odd name"', "`odd name`"])
    numbers = _NUMBERS if for_pyiceberg else _NUMBERS | _FRACTIONS
    common = [
        _compared(number_names, numbers),
        _compared(st.just("s"), _TEXTS),
        _compared(st.just("b"), _TRUTHS),
        _listed(number_names, numbers),
        _listed(st.just("s"), _TEXTS),
        _nulls(st.one_of(number_names, st.sampled_from(["s", "b"]))),
        _between(number_names, numbers, ["BETWEEN"]),
        _liked(_PLAIN_PATTERNS),
    ]
    more = [
        _between(number_names, numbers, ["NOT BETWEEN", "not between"]),
        _liked(_ESCAPED_PATTERNS),
        st.sampled_from(["b", "NOT b", "true", "FALSE"]),
    ]
    return st.one_of(common if for_pyiceberg else common + more)


def _compared(names: st.SearchStrategy[str], literals: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(names, _COMPARISONS, literals, st.booleans()).map(
        lambda parts: " ".join(parts[:3] if parts[3] else reversed(parts[:3]))
    )


def _listed(names: st.SearchStrategy[str], literals: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(literals, min_size=1, max_size=3).map(", ".join)
    return st.tuples(names, st.sampled_from(["IN", "not in"]), members).map(lambda p: f"{p[0]} {p[1]} ({p[2]})")


def _nulls(names: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(names, st.sampled_from(["IS NULL", "is not null"])).map(" ".join)


def _between(
    names: st.SearchStrategy[str], literals: st.SearchStrategy[str], words: list[str]
) -> st.SearchStrategy[str]:
    return st.tuples(names, st.sampled_from(words), literals, st.just("AND"), literals).map(" ".join)


def _liked(patterns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.just("s"), st.sampled_from(["LIKE", "NOT LIKE", "like"]), patterns).map(" ".join)
