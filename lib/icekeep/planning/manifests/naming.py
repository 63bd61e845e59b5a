"""Which snapshots name some manifests: their lists are read for a few manifests, and nothing else of them is kept."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.planning.manifests.avro_decoder import NotReadError
from icekeep.planning.manifests.list_columns import StoredLists
from icekeep.planning.manifests.reader import ManifestDecoder, chosen_decoder
from icekeep.planning.spark.source import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.spec.avro import AvroHeader, read_header
from icekeep.spec.manifests.decode import read_manifest_list
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE

_ROWS_A_LIST = 1_000
_LISTS_AT_ONCE = 32

_File: TypeAlias = tuple[str, bytes, AvroHeader]


class _Wanted(msgspec.Struct, frozen=True):
    """What all tasks share: ascending keys of manifests."""

    keys: Keys
    storage: Storage


def snapshots_naming(
    storage: Storage, spark: SparkSource, snapshots: Sequence[Snapshot], manifests: Sequence[str]
) -> dict[int, frozenset[int]]:
    """The ids of the snapshots that name each of some manifests, by `location_keys` of these.

    Lists that cannot be read are passed over: whoever asks has read them before, and knows which.

    Raises:
        UnavailableError: the store fails for now.
    """
    keys = np.unique(location_keys(pa.array(manifests, pa.string())))
    found: dict[int, set[int]] = defaultdict(set)
    by_list: dict[str, list[int]] = defaultdict(list)
    for snapshot in snapshots:
        if snapshot.manifest_list is not None:
            by_list[snapshot.manifest_list].append(snapshot.snapshot_id)
            continue
        for key in _named(pa.array(snapshot.manifests or (), pa.string()), keys):
            found[key].add(snapshot.snapshot_id)
    if not len(keys):
        return {}
    lists = [*by_list]
    shares = [tuple(lists[start : start + _LISTS_AT_ONCE]) for start in range(0, len(lists), _LISTS_AT_ONCE)]
    is_many = len(lists) * _ROWS_A_LIST > limits_of(spark).list_rows_count
    is_local = all(parse_location(one).scheme == "file" for one in lists)
    ran = run_tasks(
        started(spark) if is_many else None,
        shares,
        _read_share,
        _Wanted(keys, storage),
        step="reading manifest lists",
        threads=LOCAL_REQUESTS_AT_ONCE if is_local else REQUESTS_AT_ONCE,
    )
    for share, answers in zip(shares, all_results(ran), strict=True):
        for location, named in zip(share, answers, strict=True):
            for key in named:
                found[key].update(by_list[location])
    return {key: frozenset(ids) for key, ids in found.items()}


def _read_share(lists: tuple[str, ...], wanted: _Wanted) -> list[tuple[int, ...]]:
    """The keys that each list names; those of one schema, which most are of, are read together."""
    found: dict[str, tuple[int, ...]] = {}
    alike: dict[bytes, list[_File]] = defaultdict(list)
    for location in lists:
        try:
            data = wanted.storage.read(location)
            header = read_header(data, location)
            alike[header.metadata["avro.schema"]].append((location, data, header))
        except (InvalidTableError, UnsupportedError):
            continue
    for schema, files in alike.items():
        found |= _named_together(schema, files, wanted.keys) or _named_one_by_one(files, wanted.keys)
    return [found.get(location, ()) for location in lists]


def _named_together(schema: bytes, files: Sequence[_File], keys: Keys) -> dict[str, tuple[int, ...]] | None:
    """What lists name, read as columns; `None` where one of them needs a closer look."""
    if chosen_decoder()[0] is not ManifestDecoder.DATAFUSION:
        return None
    try:
        rows = StoredLists(schema).read([(data, header) for _, data, header in files])
    except (NotReadError, InvalidTableError):
        return None
    all_keys = location_keys(rows.paths)
    are_wanted = np.isin(all_keys, keys)
    found: dict[str, list[int]] = {location: [] for location, _, _ in files}
    for number, key in zip(rows.list_numbers[are_wanted].tolist(), all_keys[are_wanted].tolist(), strict=True):
        found[files[number][0]].append(key)
    return {location: tuple(some) for location, some in found.items()}


def _named_one_by_one(files: Sequence[_File], keys: Keys) -> dict[str, tuple[int, ...]]:
    found = {}
    for location, data, _ in files:
        with suppress(InvalidTableError, UnsupportedError):
            paths = [row.manifest_path for row in read_manifest_list(data, location)]
            found[location] = _named(pa.array(paths, pa.string()), keys)
    return found


def _named(paths: pa.Array, keys: Keys) -> tuple[int, ...]:
    return tuple(np.intersect1d(location_keys(paths), keys).tolist())
