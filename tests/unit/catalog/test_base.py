import pytest

from icekeep.catalog.base import format_identifier, one_line, parse_identifier, validate_namespace
from icekeep.errors import ConflictError, UsageError


@pytest.mark.parametrize("text", ["db.events", "lake.raw.events", "db.a b", "db.%2F", "é.ü"])
def test_an_identifier_is_the_parts_between_dots(text):
    assert parse_identifier(text) == tuple(text.split("."))
    assert format_identifier(parse_identifier(text)) == text


@pytest.mark.parametrize("text", ["", "events", ".events", "db.", "db..events", "db/x.events", "db.eve\nnts", "db.\0"])
def test_an_identifier_needs_a_namespace_and_parts_that_can_be_names(text):
    with pytest.raises(UsageError):
        parse_identifier(text)


def test_a_namespace_may_have_one_level():
    assert validate_namespace(("db",)) == ("db",)
    with pytest.raises(UsageError, match="at least one part"):
        validate_namespace(())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError(), "ValueError"),
        (ConflictError("lost", table="db.events"), "lost"),
    ],
)
def test_an_error_in_a_message_is_one_line(error, text):
    assert one_line(error) == text
