"""Puffin files whose footer is wrong while their vectors are sound: the vectors are written into a new file, as they are.

Readers that go by entries find the vectors without a footer, so that they read the same rows before and after.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
from pyroaring import BitMap64

from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.formats.puffin import BlobMetadata, PuffinFooter, read_deletion_vector, read_puffin_footer
from icekeep.maintenance.checking.deletes.vectors import named_data_file, wrong_blob
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.repairing.heads import Head
from icekeep.maintenance.repairing.named_entries import Place
from icekeep.maintenance.repairing.plan import VectorMerge
from icekeep.maintenance.repairing.reasons import NOT_FOUND, CannotMendError
from icekeep.maintenance.repairing.refusals import refuse_described, refuse_doubled
from icekeep.spec.manifests.structs import DataFile, ManifestContent
from icekeep.spec.reach import is_deletion_vector

PUFFIN = frozenset((416,))


class Puffins:
    """Plans new Puffin files for the vectors that branches have in bad ones."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}

    def mend(self, head: Head, fault: Fault) -> str:
        """Plan a copy of each vector that a branch has in a file; returns what is written, in a sentence.

        A copy has the data sequence number, partition, data file and positions of its vector, and so reaches the same rows.

        Raises:
            CannotMendError: a vector is not sound, or it is in doubt for which data file it is, or the file is as it should be.
        """
        path = str(fault.facts["file_path"])
        if head.branch not in self._live:
            self._live[head.branch] = _live_of(head)
        live = self._live[head.branch]
        places = live.vectors.get(path, ())
        if not places:
            raise CannotMendError("")
        merged = head.work.merged
        places = [place for place in places if place.key not in merged]
        if not places:
            return "its live vectors are written into a new Puffin file"
        positions = _sound(head, path, places)
        if not _is_wrong(head, path, places, positions):
            raise CannotMendError(NOT_FOUND)
        _refuse_several(live, places)
        for place in places:
            refuse_doubled(head, place.row)
            refuse_described(head, place)
        head.work.merges += [
            VectorMerge(
                data_file=str(place.entry.data_file.referenced_data_file),
                entries=(place.mended(None, is_replaced=True),),
                cardinality=len(found),
            )
            for place, found in zip(places, positions, strict=True)
        ]
        count = sum(map(len, positions))
        return f"its {len(places)} live vectors, of {count} positions, are written into a new Puffin file, as they are"


class _Live(msgspec.Struct):
    """What is live on a branch: its vectors by their file, how many there are for each data file, and how often that is live."""

    vectors: Mapping[str, Sequence[Place]]
    vectors_of: Counter[str]
    times: Counter[str]


def _live_of(head: Head) -> _Live:
    vectors: defaultdict[str, list[Place]] = defaultdict(list)
    for place in head.all_live(ManifestContent.DELETES):
        if is_deletion_vector(place.entry.data_file):
            vectors[place.entry.data_file.file_path].append(place)
    targets = (str(place.entry.data_file.referenced_data_file) for some in vectors.values() for place in some)
    times = Counter(place.entry.data_file.file_path for place in head.all_live(ManifestContent.DATA))
    return _Live(vectors, Counter(targets), times)


def _sound(head: Head, path: str, places: Sequence[Place]) -> list[BitMap64]:
    """The positions of each vector, by its own length, magic and checksum, as many as its entry says."""
    storage = head.table.storage
    info = storage.head(path)
    if info is None:
        raise CannotMendError("there is no such file")
    files = [place.entry.data_file for place in places]
    if any(file.key_metadata is not None for file in files):
        raise CannotMendError("the file is encrypted")
    said = max(file.file_size_in_bytes for file in files)
    # One that was cut off lacks its footer, and may have all its vectors.
    if info.size_bytes > said:
        raise CannotMendError(
            f"the file has {info.size_bytes} bytes where its entries say {said}, so it may be another one; see fault 302"
        )
    try:
        return [read_deletion_vector(storage, file) for file in files]
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        raise CannotMendError(f"not every vector in it is sound: {first_line(error)}") from error


def _is_wrong(head: Head, path: str, places: Sequence[Place], positions: Sequence[BitMap64]) -> bool:
    """Whether the footer is wrong of these vectors; raises `CannotMendError` where it contradicts what they are for."""
    files = [place.entry.data_file for place in places]
    _refuse_shared_bytes(files)
    try:
        footer = read_puffin_footer(head.table.storage, path)
    except InvalidTableError:
        return True
    for file in files:
        _refuse_contradiction(footer, file)
    rows = map(msgspec.structs.asdict, files)
    return any(wrong_blob(footer, row, found) is not None for row, found in zip(rows, positions, strict=True))


def _refuse_shared_bytes(files: Iterable[DataFile]) -> None:
    ranges = sorted(map(_range, files))
    if any(start < end for (_, end), (start, _) in pairwise(ranges)):
        raise CannotMendError("two entries name the same bytes of it, and it is not known whose vector they are")


def _refuse_contradiction(footer: PuffinFooter, file: DataFile) -> None:
    """A footer that can be read is a witness too: of two that differ nobody knows which one is right."""
    start, end = _range(file)
    for blob in footer.blobs:
        named = named_data_file(blob)
        is_there = (blob.offset, blob.offset + blob.length) == (start, end)
        if _overlaps(blob, start, end) and named not in (None, file.referenced_data_file):
            raise CannotMendError(
                f"its footer says that the vector at {blob.offset} is for data file {named!r}, its entry for "
                f"{file.referenced_data_file!r}, and it is not known which one is right"
            )
        if named == file.referenced_data_file and not is_there:
            raise CannotMendError(
                f"its footer says that the vector of {named!r} lies at {blob.offset}, its entry at {start}, and it is not known "
                "which one is right"
            )


def _range(file: DataFile) -> tuple[int, int]:
    start = file.content_offset or 0
    return start, start + (file.content_size_in_bytes or 0)


def _overlaps(blob: BlobMetadata, start: int, end: int) -> bool:
    return blob.offset < end and start < blob.offset + blob.length


def _refuse_several(live: _Live, places: Iterable[Place]) -> None:
    for place in places:
        target = str(place.entry.data_file.referenced_data_file)
        if live.vectors_of[target] > 1:
            raise CannotMendError(f"data file {target!r} has {live.vectors_of[target]} vectors: mend fault 213 first")
        if live.times[target] > 1:
            raise CannotMendError(f"data file {target!r} is live {live.times[target]} times: mend fault 212 first")
