"""What metadata names under keys that the specification did not have."""

from collections.abc import Iterator, Mapping

from icekeep.spec.metadata import TableMetadata
from icekeep.storage.locations import is_location


def unknown_names(metadata: TableMetadata) -> dict[str, str]:
    """Locations that metadata names under keys which the specification did not have, each with its key; they are retained.

    Later versions keep indexes, for example, in the table's place. What is no location by itself may be one below the table's.
    """
    views = (*metadata.snapshots, *metadata.refs.values(), *metadata.statistics, *metadata.partition_statistics)
    found: dict[str, str] = {}
    for extra in (metadata.extra, *(view.extra for view in views)):
        for key, value in extra.items():
            for text in _texts(value):
                location = text if is_location(text) else f"{metadata.location.rstrip('/')}/{text}"
                if "/" in text and is_location(location):
                    found.setdefault(location, key)
    return found


def _texts(value: object) -> Iterator[str]:
    """All texts in a JSON value, those of keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for below in value.values():
            yield from _texts(below)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _texts(below)
