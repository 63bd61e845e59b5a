"""What a database's error proves about the transaction that it ended: a closed list, by the codes that databases give.

A transaction lands only if its COMMIT is sent, so whatever fails before that has changed nothing, also where the
connection broke. Of an error that meets the COMMIT itself only the codes listed here prove that the database refused
it; anything else leaves the outcome unknown.
"""

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

_SQLITE_BUSY = (5, 6)
_SQLITE_ERROR = 1
_SQLITE_LASTING = (_SQLITE_ERROR, 3, 8, 14, 23)
"""Wrong SQL or no such table, no permission, read-only, cannot open, not authorized: trying again does not help."""
_SQLITE_CONSTRAINT = 19
_SQLITE_DUPLICATE_KEY = 1555

_POSTGRESQL_DUPLICATE_KEY = "23505"
_POSTGRESQL_REFUSED = ("22", "23", "P0")
"""Data that does not fit, a constraint, what a trigger raises."""
_POSTGRESQL_ROLLED_BACK = ("40001", "40P01")
"""Serialization failure, deadlock."""
_POSTGRESQL_BUSY = (*_POSTGRESQL_ROLLED_BACK, "55P03")
"""These, and a lock that was not to be had in time."""
_POSTGRESQL_ABSENT = ("42P01", "42703")
"""No such table, no such column."""
_POSTGRESQL_PASSING = ("08", "25P", "40", "53", "55", "57", "58", "XX")
"""The connection, a transaction that waited too long, rollbacks, resources, objects in use, an operator or a timeout,
the system, the server itself: the same again may succeed."""


def is_busy(error: Exception) -> bool:
    """Whether another transaction was in the way."""
    return _sqlite_code(error) & 0xFF in _SQLITE_BUSY or _sqlstate(error) in _POSTGRESQL_BUSY


def is_duplicate(error: Exception) -> bool:
    """Whether a row with the same key exists."""
    return _sqlite_code(error) == _SQLITE_DUPLICATE_KEY or _sqlstate(error) == _POSTGRESQL_DUPLICATE_KEY


def is_absent(error: Exception) -> bool:
    """Whether the query named a table or a column that is not there."""
    return _sqlite_code(error) & 0xFF == _SQLITE_ERROR or _sqlstate(error) in _POSTGRESQL_ABSENT


def refuses_change(error: Exception) -> bool:
    """Whether the database's own rules reject what is written: a constraint, a trigger, a value that does not fit.

    >>> refuses_change(ValueError("no database said this"))
    False
    """
    return _sqlite_code(error) & 0xFF == _SQLITE_CONSTRAINT or _sqlstate(error).startswith(_POSTGRESQL_REFUSED)


def may_pass(error: Exception) -> bool:
    """Whether the same again may succeed, as far as the database says."""
    sqlstate = _sqlstate(error)
    if sqlstate:
        return sqlstate.startswith(_POSTGRESQL_PASSING)
    if _sqlite_code(error) & 0xFF in _SQLITE_LASTING:
        return False
    return not isinstance(error, DBAPIError) or isinstance(error, OperationalError | InterfaceError | InternalError)


def proves_refusal(error: Exception) -> bool:
    """Whether an error at the COMMIT itself proves that the database rolled back.

    PostgreSQL answers a COMMIT so where a check was put off until then. SQLite's are not among them: its transaction is
    still open after a failed COMMIT, and what became of its files is not told.
    """
    return _sqlstate(error) in _POSTGRESQL_ROLLED_BACK or _sqlstate(error).startswith("23")


def _sqlstate(error: Exception) -> str:
    cause = getattr(error, "orig", None)
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""


def _sqlite_code(error: Exception) -> int:
    return int(getattr(getattr(error, "orig", None), "sqlite_errorcode", 0))
