"""What is left of a metadata file that has faults: its bytes, its JSON if it is any, and what its text still tells."""

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from icekeep.catalog.base import Pointer
from icekeep.errors import InvalidTableError, MissingFileError, UnavailableError, first_line
from icekeep.maintenance.checking.faults import Fault, Tally
from icekeep.maintenance.checking.metadata.document import check_metadata, is_uuid
from icekeep.maintenance.checking.metadata_classes import METADATA_UNREADABLE
from icekeep.spec.metadata import metadata_document, unpacked_head
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical

_TEXT_MAX_BYTES = 256 << 20
_CHUNK_BYTES = 64 << 10
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9A-Za-z-]{1,64})"')
_SNAPSHOT_ID = re.compile(rb'"snapshot-id"\s*:\s*([0-9]{1,19})\b')


class SpoiltMetadata(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A metadata file as it is found.

    Attributes:
        data: its bytes; `None` where it is not there.
        raw: its JSON; `None` where it is none.
        tally: the faults that it has.
        previous_location: what the catalog says was the table before it, where it says that.
    """

    location: str
    storage: Storage
    previous_location: str | None
    data: bytes | None
    raw: Any
    tally: Tally

    @property
    def digest(self) -> str:
        """Tells whether a file is still what it was, a missing one among them."""
        return digest_of(self.data)

    @cached_property
    def text(self) -> bytes:
        """As much of its text as can be unpacked."""
        return salvaged(self.data or b"")

    @cached_property
    def table_uuid(self) -> str | None:
        """Whose it says that it is, in lower case; `None` where that is lost, or no UUID."""
        return uuid_in(self.text)

    @property
    def log(self) -> Any:
        """Its metadata log, as far as it is JSON: that of a text that ends too early lacks the newest files, which come last."""
        return self.raw.get("metadata-log") if isinstance(self.raw, Mapping) else None

    @property
    def snapshots(self) -> list[Mapping[str, Any]]:
        """Its snapshots, as far as it is JSON."""
        found = self.raw.get("snapshots") if isinstance(self.raw, Mapping) else None
        some = found if isinstance(found, list) else []
        return [one for one in some if isinstance(one, Mapping) and type(one.get("snapshot-id")) is int]

    @property
    def has_all_snapshots(self) -> bool:
        """Whether each snapshot that it lists can be read."""
        found = self.raw.get("snapshots") if isinstance(self.raw, Mapping) else None
        return isinstance(found, list) and len(found) == len(self.snapshots)

    def named_snapshot_ids(self) -> Iterator[int]:
        """The snapshots that its text names anywhere, each once."""
        return iter(dict.fromkeys(int(one) for one in _SNAPSHOT_ID.findall(self.text)))

    def follows(self, location: str) -> bool:
        """Whether a metadata file was the table: the catalog says so, or its text names it, as it names those in its log."""
        if self.previous_location is not None and canonical(self.previous_location) == canonical(location):
            return True
        return location != self.location and is_named(location, self.text)


def read_spoilt(pointer: Pointer) -> SpoiltMetadata:
    """Read what a table's pointer leads to, and hold it against the spec.

    Raises:
        UnavailableError: storage is out of reach, or does not know what it has: nothing is said of the file then.
        UsageError: storage denies access: the same.
        UnsupportedError: it is packed in a way that we do not read: the same.
    """
    location, tally, raw = pointer.metadata_location, Tally(), None
    data = _read(pointer)
    try:
        if data is None:
            tally.add(Fault(number=METADATA_UNREADABLE, where=location, detail="the metadata file is not there"))
        else:
            raw = metadata_document(data, location)
            check_metadata(raw, location, tally)
    except InvalidTableError as error:
        tally.add(Fault(number=METADATA_UNREADABLE, where=location, detail=first_line(error)))
    return SpoiltMetadata(
        location=location,
        storage=pointer.storage,
        previous_location=pointer.previous_location,
        data=data,
        raw=raw,
        tally=tally,
    )


def _read(pointer: Pointer) -> bytes | None:
    location = pointer.metadata_location
    try:
        return pointer.storage.read(location)
    except MissingFileError as error:
        # Missing is what the store says twice, and in two ways.
        if pointer.storage.head(location) is None:
            return None
        raise UnavailableError(
            f"the store has metadata {location!r}, and did not give it: {first_line(error)}; run it again",
            location=location,
        ) from error


def digest_of(data: bytes | None) -> str:
    """The same for the same bytes, and another where there is no file."""
    return "missing" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


def salvaged(data: bytes) -> bytes:
    """The text of a metadata file, up to where it cannot be unpacked any more."""
    if data.startswith(b"\x1f\x8b"):
        return b"".join(_unzipped(data))
    try:
        return unpacked_head(data, _TEXT_MAX_BYTES)
    except (zlib.error, OSError, EOFError):
        return b""


def _unzipped(data: bytes) -> Iterator[bytes]:
    stream, size = zlib.decompressobj(wbits=31), 0
    for start in range(0, len(data), _CHUNK_BYTES):
        try:
            part = stream.decompress(data[start : start + _CHUNK_BYTES], _TEXT_MAX_BYTES - size)
        except zlib.error:
            return
        size += len(part)
        yield part
        if size >= _TEXT_MAX_BYTES:
            return


def uuid_in(text: bytes) -> str | None:
    """The table's UUID that the text of a metadata file says, in lower case; `None` if it says none."""
    found = _UUID.search(text)
    said = "" if found is None else found[1].decode("ascii").lower()
    return said if is_uuid(said) else None


def is_named(location: str, text: bytes) -> bool:
    """Whether a text has the name of a file, at the end of a location. JSON may write slashes and letters otherwise."""
    name = location.rpartition("/")[2]
    return any(f"/{one}".encode() in text for one in (name, json.dumps(name)[1:-1]))
