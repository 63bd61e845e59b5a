"""Manifests that many lists name, each once; told apart by the keys of their paths."""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.planning.manifests.list_columns import UNKNOWN, ListedRows, rows_of
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import canonical

_Rows: TypeAlias = NDArray[np.int64]


class ListedManifests(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests that some snapshots lead to.

    Attributes:
        manifests: each once.
        keys: of their paths, as `location_keys` has them, in the same order, which is ascending.
        untotalled_count: of the snapshots that were checked, those of whose files not all could be held against a total:
            the summary has none, or the list does not count.
        unreadable: lists, or manifests that a snapshot names itself, that could not be read.
    """

    manifests: tuple[ManifestFile, ...]
    keys: Keys
    untotalled_count: int = 0
    unreadable: tuple[str, ...] = ()


class DistinctManifests:
    """Collects rows of manifest lists; of a manifest that is there already only a better row is made a value.

    Attributes:
        check: whether lists that contradict each other are an error.
    """

    def __init__(self, unwanted: Keys, *, check: bool) -> None:
        """Begin with nothing; manifests with `unwanted` keys, which ascend, are left out."""
        self.check = check
        self._unwanted = unwanted
        self._by_key: dict[int, ManifestFile] = {}

    def is_unwanted(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys are of manifests that are left out."""
        if not len(self._unwanted):
            return np.zeros(len(keys), bool)
        indices = np.minimum(np.searchsorted(self._unwanted, keys), len(self._unwanted) - 1)
        found: NDArray[np.bool_] = self._unwanted[indices] == keys
        return found

    def add(self, rows: ListedRows, lists: Sequence[str]) -> None:
        """Take in rows of lists that are called so in a sentence.

        Raises:
            InvalidTableError: two lists give one manifest different lengths, or a path is none.
            NotReadError: a row needs a closer look; none is taken in.
        """
        coded = rows.paths.dictionary_encode()
        codes, path_keys = coded.indices.to_numpy(), location_keys(coded.dictionary)
        wanted = np.flatnonzero(~self.is_unwanted(path_keys)[codes])
        best = self._best_of_each(rows, codes, wanted, lists)
        keys = path_keys[codes[best]].tolist()
        new = [self._says_more(rows, row, key, lists) for row, key in zip(best.tolist(), keys, strict=True)]
        made = rows.made(best[np.array(new, bool)])
        new_keys = (key for key, is_new in zip(keys, new, strict=True) if is_new)
        for key, manifest in zip(new_keys, made, strict=True):
            known = self._by_key.get(key)
            # Two spellings of one path may come together.
            if known is None or self._says_more(rows_of([manifest]), 0, key, ["another manifest list"]):
                self._by_key[key] = manifest

    def manifests(self) -> tuple[Keys, tuple[ManifestFile, ...]]:
        """What was taken in: keys, which ascend, and the manifests in their order."""
        keys = sorted(self._by_key)
        return np.array(keys, np.int64), tuple(self._by_key[key] for key in keys)

    def _best_of_each(self, rows: ListedRows, codes: NDArray[np.int32], wanted: _Rows, lists: Sequence[str]) -> _Rows:
        """Of the rows of each path the one with the most live files; where their number is not known it counts as more."""
        order = wanted[np.lexsort((rows.live_counts[wanted].view(np.uint64), codes[wanted]))]
        is_same = codes[order][1:] == codes[order][:-1]
        if self.check:
            lengths = rows.lengths[order]
            differing = np.flatnonzero(is_same & (lengths[1:] != lengths[:-1]))
            if len(differing):
                row, other = (int(order[differing[0] + step]) for step in (1, 0))
                raise _contradiction(rows, row, int(rows.lengths[other]), lists)
        return order[np.append(~is_same, np.ones(min(1, len(order)), bool))]

    def _says_more(self, rows: ListedRows, row: int, key: int, lists: Sequence[str]) -> bool:
        """Whether a row is of a new manifest, or says of more live files than what is known of its manifest."""
        known = self._by_key.get(key)
        if known is None:
            return True
        if self.check:
            if int(rows.lengths[row]) != known.manifest_length:
                raise _contradiction(rows, row, known.manifest_length, lists)
            path = rows.paths[row].as_py()
            if path != known.manifest_path and canonical(path) != canonical(known.manifest_path):
                # Once in billions of tables: what the other one leads to would be taken for garbage.
                raise UnsupportedError(
                    f"manifests {known.manifest_path!r} and {path!r} cannot be told apart by their keys"
                )
        count, known_count = int(rows.live_counts[row]), known.live_files_count
        return known_count is not None and (count == UNKNOWN or count > known_count)


def _contradiction(rows: ListedRows, row: int, other: int, lists: Sequence[str]) -> InvalidTableError:
    path, name = rows.paths[row].as_py(), lists[int(rows.list_numbers[row])]
    return InvalidTableError(
        f"manifest {path!r} has {int(rows.lengths[row])} bytes by {name}, but {other} by another manifest list",
        location=path,
    )
