"""Position delete files: whether they can be read (413), their order and count (412, 415), and what they are for (421)."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, first_line
from icekeep.formats.deletes.read import BATCH_ROWS, delete_source, refuse_wrong_ids
from icekeep.formats.reader import FileColumns, read_file
from icekeep.maintenance.checking.deletes.claims import Claim, Telling
from icekeep.maintenance.checking.deletes.reaches import Seen
from icekeep.maintenance.checking.deletes.vectors import DELETED_COUNT_WRONG
from icekeep.maintenance.checking.faults import Tally
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema
from icekeep.storage.base import Storage

DELETES_UNSORTED = 412
DELETE_FILE_UNREADABLE = 413
REFERENCE_WRONG = 421

_COLUMNS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))


class PositionCheck(msgspec.Struct, frozen=True):
    """Holds one position delete file after the other against its entries."""

    storage: Storage
    telling: Telling

    def check(self, claims: Sequence[Claim], tally: Tally, seen: Seen) -> None:
        """Tell the faults of a file of which this is all that is said; one that is not there has none.

        Raises:
            TryAgainError: the store is out of reach.
        """
        first = claims[0]
        rows = _Rows()
        source = delete_source(first.path, first.row["file_format"], FileContent.POSITION_DELETES)
        columns = FileColumns(_COLUMNS, kept_dictionaries=(DELETE_FILE_PATH.field_id,))
        try:
            for table in read_file(self.storage, source, columns, refuse_wrong_ids, batch_rows=BATCH_ROWS):
                for paths, lasts in rows.add(table):
                    seen.add(first, paths, lasts)
        except MissingFileError:
            return
        except InvalidTableError as error:
            self.telling.fault(tally, DELETE_FILE_UNREADABLE, first, first_line(error))
            return
        except UnsupportedError as error:
            tally.gap(f"delete file {first.path!r}", first_line(error))
            return
        if rows.unsorted is not None:
            self.telling.fault(tally, DELETES_UNSORTED, first, rows.unsorted)
        for claim in claims:
            self._claim(claim, rows, tally)

    def _claim(self, claim: Claim, rows: "_Rows", tally: Tally) -> None:
        recorded = claim.row["record_count"]
        if rows.count != recorded:
            detail = f"it has {rows.count} rows where its entry says {recorded}"
            self.telling.fault(tally, DELETED_COUNT_WRONG, claim, detail, recorded=recorded, found=rows.count)
        if (wrong := _wrong_reference(claim, rows)) is not None:
            path, detail = wrong
            found = rows.paths[0] if len(rows.paths) == 1 else None
            self.telling.fault(tally, REFERENCE_WRONG, claim, detail, recorded=path, found=found)


def _wrong_reference(claim: Claim, rows: "_Rows") -> tuple[str, str] | None:
    """What an entry says wrongly of the data files that its deletes are for: the path that it names, and a sentence."""
    if rows.lowest is None or rows.highest is None:
        return None
    first, last = _text(claim.row["first_path"]), _text(claim.row["last_path"])
    # A bound that was cut short is never equal to the other.
    for what, path in (
        ("referenced_data_file", claim.row["referenced_data_file"]),
        ("bounds of file_path", first if first == last else None),
    ):
        other = next((one for one in rows.paths if one != path), None)
        if path is not None and other is not None:
            return (
                path,
                f"its entry says by {what} that it deletes rows of {path!r} only, and it deletes some of {other!r}",
            )
    if first is not None and _is_after(first, rows.lowest):
        return first, f"its entry says that the paths begin with {first!r}, and it deletes rows of {rows.lowest!r}"
    # Some writers cut an upper bound and forget to increment it.
    if last is not None and _is_after(rows.highest[: len(last)], last):
        return last, f"its entry says that the paths end with {last!r}, and it deletes rows of {rows.highest!r}"
    return None


class _Rows:
    """What is learnt of the rows of a position delete file as they pass by.

    Attributes:
        paths: the first two data files of which there are rows.
        lowest, highest: the least and the greatest path.
        unsorted: where the order is broken first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.paths: list[str] = []
        self.lowest: str | None = None
        self.highest: str | None = None
        self.unsorted: str | None = None
        self._last: tuple[str, int] | None = None

    def add(self, table: pa.Table) -> Iterator[tuple[list[str], NDArray[np.int64]]]:
        """Take in some rows; gives the data files of runs of rows, each with the last position of its run.

        Raises:
            InvalidTableError: a position is below 0.
        """
        if not table.num_rows:
            return
        positions = table.column(1).to_numpy()
        if positions.min() < 0:
            raise InvalidTableError(f"it deletes a row at position {positions.min()}, below 0")
        codes, texts = _encoded(table.column(0))
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        paths = [texts[code] for code in codes[starts].tolist()]
        self.count += table.num_rows
        self.lowest = min(paths if self.lowest is None else (self.lowest, *paths))
        self.highest = max(paths if self.highest is None else (self.highest, *paths))
        for path in paths:
            if len(self.paths) == 2:
                break
            if path not in self.paths:
                self.paths.append(path)
        if self.unsorted is None:
            self._check_order(paths, starts, positions)
        self._last = paths[-1], int(positions[-1])
        yield paths, np.maximum.reduceat(positions, starts)

    def _check_order(self, paths: list[str], starts: NDArray[np.intp], positions: NDArray[np.int64]) -> None:
        before = self._last
        for path, start in zip(paths, starts.tolist(), strict=True):
            if before is not None and (
                _is_after(before[0], path) or (before[0] == path and before[1] > positions[start])
            ):
                self.unsorted = f"row {positions[start]} of {path!r} comes after row {before[1]} of {before[0]!r}"
                return
            before = path, 0
        falls = np.diff(positions) < 0
        falls[starts[1:] - 1] = False
        if falls.any():
            at = int(np.argmax(falls))
            path = paths[int(np.searchsorted(starts, at, side="right")) - 1]
            self.unsorted = f"row {positions[at + 1]} of {path!r} comes after row {positions[at]}"


def _encoded(column: pa.ChunkedArray) -> tuple[NDArray[Any], list[str]]:
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    # A dictionary may have a text twice, and then two codes are one path.
    texts = encoded.dictionary.dictionary_encode()
    return texts.indices.to_numpy()[encoded.indices.to_numpy()], texts.dictionary.to_pylist()


def _is_after(first: str, second: str) -> bool:
    """Whether a path is greater, in the order of code points and in Java's, which differ above U+D7FF."""
    return first > second and first.encode("utf-16-be", "surrogatepass") > second.encode("utf-16-be", "surrogatepass")


def _text(bound: bytes | None) -> str | None:
    """A bound as text; `None` where it is none, as one that was cut within a character."""
    try:
        return None if bound is None else bound.decode()
    except UnicodeDecodeError:
        return None
