"""A metadata file's bytes as JSON, before anything is asked of what it says."""

import zlib
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata_packing import refuse_unknown_packing, unpacked
from icekeep.storage.base import Storage


def read_json(storage: Storage, location: str) -> Any:
    """The decoded JSON of a metadata file, as `check_metadata` takes it.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it does not unpack, or is not JSON.
        UnsupportedError: it is packed in a way that is not known.
        UnavailableError: storage is out of reach for now.
    """
    data = storage.read(location)
    refuse_unknown_packing(data, location)
    try:
        return msgspec.json.decode(unpacked(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise InvalidTableError(f"cannot read table metadata {location!r}: {error}", location=location) from error
