"""Deletion vectors: blob, bitmap and count (414, 415), and the footer of their Puffin file (416)."""

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
from pyroaring import BitMap64

from icekeep.errors import InvalidTableError, MissingFileError, first_line
from icekeep.formats.puffin import BlobMetadata, PuffinFooter, footer_of, positions_of
from icekeep.maintenance.checking.deletes.claims import Claim, Telling
from icekeep.maintenance.checking.deletes.reaches import Seen
from icekeep.maintenance.checking.faults import Tally
from icekeep.spec.reach import BLOB_TYPE
from icekeep.storage.base import Storage

VECTOR_UNREADABLE = 414
DELETED_COUNT_WRONG = 415
PUFFIN_FOOTER_WRONG = 416

_TARGET, _CARDINALITY = "referenced-data-file", "cardinality"
_NEEDED = ("content_offset", "content_size_in_bytes", "referenced_data_file")


class VectorCheck(msgspec.Struct, frozen=True):
    """Holds the vectors of one Puffin file after the other against their entries."""

    storage: Storage
    telling: Telling

    def check(self, claims: Sequence[Claim], tally: Tally, seen: Seen) -> None:
        """Tell the faults of a file, of whose vectors these are all that is said; a file that is not there has none.

        Raises:
            TryAgainError: the store is out of reach.
        """
        path = claims[0].path
        if any(claim.row["key_metadata"] is not None for claim in claims):
            tally.gap(f"delete file {path!r}", "it is encrypted")
            return
        # An entry that lacks these contradicts itself, which is a fault of its own.
        whole = [claim for claim in claims if all(claim.row[name] is not None for name in _NEEDED)]
        try:
            with self.storage.open(path) as stream:
                footer = self._footer(stream, claims, tally)
                for claim in whole:
                    self._vector(stream, claim, footer, tally, seen)
        except MissingFileError:
            return

    def _footer(self, stream: BinaryIO, claims: Sequence[Claim], tally: Tally) -> PuffinFooter | None:
        try:
            return footer_of(stream, claims[0].path)
        except InvalidTableError as error:
            of_all = Claim(claims[0].row, tuple(number for claim in claims for number in claim.manifests))
            self.telling.fault(tally, PUFFIN_FOOTER_WRONG, of_all, first_line(error))
            return None

    def _vector(self, stream: BinaryIO, claim: Claim, footer: PuffinFooter | None, tally: Tally, seen: Seen) -> None:
        row = claim.row
        offset, recorded = row["content_offset"], row["record_count"]
        try:
            positions = _positions(stream, offset, row["content_size_in_bytes"])
        except InvalidTableError as error:
            self.telling.fault(tally, VECTOR_UNREADABLE, claim, first_line(error))
            positions = None
        if positions is not None:
            found = len(positions)
            if found != recorded:
                detail = f"its vector at {offset} deletes {found} rows where its entry says {recorded}"
                self.telling.fault(tally, DELETED_COUNT_WRONG, claim, detail, recorded=recorded, found=found)
            if found:
                seen.add(claim, [row["referenced_data_file"]], np.array([positions.max()], np.int64))
        if footer is not None and (wrong := wrong_blob(footer, row, positions)) is not None:
            self.telling.fault(tally, PUFFIN_FOOTER_WRONG, claim, wrong)


def _positions(stream: BinaryIO, offset: int, length: int) -> BitMap64:
    end = stream.seek(0, 2)
    if offset < 0 or length < 0 or offset + length > end:
        raise InvalidTableError(f"its vector should lie at bytes {offset} to {offset + length}, and the file has {end}")
    stream.seek(offset)
    return positions_of(stream.read(length), f"at byte {offset}")


def named_data_file(blob: BlobMetadata) -> str | None:
    """The data file that a footer says a vector is for."""
    return blob.properties.get(_TARGET)


def wrong_blob(footer: PuffinFooter, row: Mapping[str, Any], positions: BitMap64 | None) -> str | None:
    """What the footer says wrongly of a vector; `None` if nothing.

    Args:
        row: what its entry says, by names of fields.
        positions: that it has; `None` where they cannot be read.
    """
    offset, length = row["content_offset"], row["content_size_in_bytes"]
    blobs = [blob for blob in footer.blobs if (blob.offset, blob.length) == (offset, length)]
    if not blobs:
        return f"its footer has no blob of {length} bytes at {offset}, where a vector lies by its entry"
    wrong = [_wrong_properties(blob, row["referenced_data_file"], positions) for blob in blobs]
    return None if None in wrong else f"in its footer the blob at {offset} {wrong[0]}"


def _wrong_properties(blob: BlobMetadata, target: str, positions: BitMap64 | None) -> str | None:
    if blob.type != BLOB_TYPE:
        return f"is of type {blob.type!r}, where its entry takes it for a deletion vector"
    if blob.compression_codec is not None:
        return f"is packed with {blob.compression_codec!r}, as no deletion vector may be"
    named, count = named_data_file(blob), blob.properties.get(_CARDINALITY)
    if named != target:
        return f"is for data file {named!r}, where its entry says {target!r}"
    if positions is not None and count != str(len(positions)):
        return f"has cardinality {count!r}, where {len(positions)} rows are deleted"
    return None
