"""What a catalog's client raises where an answer says what stands in the way; anything else it raises as its library does.

Each is raised from the library's own error, which tells what was answered.
"""

from typing import ClassVar, Self

from icekeep.catalog.base import Identifier, format_identifier


class Refusal(Exception):
    """A request was answered by a no that has a meaning."""

    says: ClassVar[str] = "refused:"

    @classmethod
    def of(cls, name: Identifier) -> Self:
        """The refusal of a request about a table or namespace, where the answer has no words of its own."""
        return cls(f"{cls.says} {format_identifier(name)!r}")


class NoSuchTable(Refusal):
    """There is no table of this name."""

    says = "there is no table"


class NoIcebergTable(Refusal):
    """What has this name is no Iceberg table."""

    says = "this is no Iceberg table:"


class TableExists(Refusal):
    """The name is taken."""

    says = "there is already a table"


class NoSuchNamespace(Refusal):
    """There is no namespace of this name."""

    says = "there is no namespace"


class NamespaceExists(Refusal):
    """There is a namespace of this name."""

    says = "there is already a namespace"


class NamespaceNotEmpty(Refusal):
    """There are tables or namespaces in it."""

    says = "there is something in namespace"


class CommitRefused(Refusal):
    """The table is not what the commit was made for, or somebody else is at it."""

    says = "another writer has changed table"
