"""What every operation of a writer is: to be run, to be told, and to be held against the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit import retry
from icekeep.errors import IcekeepError, OutcomeUnknownError
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from simulation.model import Effect, Model, Told
from simulation.world import Client


class Operation:
    """One call of the library by one writer.

    `met_faults`: something went wrong at one of its calls. `hidden`: it landed and was reported as a conflict.
    `moves_ref`: the one branch or tag that it may move. `expires`: it may remove snapshots and refs.
    """

    moves_ref: str | None = None
    expires = False
    makes_snapshot = False

    def __init__(self, number: int, random: Random, model: Model) -> None:
        self.name = f"{type(self).__name__} {number}"
        self.number, self.random, self.model = number, random, model
        self.told = Told.NOTHING
        self.landings = 0
        self.met_faults = self.hidden = False
        self.branch = MAIN
        self.removed: frozenset[str] = frozenset()
        self.added: frozenset[str] = frozenset()

    @property
    def unrecognised(self) -> bool:
        """Whether its writer cannot know that it landed: a snapshot id tells, and a conflict names nothing else.

        Such a change is applied once more, and finds nothing to do unless others have changed the same meanwhile.
        """
        return self.hidden and not self.makes_snapshot

    def run(self, client: Client) -> bool:
        """Do it; whether anything was to be changed."""
        raise NotImplementedError

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect | None:
        """By default the live files of main stay what they are."""
        return Effect(self.branch, self.removed, self.added)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        """Nothing more."""

    def commit(self, client: Client, table: Table, change: Any) -> bool:
        """Commit a change; what came out is told to the model before anything else happens."""
        result = retry.commit(table, change, runtime=client)
        return result.changed

    def write_files(self, client: Client, table: Table, *rows: frozenset[int]) -> tuple[DataFile, ...]:
        """Data files with these rows."""
        files = []
        for at, held in enumerate(rows):
            path = f"{table.metadata.location}/data/{self.number:03d}-{at}.parquet"
            self.model.rows[path] = held
            self.added |= {path}
            with client.storage.write(path) as stream:
                stream.write(b"PAR1")
            files.append(
                DataFile(
                    file_path=path,
                    file_format="PARQUET",
                    spec_id=table.metadata.default_spec_id,
                    record_count=len(held),
                    file_size_in_bytes=4,
                )
            )
        return tuple(files)

    def new_rows(self) -> frozenset[int]:
        """One to three rows that no other file holds."""
        at = self.model.next_row()
        return frozenset(range(at, at + self.random.randint(1, 3)))

    @contextmanager
    def discarded_if_refused(self, client: Client) -> Iterator[None]:
        """As the jobs do it: new files go where an error of ours proves that nothing landed, and only there."""
        try:
            yield
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            client.storage.delete_many(sorted(self.added))
            raise
