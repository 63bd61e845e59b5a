"""Histories of one table that is compacted as a whole while writers update its rows every second.

    python tests/simulation/run.py --streaming 1000 --seed 0

Nothing goes wrong in them but that others are faster, at any call. The rows must equal a serial replay after every commit;
no group is planned anew, each commit of the compaction lands within the four retries that `commit.retry.num-retries` is by
default, and a writer is refused only if it planned before a swap of the compaction and commits after it, and succeeds on its
next plan. A call to storage or the catalog takes 1 to 5 ms, and one is made at a time, whoever makes it: an attempt to commit
takes a tenth of a second to a half.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from random import Random
from unittest.mock import patch

from icekeep.catalog.metadata_files import encode
from icekeep.commit.conflicts import Isolation
from icekeep.maintenance.compact import carrying
from icekeep.spec.metadata import new_table_metadata
from kit.tables import BY_KIND, COLUMNS, UNPARTITIONED
from simulation.client import Client
from simulation.codec import values_in_place_of_bytes
from simulation.faults import NoFaults
from simulation.scheduler import Actor, Scheduler
from simulation.serially import serially
from simulation.streaming_rewrite import Rewrite
from simulation.streaming_table import Row, StreamingTable
from simulation.streaming_writers import Write
from simulation.world import LOCATION, POINTER, START_MS, UPDATES, World

_SECOND_MS = 1_000
_CALL_MS = 19
_PLANS_MAX = 8
_COMMITS_AFTERWARDS = 2


class StreamingHistory:
    """A table with some past, one compaction of it, and one or two writers; all from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"streaming {seed}")
        self.scheduler = Scheduler(random, START_MS, random.choice([0.1, 0.4, 0.8, 1.0]), _CALL_MS)
        self.world = World(random, self.scheduler, NoFaults(), catalog=random.choice([POINTER, UPDATES]))
        self.table = StreamingTable(self.world)
        self.format_version = random.choice([2, 3])
        self.writers_count = random.choice([1, 1, 2])
        self._has_keys = random.random() < 0.4
        # Rows that move to a newer number are out of reach of equality deletes that come meanwhile: those are a conflict.
        self._starts_at_number = self._has_keys or random.random() < 0.8
        self.rewrite = Rewrite(self.table, random, starts_at_number=self._starts_at_number)
        self._keys_count = 0
        self._writes_count = 0
        self._is_over = False
        self._make_table()

    def run(self) -> Counter[str]:
        """Let all work to their end and check what is left; what came about, as counts."""
        # A second thread of a process would take its turns at the world.
        with serially(), patch.object(carrying, "REQUESTS_AT_ONCE", 1):
            self.scheduler.run({"past": self._past})
            writers = {f"writer {n}": self._writer(n) for n in range(self.writers_count)}
            self.scheduler.run({"compaction": self._compact, **writers})
        self.table.check_nothing_is_left()
        return self._seen()

    def story(self) -> list[str]:
        """Every call, and each commit in order."""
        calls = [f"{who:10} {call:8} {location}" for who, call, location, _ in self.world.trace]
        return [*calls, *(f"{one.sequence_number}: {one.doing.name}" for one in self.table.landings)]

    def _make_table(self) -> None:
        metadata = new_table_metadata(
            schema=COLUMNS,
            spec=self.random.choice([UNPARTITIONED, BY_KIND]),
            location=LOCATION,
            table_uuid=str(self.world.new_uuid()),
            now_ms=START_MS,
            properties={},
            format_version=self.format_version,
        )
        location = f"{LOCATION}/metadata/00000-{self.world.new_uuid()}.metadata.json"
        self.world.disk.create(location, encode(metadata), START_MS, None)
        self.world.publish(None, location, metadata)

    def _past(self, actor: Actor) -> None:
        client = Client(self.world, actor)
        for _ in range(self.random.randint(2, 4)):
            self._write().append(client, self._new_rows(self.random.randint(6, 24)))
        for _ in range(self.random.randint(0, 2)):
            self._write().update(client, self._some_keys(range(self.writers_count)), 0, None)

    def _compact(self, actor: Actor) -> None:
        client = Client(self.world, actor)
        client.sleep_ms(self.random.randrange(2 * _SECOND_MS))
        self.rewrite.run(client)
        self._is_over = True

    def _writer(self, number: int) -> Callable[[Actor], None]:
        def work(actor: Actor) -> None:
            client = Client(self.world, actor)
            afterwards = 0
            # The table is updated every second, by whom ever.
            pace_ms = _SECOND_MS * self.writers_count
            client.sleep_ms(self.random.randrange(pace_ms))
            while afterwards < _COMMITS_AFTERWARDS:
                began_ms = client.monotonic_ms()
                afterwards += self._is_over
                self._commit(client, number)
                client.sleep_ms(max(1, began_ms + pace_ms - client.monotonic_ms()))

        return work

    def _commit(self, client: Client, number: int) -> None:
        """What a writer commits in one second; an update that is refused is planned once more."""
        drawn = self.random.random()
        keys = self._some_keys([number])
        if drawn < 0.1:
            self._write().append(client, self._new_rows(self.random.randint(1, 3)))
        elif drawn < 0.35 and self._has_keys:
            rows = [Row(row.key, row.version + 1) for row in sorted(self.table.rows) if row.key in keys]
            self._write().upsert(client, rows or self._new_rows(1))
        else:
            self._update(client, keys)

    def _update(self, client: Client, keys: frozenset[int]) -> None:
        isolation = self.random.choice([None, *Isolation]) if self.writers_count == 1 else None
        for _ in range(_PLANS_MAX):
            if self._write().update(client, keys, self.random.choice([1, 50, 300]), isolation):
                return
        self.table.require(False, "C11", f"an update of {sorted(keys)} is refused again and again")

    def _write(self) -> Write:
        self._writes_count += 1
        return Write(self.table, f"write-{self._writes_count:03d}", self.random)

    def _new_rows(self, count: int) -> list[Row]:
        first, self._keys_count = self._keys_count, self._keys_count + count
        return [Row(key, 0) for key in range(first, first + count)]

    def _some_keys(self, writers: Iterable[int]) -> frozenset[int]:
        """Keys of rows that are there; each writer has his own."""
        mine = {*writers}
        known = sorted({row.key for row in self.table.rows if row.key % self.writers_count in mine})
        return frozenset(self.random.sample(known, min(len(known), self.random.randint(1, 5))))

    def _seen(self) -> Counter[str]:
        attempts = self.rewrite.attempts
        return self.world.seen + Counter(
            {
                "histories": 1,
                f"histories of format version {self.format_version}": 1,
                f"histories with {self.writers_count} writers": 1,
                "commits": len(self.table.landings),
                "commits of writers while the compaction ran or after it": len(self.table.landings) - len(attempts),
                "commits of compactions": len(attempts),
                "delete files that compactions carried over": self.rewrite.carried_count,
                **{f"commits of compactions at attempt {n}": count for n, count in Counter(attempts).items()},
            }
        )


def simulate_streaming(seed: int, tell: Callable[[str], None] | None = None) -> Counter[str]:
    """Run the history of a seed to its end; a violation says how to replay it."""
    with nullcontext() if seed % 100 == 99 else values_in_place_of_bytes():
        history = StreamingHistory(seed)
        try:
            return history.run()
        except BaseException as error:
            error.add_note(f"replay: python tests/simulation/run.py --streaming 1 --seed {seed} --trace")
            raise
        finally:
            if tell is not None:
                for line in history.story():
                    tell(line)


def run_streaming(seeds: Iterable[int]) -> tuple[Counter[str], list[str]]:
    """Run histories; what came about in them, and each failure as text."""
    seen, failures = Counter[str](), list[str]()
    for seed in seeds:
        try:
            seen += simulate_streaming(seed)
        except Exception:  # noqa: BLE001 - whatever it is, it is a finding
            failures.append(traceback.format_exc())
    return seen, failures
