"""Which catalog a name means: the YAML file, then Spark's configuration, then PyIceberg's.

The first source that knows a name gives all its properties; they are not mixed, since each source describes a whole catalog.

PyIceberg's configuration, `PYICEBERG_CATALOG__NAME__KEY` and `.pyiceberg.yaml`, is read by its rules: names are lower case; in a
variable `__` is a dot and `_` a dash. A key that the environment sets wins over the file's.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from icekeep.errors import NotFoundError, UsageError
from icekeep.names import FULL_NAME, NAME_IN_CATALOG, join_parts, name_of_form, split_name, without_catalog
from icekeep.operations.configuration.documents import Entry, read_document
from icekeep.operations.configuration.file import CatalogSettings, Configuration
from icekeep.policies.values import MANY, Glob, parse_glob
from icekeep.secrets import is_own_file
from icekeep.settings import CONFIG_PLACES
from icekeep.spelling import did_you_mean, named_or_known, with_one_typo

_FILE = ".pyiceberg.yaml"
_PREFIX = "pyiceberg_catalog__"
_TYPES_BY_SCHEME = {"http": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}


def pyiceberg_catalogs(environ: Mapping[str, str], directory: Path) -> dict[str, CatalogSettings]:
    """The catalogs that PyIceberg would find when it runs in `directory`."""
    properties: dict[str, dict[str, str]] = {}
    sources: dict[str, dict[str, str]] = {}
    path = _find_file(environ, directory)
    found = [] if path is None else [(name, key, value, str(path)) for name, key, value in _from_file(path)]
    given = _from_environment(environ)
    if path is not None and path.parent == directory and {name for name, *_ in found} & {name for name, *_ in given}:
        _refuse_foreign_file(path, environ)
    for name, key, value, source in found + given:
        properties.setdefault(name, {})[key] = value
        sources.setdefault(name, {})[key] = source
    return {name: _settings(name, properties[name], sources[name]) for name in properties}


def _find_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    home = environ.get("HOME")
    places = [environ.get("PYICEBERG_HOME"), home, str(directory)]
    paths = [Path(place) / _FILE for place in places if place]
    return next((path for path in paths if path.is_file()), None)


def _refuse_foreign_file(path: Path, environ: Mapping[str, str]) -> None:
    """Refuse a file of the current directory that completes what the environment says of a catalog, if another user made it."""
    if str(path.parent) not in (environ.get("PYICEBERG_HOME"), environ.get("HOME")) and not is_own_file(path):
        raise UsageError(
            f"{str(path)!r} belongs to another user, and configures a catalog that PYICEBERG_CATALOG__... variables configure "
            f"too; if you trust the file, set PYICEBERG_HOME to {str(path.parent)!r}",
            path=str(path),
        )


def _from_file(path: Path) -> list[tuple[str, str, str]]:
    document = read_document(str(path))
    below = {} if document is None else {key.lower(): entry for key, entry in document.mapping().items()}
    if "catalog" not in below:
        return []
    return [
        (name.lower(), key, value)
        for name, entry in below["catalog"].mapping().items()
        for key, value in _flat("", entry)
    ]


def _flat(prefix: str, entry: Entry) -> Iterator[tuple[str, str]]:
    """The single values below an entry; keys that lie in each other, as those of `ssl`, are joined by dots."""
    for key, item in entry.mapping().items():
        name = f"{prefix}{key.lower()}"
        if isinstance(item.value, Mapping):
            yield from _flat(f"{name}.", item)
        else:
            yield name, item.scalar()


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    found = []
    for variable, value in environ.items():
        name, separator, key = variable.lower().removeprefix(_PREFIX).partition("__")
        if variable.lower().startswith(_PREFIX) and separator and name and key:
            found.append(
                (name.replace("_", "-"), key.replace("__", ".").replace("_", "-"), value, f"variable {variable}")
            )
    return found


def _settings(name: str, properties: dict[str, str], sources: dict[str, str]) -> CatalogSettings:
    scheme = properties.get("uri", "").partition(":")[0].partition("+")[0]
    guessed = _TYPES_BY_SCHEME.get("http" if scheme.startswith("http") else scheme)
    if guessed is not None:
        # A type that is given wins.
        properties, sources = {**properties}, {**sources}
        if properties.setdefault("type", guessed) is guessed:
            sources.setdefault("type", "inferred from uri")
    return CatalogSettings(name, properties, sources)


DEFAULT_CATALOG = "default"
"""The catalog that is meant where several are known and none is named, as with PyIceberg."""

_SPARK_PREFIX = "spark.sql.catalog."
_ICEBERG_CLASSES = "org.apache.iceberg."
_KINDS = ("type", "catalog-impl")
_TYPES_BY_CLASS = {
    "JdbcCatalog": "jdbc",
    "HadoopCatalog": "hadoop",
    "RESTCatalog": "rest",
    "HiveCatalog": "hive",
    "GlueCatalog": "glue",
    "NessieCatalog": "nessie",
}


class Catalogs:
    """The catalogs that this process can name; a source is only asked when a name is not found before it.

    Args:
        spark_properties: gives Spark's configuration; may be slow.
    """

    def __init__(
        self,
        config: Configuration,
        spark_properties: Callable[[], Mapping[str, str]],
        environ: Mapping[str, str],
        directory: Path,
    ) -> None:
        self._sources: tuple[Callable[[], Mapping[str, CatalogSettings]], ...] = (
            lambda: config.catalogs,
            lambda: spark_catalogs(spark_properties()),
            lambda: pyiceberg_catalogs(environ, directory),
        )
        self.config = config
        self._asked: list[Mapping[str, CatalogSettings]] = []

    def find(self, name: str) -> CatalogSettings | None:
        return next((found[name] for found in self._known() if name in found), None)

    def all(self) -> dict[str, CatalogSettings]:
        known: dict[str, CatalogSettings] = {}
        for found in self._known():
            known = {**found, **known}
        return dict(sorted(known.items()))

    def chosen(self, name: str | None) -> tuple[CatalogSettings, ...]:
        """The catalog with a name, or all where none is given, of which there may be none; raises as `get`."""
        return tuple(self.all().values()) if name is None else (self.get(name),)

    def get(self, name: str | None) -> CatalogSettings:
        """The settings of a catalog; without a name, of the only one in the file, the only one at all, or `default`."""
        found = self.find(name) if name is not None else self._unnamed()
        if found is not None:
            return found
        known = self.all()
        wrong = f"there is no catalog {name!r}" if name is not None else "it is not clear which catalog is meant"
        if known:
            raise NotFoundError(f"{wrong}; {named_or_known(name or '', known)}", catalog=name, known=list(known))
        none = f"no catalog is configured: {self._where_it_looked()}"
        raise NotFoundError(none if name is None else f"{wrong}; {none}", catalog=name, known=[])

    def _unnamed(self) -> CatalogSettings | None:
        if len(self.config.catalogs) == 1:
            return next(iter(self.config.catalogs.values()))
        default = self.find(DEFAULT_CATALOG)
        if default is not None:
            return default
        known = self.all()
        return next(iter(known.values())) if len(known) == 1 else None

    def _where_it_looked(self) -> str:
        path = self.config.path
        if path:
            return f"not in {path}, nor in Spark's or PyIceberg's configuration"
        return (
            f"there is no configuration ({CONFIG_PLACES}); make one with `icekeep init`, or name a file with --config"
        )

    def _known(self) -> Iterator[Mapping[str, CatalogSettings]]:
        """What each source knows, asked once and not before its turn."""
        for number, source in enumerate(self._sources):
            if len(self._asked) <= number:
                self._asked.append(source())
            yield self._asked[number]


class TableReference(msgspec.Struct, frozen=True):
    """A table as the user named it, with the catalog that this means.

    Attributes:
        doubt: what to say where there is no such table: the first of three or more parts is no catalog, so that it is taken
            for a namespace.
    """

    catalog: CatalogSettings
    name: str
    doubt: str = ""

    @property
    def full_name(self) -> str:
        return f"{join_parts((self.catalog.name,))}.{self.name}"

    def not_found(self, error: NotFoundError) -> NotFoundError:
        """The error of a table that its catalog does not have, with what may be wrong with the name."""
        return NotFoundError(f"{error.message}; {self.doubt}", **error.facts) if self.doubt else error


def find_table(catalogs: Catalogs, table: str, catalog: str | None = None) -> TableReference:
    """Tell the catalog from the table in `namespace.table` or `catalog.namespace.table`.

    The first part is a catalog if no other is named, two more parts follow, and there is a catalog of that name.
    """
    first, *below = split_name(table)
    name = name_of_form(table, NAME_IN_CATALOG)
    if name is None:
        raise UsageError(f"{table!r} cannot be a table; name it as {NAME_IN_CATALOG} or {FULL_NAME}")
    if catalog is None and len(below) > 1:
        found = catalogs.find(first)
        if found is not None:
            return TableReference(found, without_catalog(name))
        near = with_one_typo(first, catalogs.all())
        doubt = f"{first!r} is not configured as a catalog either" + (f"; {did_you_mean(near)}" if near else "")
        return TableReference(_unnamed(catalogs, first), name, doubt)
    return TableReference(_unnamed(catalogs) if catalog is None else catalogs.get(catalog), name)


def _unnamed(catalogs: Catalogs, first: str = "") -> CatalogSettings:
    """The catalog of a table that is named without one; `first` is the part of the name that may be a mistyped catalog."""
    try:
        return catalogs.get(None)
    except NotFoundError as error:
        if with_one_typo(first, catalogs.all()):
            return catalogs.get(first)
        if not catalogs.all():
            raise
        raise NotFoundError(
            f"{error.message}; name the table as {FULL_NAME}, or give --catalog", **error.facts
        ) from None


class PatternReference(msgspec.Struct, frozen=True):
    """A pattern, `text` as the user gave it, with the catalogs that this means; `glob` is over `namespace.table`.

    Attributes:
        doubt: what to say where it matches no table: its first part is no catalog, but nearly one.
    """

    text: str
    catalogs: tuple[CatalogSettings, ...]
    glob: Glob
    doubt: str = ""

    def matches_nothing(self) -> NotFoundError:
        """The error where its catalogs have no table that it matches."""
        looked = ", ".join(one.name for one in self.catalogs)
        return NotFoundError(
            f"{self.text!r} matches no table of {looked}; {self.doubt or '`icekeep tables` lists all'}"
        )


def find_pattern(catalogs: Catalogs, pattern: str, catalog: str | None = None) -> PatternReference:
    """Tell the catalog from the tables in a pattern over `namespace.table` or `catalog.namespace.table`.

    As in the name of a table, the first part is a catalog if no other is named, a pattern of tables follows, and there is a
    catalog of that name. Without one all are meant.
    """
    whole = parse_glob(pattern, NAME_IN_CATALOG)
    if catalog is not None:
        return PatternReference(pattern, (catalogs.get(catalog),), whole)
    first, *below = split_name(pattern)
    may_be_catalog = len(below) > 1 or below == [MANY]
    found = catalogs.find(first)
    if found is not None and may_be_catalog:
        return PatternReference(pattern, (found,), parse_glob(without_catalog(pattern), NAME_IN_CATALOG))
    known = catalogs.all()
    near = with_one_typo(first, known) if may_be_catalog else []
    doubt = f"there is no catalog {first!r}; {did_you_mean(near)}" if near else ""
    return PatternReference(pattern, tuple(known.values()), whole, doubt)


def catalogs_of_tables(
    catalogs: Catalogs, catalog: str | None, pattern: PatternReference | None = None
) -> tuple[CatalogSettings, ...]:
    """The catalogs whose tables are asked for, one at least: those of a pattern, else the one that is named, else all."""
    chosen = catalogs.chosen(catalog) if pattern is None else pattern.catalogs
    # Where there is none, the error says where catalogs were looked for.
    return chosen or (catalogs.get(None),)


def spark_catalogs(properties: Mapping[str, str]) -> dict[str, CatalogSettings]:
    """The Iceberg catalogs in Spark's configuration, `spark.sql.catalog.NAME` and the properties below it."""
    below: dict[str, dict[str, str]] = {}
    for key, value in properties.items():
        name, _, rest = key.removeprefix(_SPARK_PREFIX).partition(".")
        if key.startswith(_SPARK_PREFIX) and name:
            below.setdefault(name, {})[rest] = value
    # Other formats' catalogs stand under the same prefix; without a class, a type says that Iceberg's is meant.
    return {
        name: _from_spark(name, given)
        for name, given in below.items()
        if (given[""].startswith(_ICEBERG_CLASSES) if "" in given else not given.keys().isdisjoint(_KINDS))
    }


def _from_spark(name: str, given: Mapping[str, str]) -> CatalogSettings:
    properties = {key: value for key, value in given.items() if key}
    sources = {key: f"{_SPARK_PREFIX}{name}.{key}" for key in properties}
    if "type" not in properties:
        implementation = properties.get("catalog-impl", "")
        # Without either, Iceberg's Spark catalog is a Hive one.
        kind = _TYPES_BY_CLASS.get(implementation.rpartition(".")[2], implementation or "hive")
        properties["type"] = kind
        sources["type"] = f"{_SPARK_PREFIX}{name}.catalog-impl" if implementation else "Iceberg's default for Spark"
    return CatalogSettings(name, properties, sources)
