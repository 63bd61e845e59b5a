"""How the entries of some manifests lie in the order that they are to be clustered in, without their records.

What a dry run foretells, where ranges of keys are cut for tasks, and how far each manifest reaches, is worked out from this.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate

import mmh3
import msgspec
import numpy as np
import pyarrow as pa

from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, folded
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.transcode import RecordTarget, entry_keys, needs_bounds
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.storage.base import Storage

_MAX_WEIGHTS = 10_000
"""How many from each task are held together on the driver."""


class Weight(msgspec.Struct, frozen=True, order=True):
    """`count` entries have about this key; `partition` is that of one of them."""

    key: bytes
    partition: bytes
    count: int


class Survey:
    """The keys of entries with their numbers, thinned out where they are many; a fold over decoded entries.

    Attributes:
        ends: the least and the greatest key of each manifest, by its path.
        partitions: a sample of the partitions, as `sampled` takes it.
    """

    def __init__(self, target: RecordTarget) -> None:
        self.ends: dict[str, tuple[bytes, bytes]] = {}
        self.partitions: list[bytes] = []
        self._target = target
        self._counts: dict[tuple[bytes, bytes], int] = {}

    def add(self, decoded: DecodedEntries) -> None:
        """Take in some entries."""
        entries = decoded.entries
        if not entries.num_rows:
            return
        coded = entries["partition"].dictionary_encode()
        stored = coded.dictionary.to_pylist()
        codes = coded.indices.to_numpy().astype(np.int64)
        bounds = entries["lower_bounds"] if needs_bounds(self._target.sort) else None
        # A codec cannot be pickled, so none is kept.
        codec = PartitionCodec(self._target.partition)
        keys = entry_keys([*map(codec.decode, stored)], codes, bounds, self._target.sort)
        table = pa.table({"key": keys, "partition": coded.indices, "path": entries["manifest_path"]})
        for row in table.group_by(["key", "partition"]).aggregate([([], "count_all")]).to_pylist():
            self._count(row["key"], stored[row["partition"]], row["count_all"])
        ends = table.group_by("path").aggregate([("key", "min"), ("key", "max")])
        for row in ends.to_pylist():
            self._reach(row["path"], row["key_min"], row["key_max"])
        self.partitions = sampled([*self.partitions, *stored])
        self._thin()

    def merge(self, other: "Survey") -> None:
        """Take in what another survey has found."""
        for (key, partition), count in other._counts.items():
            self._count(key, partition, count)
        for path, (least, greatest) in other.ends.items():
            self._reach(path, least, greatest)
        self.partitions = sampled([*self.partitions, *other.partitions])
        self._thin()

    def weights(self) -> list[Weight]:
        """In the order of keys."""
        return [Weight(key, partition, count) for (key, partition), count in sorted(self._counts.items())]

    def _count(self, key: bytes, partition: bytes, count: int) -> None:
        self._counts[key, partition] = self._counts.get((key, partition), 0) + count

    def _reach(self, path: str, least: bytes, greatest: bytes) -> None:
        before = self.ends.get(path, (least, greatest))
        self.ends[path] = min(before[0], least), max(before[1], greatest)

    def _thin(self) -> None:
        """Of neighbours one stands for both where there are too many; the least and the greatest key stay."""
        if len(self._counts) <= _MAX_WEIGHTS:
            return
        ordered = sorted(self._counts.items())
        kept: dict[tuple[bytes, bytes], int] = {}
        for place in range(0, len(ordered), 2):
            pair = ordered[place : place + 2]
            kept[pair[-1][0] if place else pair[0][0]] = sum(count for _, count in pair)
        self._counts = kept


def survey(
    manifests: Sequence[ManifestFile], spec_id: int, target: RecordTarget, storage: Storage, spark: SparkSource
) -> Survey:
    """How the live entries of manifests of one spec lie; few are read here, many in Spark tasks."""
    wanted = EntryFilter(specs={spec_id: SpecFilter(target.partition)})
    columns = {"manifest_path", "partition"} | ({"lower_bounds"} if needs_bounds(target.sort) else set())
    return folded(storage, spark, manifests, wanted, columns, partial(Survey, target))


def cut_weights(weights: Sequence[Weight], count: int) -> list[Sequence[Weight]]:
    """Neighbours in `count` parts of about as many entries; a weight that is more than a part is cut as well."""
    ends = [0, *accumulate(weight.count for weight in weights)]
    parts: list[Sequence[Weight]] = []
    for number in range(count):
        begin, end = ends[-1] * number // count, ends[-1] * (number + 1) // count
        if begin < end:
            within = range(bisect_right(ends, begin) - 1, bisect_left(ends, end))
            counts = [min(ends[place + 1], end) - max(ends[place], begin) for place in within]
            some = zip(within, counts, strict=True)
            parts.append([Weight(weights[place].key, weights[place].partition, count) for place, count in some])
    return parts


def sampled(partitions: Iterable[bytes], count: int = 1000) -> list[bytes]:
    """`count` of the distinct keys, those with the least hash: the same ones in whatever order and parts they come.

    Samples of parts together, sampled again, are the sample of the whole.
    """
    kept: dict[bytes, int] = {}
    highest: int | None = None
    for key in partitions:
        if key in kept:
            continue
        hashed = mmh3.hash128(key, signed=False)
        if highest is None or hashed < highest:
            kept[key] = hashed
            if len(kept) >= 2 * count + 1:
                kept = _least(kept, count)
                highest = max(kept.values(), default=0)
    return list(_least(kept, count))


def _least(hashes: dict[bytes, int], count: int) -> dict[bytes, int]:
    return dict(sorted(hashes.items(), key=lambda item: (item[1], item[0]))[:count])
