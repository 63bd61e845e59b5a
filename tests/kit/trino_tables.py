"""Tables that Trino writes beside icekeep's jobs, with a plain model of their rows: a dictionary of numbers by id.

All else of a row follows from its id and its number by expressions of SQL, which Trino works out without any table.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from icekeep.catalog.base import Catalog, Identifier, Table
from kit.judging.by_trino import texts
from kit.row_texts import scanned_rows
from kit.trino import Trino

COLUMNS: Mapping[str, tuple[str, str]] = {
    "id": ("BIGINT NOT NULL", "id"),
    "kind": ("VARCHAR", "IF(id % 7 = 3, NULL, 'k/' || CAST(id % 3 AS VARCHAR))"),
    "number": ("INTEGER", "number"),
    "score": ("DOUBLE", "CASE id % 4 WHEN 0 THEN nan() WHEN 1 THEN DOUBLE '-0.0' WHEN 2 THEN NULL ELSE id / 3e0 END"),
    "amount": ("DECIMAL(20, 3)", "IF(number % 5 = 1, NULL, CAST(id * 1000 + number AS DECIMAL(20, 3)) / 8)"),
    "day": ("DATE", "date_add('day', id % 3 * 40, DATE '1969-12-01')"),
    "at": ("TIMESTAMP(6)", "date_add('hour', id, TIMESTAMP '1969-12-31 20:00:00')"),
    "seen": (
        "TIMESTAMP(6) WITH TIME ZONE",
        "IF(id % 6 = 2, NULL, date_add('day', id, TIMESTAMP '2020-02-28 23:59:59.000001 UTC'))",
    ),
    "uid": (
        "UUID",
        "IF(id % 5 = 4, NULL, '00000000-0000-0000-0000-' || substr(to_hex(to_big_endian_64(id)), 5))",
    ),
    "raw": ("VARBINARY", "to_big_endian_32(CAST(number AS INTEGER))"),
    "tags": ("ARRAY(VARCHAR)", "IF(id % 4 = 1, NULL, slice(ARRAY['a', NULL, 'b'], 1, CAST(id % 3 AS INTEGER)))"),
    "place": (
        "ROW(x REAL, flags ARRAY(BOOLEAN))",
        "IF(id % 6 = 2, NULL, CAST(ROW(number / 2e0, ARRAY[true, NULL]) AS ROW(x REAL, flags ARRAY(BOOLEAN))))",
    ),
    "counts": ("MAP(VARCHAR, INTEGER)", "IF(id % 5 = 3, NULL, map(ARRAY['k', 'l'], ARRAY[number, NULL]))"),
}
"""By name: the type, and what the value follows from."""
_NUMBERS = count(1)


class TrinoTable:
    """A table that Trino made, in one of our catalogs, which Trino has open as `local`.

    Attributes:
        numbers: the model.
    """

    def __init__(
        self,
        trino: Trino,
        catalog: Catalog,
        *,
        file_format: str = "PARQUET",
        partitioning: Iterable[str] = (),
        namespace: str = "db",
    ) -> None:
        self.trino, self.catalog = trino, catalog
        self.identifier: Identifier = (namespace, f"trino{next(_NUMBERS)}")
        self.name = ".".join(("local", *self.identifier))
        self.numbers: dict[int, int] = {}
        self._statements = count()
        columns = ", ".join(f"{name} {type_}" for name, (type_, _) in COLUMNS.items())
        fields = ", ".join(f"'{field}'" for field in partitioning)
        trino.query(
            f"CREATE TABLE {self.name} ({columns}) "
            f"WITH (format = '{file_format}', format_version = 2, partitioning = ARRAY[{fields}])"
        )

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.catalog.load(self.identifier)

    def insert(self) -> None:
        """Twelve rows."""
        first = 12 * next(self._statements)
        self._do("INSERT INTO {} " + selected(dict.fromkeys(range(first, first + 12), 0)))
        self.numbers |= dict.fromkeys(range(first, first + 12), 0)

    def delete(self) -> None:
        """Some rows, by position deletes."""
        digit = next(self._statements) % 11
        self._do(f"DELETE FROM {{}} WHERE id % 11 = {digit}")
        self.numbers = {id_: number for id_, number in self.numbers.items() if id_ % 11 != digit}

    def update(self) -> None:
        """Some rows: they are deleted where they are, and written anew."""
        digit = next(self._statements) % 5
        following = ", ".join(f"{name} = {_of_next(name)}" for name in ("number", "amount", "raw", "place", "counts"))
        self._do(f"UPDATE {{}} SET {following} WHERE id % 5 = {digit}")
        self.numbers = {id_: number + (id_ % 5 == digit) for id_, number in self.numbers.items()}

    def merge(self) -> None:
        """Some rows are deleted, some written anew, and some are new."""
        first = 12 * next(self._statements)
        known = sorted(self.numbers)[1::4]
        given = {**{id_: self.numbers[id_] + 10 for id_ in known}, **dict.fromkeys(range(first, first + 3), 1)}
        gone = set(known[::3])
        names = [*COLUMNS]
        self._do(
            f"MERGE INTO {{}} AS t USING ({selected(given)}) AS s ON t.id = s.id "
            f"WHEN MATCHED AND s.id IN ({', '.join(map(str, gone))}) THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in names)} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
        )
        self.numbers = {id_: number for id_, number in (self.numbers | given).items() if id_ not in gone}

    def change(self) -> None:
        """The next kind of change."""
        kinds: tuple[Callable[[], None], ...] = (self.insert, self.delete, self.update, self.merge)
        kinds[next(self._statements) % len(kinds)]()

    def expected(self) -> Counter[str]:
        """The rows of the model, as texts."""
        return texts(self.table.metadata.schema, self.trino.query(selected(self.numbers)))

    def by_trino(self, version: str = "") -> Counter[str]:
        """The rows as Trino reads them, of a version where one is named."""
        return texts(self.table.metadata.schema, self.trino.query(f"SELECT * FROM {self.name} {version}"))

    def checked(self, when: str) -> None:
        """The rows are those of the model, for us and for Trino."""
        expected = self.expected()
        assert scanned_rows(self.table) == expected, when
        assert self.by_trino() == expected, when

    def maintain(self, procedure: str) -> None:
        """Let Trino do one of its own jobs."""
        self.trino.query(f"ALTER TABLE {self.name} EXECUTE {procedure}")

    def _do(self, statement: str) -> None:
        self.trino.query(statement.format(self.name))


def selected(numbers: Mapping[int, int]) -> str:
    """A query whose rows are those of the model."""
    values = ", ".join(f"(BIGINT '{id_}', INTEGER '{number}')" for id_, number in numbers.items())
    told = ", ".join(
        f"CAST({value} AS {type_.removesuffix(' NOT NULL')}) AS {n}" for n, (type_, value) in COLUMNS.items()
    )
    return f"SELECT {told} FROM (VALUES {values}) AS model (id, number)"


def _of_next(name: str) -> str:
    """The value of a column of a row whose number is one more."""
    type_, value = COLUMNS[name]
    return f"CAST({value.replace('number', '(number + 1)')} AS {type_})"
