"""The jobs in one thread, and without Arrow: metadata of the simulated world is not written as Avro, so nothing decodes it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from icekeep.commit.manifests import StorageManifestReader
from icekeep.errors import InvalidTableError
from icekeep.maintenance.deletion import looks, neighbours, reachability
from icekeep.maintenance.deletion.garbage import CONTENT_KINDS, GARBAGE
from icekeep.maintenance.orphans import listing, metadata_files, reaching, waiting
from icekeep.maintenance.restoring import looking
from icekeep.planning.entries import read as entries
from icekeep.planning.manifests.lists import ListedManifests
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import location_keys, path_keys

_TOTALS = {"total-data-files": ManifestContent.DATA, "total-delete-files": ManifestContent.DELETES}


class SerialPool:
    """As much of a pool of threads as the jobs use: everything is done when it is asked for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """The number of threads does not matter."""

    def __enter__(self) -> "SerialPool":
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to be done."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - as a thread would end
            done.set_exception(error)
        return done

    def shutdown(self, **how: Any) -> None:
        """Nothing is left to be done."""

    def map(self, work: Callable[..., Any], *items: Iterable[Any]) -> Iterator[Any]:
        return map(work, *items)


@contextmanager
def serially() -> Iterator[None]:
    """Whoever runs has the turn: nothing runs beside it."""
    with ExitStack() as stack:
        for module in (neighbours, looking, listing, metadata_files, reaching, waiting, entries):
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", SerialPool))
        for module in (reachability, looks, reaching):
            stack.enter_context(patch.object(module, "listed_manifests", _listed_manifests))
        stack.enter_context(patch.object(reachability, "_read_here", _read_here))
        stack.enter_context(patch.object(reachability, "_live_keys", _live_keys))
        yield


def _listed_manifests(
    storage: Storage,
    spark: Any,
    snapshots: Sequence[Snapshot],
    *,
    check: bool,
    trust: bool = False,
    without: Any = None,
) -> ListedManifests:
    """Stands in for the function of that name: the same, one list after another."""
    reader = StorageManifestReader(storage)
    found: dict[str, ManifestFile] = {}
    unreadable = []
    for snapshot in snapshots:
        try:
            manifests = reader.manifests(snapshot)
        except InvalidTableError:
            if check:
                raise
            unreadable.append(snapshot.manifest_list or "")
            continue
        for total, content in _TOTALS.items():
            listed = sum(m.live_files_count or 0 for m in manifests if m.content is content)
            assert not check or snapshot.summary is None or snapshot.summary.get(total, str(listed)) == str(listed)
        found.update((m.manifest_path, m) for m in manifests)
    known = set() if without is None else set(without.tolist())
    keys = location_keys(pa.array(found, pa.string()))
    left = [m for key, m in zip(keys.tolist(), found.values(), strict=True) if key not in known]
    return ListedManifests(
        manifests=tuple(left), keys=np.unique(keys), untotalled_count=0, unreadable=tuple(unreadable)
    )


def _entries(task: Any) -> Iterator[ManifestEntry]:
    reader = StorageManifestReader(task.storage)
    for manifest in task.manifests:
        partition = task.wanted.specs[manifest.partition_spec_id].partition
        yield from (entry for entry in reader.typed_entries(manifest, partition) if entry.is_live)


def _read_here(task: Any, live: Any) -> pa.Table:
    files = [entry.data_file for entry in _entries(task)]
    paths = pa.array([file.file_path for file in files], pa.string())
    kinds = [str(CONTENT_KINDS[file.content]) for file in files]
    sizes = [file.file_size_in_bytes for file in files]
    columns = [pa.array(kinds, pa.string()), paths, pa.array(sizes, pa.int64())]
    return reachability._without_keys(pa.table(columns, schema=GARBAGE), live)


def _live_keys(task: Any, names: Any) -> Any:
    paths = pa.array([entry.data_file.file_path for entry in _entries(task)], pa.string())
    return np.concatenate([names, path_keys(paths)])
