"""The closed list of errors that prove something, with errors as both PostgreSQL drivers and SQLite give them."""

import sqlite3

import pytest
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, OperationalError, ProgrammingError

from icekeep.catalog.database import is_absent, is_busy, is_duplicate, may_pass, proves_refusal, refuses_change
from kit.cases import for_each


class Psycopg(Exception):
    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Psycopg2(Exception):
    def __init__(self, pgcode):
        super().__init__(pgcode)
        self.pgcode = pgcode


def postgresql(code, kind=OperationalError, driver=Psycopg):
    return kind("statement", {}, driver(code))


def sqlite(code):
    cause = sqlite3.OperationalError("text")
    cause.sqlite_errorcode = code
    return OperationalError("statement", {}, cause)


@pytest.mark.parametrize("driver", [Psycopg, Psycopg2])
def test_what_postgresql_says_is_known_by_its_code_alone(driver):
    facts = {
        "40001": {is_busy, may_pass, proves_refusal},
        "40P01": {is_busy, may_pass, proves_refusal},
        "55P03": {is_busy, may_pass},
        "22001": {refuses_change},
        "23505": {is_duplicate, proves_refusal, refuses_change},
        "23514": {proves_refusal, refuses_change},
        "P0001": {refuses_change},
        "42P01": {is_absent},
        "42703": {is_absent},
        "42501": set(),
        "28P01": set(),
        "3D000": set(),
        "25006": set(),
        "25P03": {may_pass},
        "57014": {may_pass},
        "57P01": {may_pass},
        "08006": {may_pass},
        "53300": {may_pass},
        "XX000": {may_pass},
    }
    questions = (is_absent, is_busy, is_duplicate, may_pass, proves_refusal, refuses_change)
    for kind in (OperationalError, ProgrammingError, IntegrityError, DataError):
        for code, expected in facts.items():
            assert {asks for asks in questions if asks(postgresql(code, kind, driver))} == expected, code


def test_what_sqlite_says_is_known_by_its_code():
    # Extended codes hold the plain one in their lowest byte: a busy snapshot, a full disk, a duplicate key.
    assert is_busy(sqlite(5))
    assert is_busy(sqlite(6))
    assert is_busy(sqlite(5 | 2 << 8))
    assert may_pass(sqlite(10))
    assert may_pass(sqlite(13))
    assert not any(may_pass(sqlite(code)) for code in (1, 3, 8, 14, 23))
    assert is_absent(sqlite(1))
    assert not is_absent(sqlite(14))
    assert is_duplicate(sqlite(1555))
    assert not is_duplicate(sqlite(19))
    # A constraint, and what a trigger raises.
    assert refuses_change(sqlite(19))
    assert refuses_change(sqlite(19 | 7 << 8))
    assert not any(refuses_change(sqlite(code)) for code in (1, 3, 5, 8, 10, 14))


@for_each("code", [1, 5, 6, 8, 10, 13, 14, 19, 1555])
def test_no_error_of_sqlite_at_a_commit_proves_anything(code):
    assert not proves_refusal(sqlite(code))


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_an_error_without_a_code_proves_nothing_and_may_pass(kind):
    broken = postgresql(None, kind)
    assert may_pass(broken)
    assert not any(asks(broken) for asks in (is_absent, is_busy, is_duplicate, proves_refusal, refuses_change))


@for_each("error", [RuntimeError("odd"), postgresql(""), postgresql("P0001"), postgresql("57P01")])
def test_what_is_not_listed_proves_nothing(error):
    assert not proves_refusal(error)
