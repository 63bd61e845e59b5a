"""Names of tables as people write them: `NAMESPACE.TABLE` in a catalog, and the full name, with the catalog in front.

In a catalog a name is an `Identifier` (`catalog/base.py`), its parts; a full name is text, and tells tables of catalogs apart.
"""

from typing import NamedTuple

from icekeep.errors import UsageError

FULL_NAME = "CATALOG.NAMESPACE.TABLE"
NAME_IN_CATALOG = "NAMESPACE.TABLE"


class FullName(NamedTuple):
    """The parts of a full name; a namespace of several levels has dots."""

    catalog: str
    namespace: str
    table: str

    @classmethod
    def parse(cls, text: str) -> "FullName":
        """Take `lake.db.events` apart.

        >>> FullName.parse("lake.raw.web.clicks")
        FullName(catalog='lake', namespace='raw.web', table='clicks')

        Raises:
            UsageError: it has fewer than three parts, or an empty one.
        """
        if not has_form(text, FULL_NAME):
            raise UsageError(f"{text!r} is no full name of a table; give {FULL_NAME}")
        catalog, _, name = text.partition(".")
        namespace, _, table = name.rpartition(".")
        return cls(catalog, namespace, table)


def has_form(text: str, form: str) -> bool:
    """Whether a text has as many parts as a form, such as `FULL_NAME`, or more, and each can be one."""
    parts = text.split(".")
    return len(parts) > form.count(".") and all(part and part == part.strip() and part.isprintable() for part in parts)


def catalog_of(full_name: str) -> str:
    """The catalog of a table by its full name, or of a namespace or pattern with the catalog in front."""
    return full_name.partition(".")[0]
