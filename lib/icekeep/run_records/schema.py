"""The tables in which runs and leases are kept, and which version of them a database has.

The rule: a column or a table that is added raises the version by one and has an entry in `_STEPS`, which brings a database of the
version before up to it. An older icekeep refuses a newer version, as it would leave columns empty that others rely on.
"""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from icekeep.errors import UnsupportedError

VERSION = 2

_SCHEMA = sa.MetaData()

RUNS = sa.Table(
    "icekeep_runs",
    _SCHEMA,
    sa.Column("run_id", sa.String(200), primary_key=True),
    sa.Column("parent_id", sa.String(200), index=True),
    sa.Column("job", sa.String(100), nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("policy", sa.Text),
    sa.Column("status", sa.String(40), nullable=False),
    sa.Column("exit_status", sa.Integer),
    sa.Column("error_kind", sa.String(100)),
    sa.Column("error_message", sa.Text),
    sa.Column("started_ms", sa.BigInteger, nullable=False, index=True),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("seen_ms", sa.BigInteger, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("arguments", sa.Text, nullable=False),
    sa.Column("app_id", sa.Text),
    sa.Column("snapshot_id_before", sa.BigInteger),
    sa.Column("snapshot_id_after", sa.BigInteger),
    sa.Column("metadata_location_before", sa.Text),
    sa.Column("metadata_location_after", sa.Text),
    sa.Column("result", sa.Text),
    sa.Column("estimated_ms", sa.BigInteger),
    sa.Column("estimated_cpu_ms", sa.BigInteger),
    sa.Column("cpu_ms", sa.BigInteger),
    sa.Index("icekeep_runs_of_tables", "table_name", "job", "started_ms"),
)
"""`arguments` and `result` are JSON."""

LEASES = sa.Table(
    "icekeep_leases",
    _SCHEMA,
    sa.Column("table_name", sa.String(1000), primary_key=True),
    sa.Column("holder", sa.String(200), nullable=False, index=True),
    sa.Column("until_ms", sa.BigInteger, nullable=False),
)

_VERSIONS = sa.Table("icekeep_version", _SCHEMA, sa.Column("version", sa.Integer, primary_key=True))

NEW_COLUMNS = ("estimated_ms", "estimated_cpu_ms", "cpu_ms")
"""Of `RUNS`, that version 1 does not have."""

_STEPS: Mapping[int, Sequence[str]] = {
    2: [f"ALTER TABLE icekeep_runs ADD COLUMN {name} BIGINT" for name in NEW_COLUMNS]
}
"""Statements by the version that they lead to."""

_LOCK = sa.text("SELECT pg_advisory_xact_lock(4927106)")


def make_tables(connection: Connection) -> None:
    """Make the tables, or bring those that are there to this version, in the transaction of the connection.

    Raises:
        UnsupportedError: the database has a newer version.
    """
    if connection.dialect.name == "postgresql":
        # Two that make the same table at once would hinder each other.
        connection.execute(_LOCK)
    _SCHEMA.create_all(connection)
    found = connection.execute(sa.select(_VERSIONS.c.version)).scalar()
    if found is None:
        connection.execute(_VERSIONS.insert().values(version=VERSION))
        return
    if found > VERSION:
        raise UnsupportedError(
            f"the record of runs has version {found}, and this icekeep knows versions up to {VERSION}; use the newer icekeep, or "
            "another database for this one",
            version=found,
        )
    for version in range(found + 1, VERSION + 1):
        for statement in _STEPS[version]:
            connection.execute(sa.text(statement))
    if found < VERSION:
        connection.execute(_VERSIONS.update().values(version=VERSION))


def are_there(connection: Connection) -> bool:
    """Whether the database has the tables."""
    return sa.inspect(connection).has_table(_VERSIONS.name)


def are_old(connection: Connection) -> bool:
    """Whether the tables are those of an older version, and lack `NEW_COLUMNS`."""
    return (connection.execute(sa.select(_VERSIONS.c.version)).scalar() or VERSION) < VERSION
