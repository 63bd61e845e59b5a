"""PyIceberg's own configuration: `PYICEBERG_CATALOG__NAME__KEY` and `.pyiceberg.yaml`, read by its rules.

Names are lower case; in a variable `__` is a dot and `_` a dash. A key that the environment sets wins over the file's.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from icekeep.errors import UsageError
from icekeep.operations.configuration.documents import Entry, read_document
from icekeep.operations.configuration.file import CatalogSettings
from icekeep.secrets import is_own_file

_FILE = ".pyiceberg.yaml"
_PREFIX = "pyiceberg_catalog__"
_TYPES_BY_SCHEME = {"http": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}


def pyiceberg_catalogs(environ: Mapping[str, str], directory: Path) -> dict[str, CatalogSettings]:
    """The catalogs that PyIceberg would find when it runs in `directory`.

    Raises:
        UsageError: the file is not YAML, or is another user's.
        ConfigError: the file's catalogs are no mappings, or there is a list in one.
    """
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
