"""Who is at work on a plan: one at a time, whether it deletes the plan's files or brings them back.

    <plan>/claims/000001.json   {"owner": "<uuid>", "job": "expire_snapshots", "process": "...", ...}

A lease is a file that is created, so that of two runs one gets it. The lease of the highest number counts, for as long as
`LEASE_MS` after the store made it; a run that works for longer makes the next number in time, and so does one that ends, with no
owner. A process that is gone from this machine, in this container, has no lease any more, without a wait; of any other only
time tells.

Before each call that deletes, the owner looks whether the highest lease is still its own. A call under way is not undone by
losing the lease, nor by the end of the process, and may take effect much later. So a run that is about to delete files for good
says so in a lease first (`deletes`), and all later leases on the plan repeat it: nothing of such a plan comes back. That a
restore was at work is repeated too (`restored_ms`), until a run has made sure that nothing came back and goes on.

What time it is for a job that deletes by age is decided here as well: a clock that is wrong may only make it keep more. The
store's clock is seen in a file that is made for it. A plan writes nothing, and so asks our own clock alone: the run that deletes
looks again.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import msgspec

from icekeep.catalog.base import Table
from icekeep.decoding import from_json
from icekeep.errors import ClaimedError, InvalidTableError, MissingFileError, SafetyError
from icekeep.processes import has_ended, process_name
from icekeep.runtime import Runtime, cleaning_up
from icekeep.spec.properties import own_directory
from icekeep.spec.types import DAY_MS, MINUTE_MS
from icekeep.storage.base import FileInfo, Storage

LEASE_MS = 10 * MINUTE_MS

_CALL_MS = DAY_MS
"""How long a call may still be under way after its run has lost the plan."""

RESTORE = "restore"
"""The job that brings a plan's files back, by this plan or by another that names some of them."""

LEASES = "claims"
"""The directory of leases in that of a plan."""


class _LeaseFile(msgspec.Struct, frozen=True):
    """What a lease says; without an owner the plan is free again, and `job` is who was at work last.

    `deletes`, `restored_ms` and, for a day, `unfinished_by` are repeated by all later leases.
    """

    owner: str = ""
    job: str = ""
    process: str = ""
    deletes: bool = False
    unfinished_by: str = msgspec.field(name="preempted", default="")
    unfinished_ms: int = msgspec.field(name="preempted_ms", default=0)
    restored_ms: int = 0


class LastWork(msgspec.Struct, frozen=True):
    """What the leases say of the work on a plan; nothing if there is none.

    Attributes:
        at_ms: when the job that was, or is, at work on it last said so, epoch milliseconds.
        deletes: files of the plan have been deleted for good, or were about to be.
        is_leased: the job has not said that it has ended.
        restored_ms: when a restore said last that it is at work, if no run has carried the plan out since; 0 if not.
    """

    at_ms: int = 0
    deletes: bool = False
    is_leased: bool = False
    restored_ms: int = 0


class PlanLease(msgspec.Struct, kw_only=True):
    """The right to work on a plan; it travels to the tasks that do the work.

    Attributes:
        directory: of the plan.
        owner: of this lease and of no other.
        number: of the newest lease of the owner that is known here.
        since_ms: when that was made or seen, by the monotonic clock of this process.
        process: that began the work. Tasks renew the lease for it: they end, and the work goes on.
        unfinished_by: the job other than a restore of which a call may be under way, noted at `unfinished_ms` within the last
            day: it ended without releasing its lease, or a call of it failed. Empty for none.
        restored_ms: as in `LastWork`. A run that carries the plan out sets it to 0.
        is_unchanged: this restore has changed nothing yet; if it ends so, it does not count as one.
        deletes: whether files of the plan have been deleted for good, by any run, or are about to be.
    """

    directory: str
    owner: str
    job: str
    number: int
    since_ms: int
    process: str
    unfinished_by: str = ""
    unfinished_ms: int = 0
    deletes: bool = False
    restored_ms: int = 0
    is_unchanged: bool = False

    def arrived(self, runtime: Runtime) -> "PlanLease":
        """The same lease in another process, which has a monotonic clock of its own."""
        return msgspec.structs.replace(self, since_ms=runtime.monotonic_ms())

    def check(self, storage: Storage, runtime: Runtime) -> None:
        """Look whether the lease still holds, and renew it where half of its time is over.

        Raises:
            ClaimedError: it does not.
        """
        # Asked before the leases are: a thread of this process may renew the lease while they are listed.
        known = self.number
        newest = _newest(self.directory, storage)
        if newest is None or newest[0] < known:
            raise ClaimedError(f"plan {self.directory!r} is gone: another run has finished it")
        number, info = newest
        self._follow(number, storage, runtime)
        age_ms = max(runtime.now_ms() - info.modified_ms, runtime.monotonic_ms() - self.since_ms)
        if age_ms > LEASE_MS // 2:
            try:
                _create(self.directory, number + 1, self._content, storage)
            except FileExistsError:
                # Another task of this run was faster, or another run.
                self._follow(number + 1, storage, runtime)
            else:
                self.number, self.since_ms = number + 1, runtime.monotonic_ms()

    def begin_deleting(self, storage: Storage, runtime: Runtime) -> None:
        """Say, before the first call that deletes for good, that nothing of the plan comes back.

        Raises:
            ClaimedError: the lease does not hold.
        """
        while not self.deletes:
            self.check(storage, runtime)
            # A thread renews the lease meanwhile.
            number = self.number + 1
            with suppress(FileExistsError):
                _create(self.directory, number, msgspec.structs.replace(self._content, deletes=True), storage)
                self._follow(number, storage, runtime)

    def note_failed_call(self, runtime: Runtime) -> None:
        """A call of this job has failed: it may take effect all the same, and much later."""
        self.unfinished_by, self.unfinished_ms = self.job, runtime.now_ms()

    def release(self, storage: Storage) -> None:
        """Let others have the plan; nothing is done where the lease is lost, or the plan gone."""
        newest = _newest(self.directory, storage)
        if newest is None:
            return
        content = _read(self.directory, newest[0], storage)
        if content.owner == self.owner:
            with suppress(FileExistsError):
                job = "" if self.is_unchanged else self.job
                free = msgspec.structs.replace(
                    self._content, owner="", process="", job=job, deletes=self.deletes or content.deletes
                )
                _create(self.directory, newest[0] + 1, free, storage)

    @property
    def _content(self) -> _LeaseFile:
        return _LeaseFile(
            owner=self.owner,
            job=self.job,
            process=self.process,
            deletes=self.deletes,
            unfinished_by=self.unfinished_by,
            unfinished_ms=self.unfinished_ms,
            restored_ms=self.restored_ms,
        )

    def _follow(self, number: int, storage: Storage, runtime: Runtime) -> None:
        """Go on with a newer lease, if it is of the same owner."""
        content = _read(self.directory, number, storage)
        if content.owner != self.owner:
            raise ClaimedError(f"plan {self.directory!r} was taken over by {content.job or 'another run'}")
        self.deletes = self.deletes or content.deletes
        if number > self.number:
            self.number, self.since_ms = number, runtime.monotonic_ms()


def new_lease(directory: str, job: str, storage: Storage, runtime: Runtime) -> PlanLease:
    """The lease on a plan that is about to be written: there is none before it."""
    lease = _new(directory, job, 1, runtime)
    _create(directory, 1, lease._content, storage)
    return lease


def take_lease(directory: str, job: str, storage: Storage, runtime: Runtime, now_ms: int) -> PlanLease:
    """Lease a plan that is on disk.

    Nobody takes a plan from a run that is at work: a call of it that is under way cannot be seen, nor stopped.

    Args:
        now_ms: what time it is, epoch milliseconds; the earlier of the clocks, so that a lease ends rather too late.

    Raises:
        ClaimedError: another run is at work on it.
    """
    number, content, at_ms = refuse_leased(directory, storage, now_ms)
    unfinished_by, unfinished_ms = content.unfinished_by, content.unfinished_ms
    if content.owner and content.job != RESTORE:
        # Its time is over, or its process gone: a call of it may be under way all the same.
        unfinished_by, unfinished_ms = content.job, at_ms
    if unfinished_by and now_ms - unfinished_ms > _CALL_MS:
        unfinished_by, unfinished_ms = "", 0
    lease = msgspec.structs.replace(
        _new(directory, job, number + 1, runtime),
        unfinished_by=unfinished_by,
        unfinished_ms=unfinished_ms,
        deletes=content.deletes,
        restored_ms=at_ms if content.job == RESTORE else content.restored_ms,
    )
    try:
        _create(directory, number + 1, lease._content, storage)
    except FileExistsError:
        raise ClaimedError(f"another run has just begun with plan {directory!r}; run it again later") from None
    return lease


def refuse_leased(directory: str, storage: Storage, now_ms: int) -> tuple[int, _LeaseFile, int]:
    """Raise `ClaimedError` where `take_lease` would, since another run is at work on a plan; nothing is written.

    Returns:
        The number of the newest lease, what it says and when it was made, epoch milliseconds; zeros and nothing without one.
    """
    newest = _newest(directory, storage)
    if newest is None:
        return 0, _LeaseFile(), 0
    number, at_ms = newest[0], newest[1].modified_ms
    content = _read(directory, number, storage)
    if content.owner and now_ms - at_ms <= LEASE_MS and not has_ended(content.process):
        minutes = LEASE_MS // MINUTE_MS
        raise ClaimedError(
            f"plan {directory!r} is in use by {content.job}, or that run died less than {minutes} minutes ago; try again "
            f"when it has ended, or in {minutes} minutes"
        )
    return number, content, at_ms


def last_work(directory: str, storage: Storage) -> LastWork:
    """What the leases on a plan say; nothing where the newest cannot be read, or the plan goes at this moment."""
    newest = _newest(directory, storage)
    if newest is None:
        return LastWork()
    try:
        content = _read(directory, newest[0], storage)
    except (ClaimedError, InvalidTableError):
        return LastWork()
    at_ms = newest[1].modified_ms
    return LastWork(
        at_ms=at_ms,
        deletes=content.deletes,
        is_leased=bool(content.owner),
        restored_ms=at_ms if content.job == RESTORE else content.restored_ms,
    )


@contextmanager
def holding(lease: PlanLease, storage: Storage, runtime: Runtime) -> Iterator[PlanLease]:
    """Keep a lease while the block lasts, and release it when that ends, unless the process dies in it.

    A thread renews it, whatever takes long: a proof, a commit, looking at millions of files. Where it cannot be released the
    next run waits for its end.
    """
    over = Event()
    Thread(target=_keep, args=(lease, storage, runtime, over), name="lease", daemon=True).start()
    try:
        yield lease
    except (Exception, KeyboardInterrupt, SystemExit):
        over.set()
        with suppress(Exception):
            lease.release(storage)
        raise
    finally:
        over.set()
    with suppress(Exception), cleaning_up():
        lease.release(storage)


def _keep(lease: PlanLease, storage: Storage, runtime: Runtime, over: Event) -> None:
    while not over.wait(LEASE_MS / 4000):
        try:
            lease.check(storage, runtime)
        except ClaimedError:
            # The work that depends on it finds out before its next call.
            return
        except Exception:  # noqa: BLE001 - whatever it is, the next look may succeed
            continue


def _new(directory: str, job: str, number: int, runtime: Runtime) -> PlanLease:
    return PlanLease(
        directory=directory,
        owner=str(runtime.new_uuid()),
        job=job,
        number=number,
        since_ms=runtime.monotonic_ms(),
        process=process_name(),
    )


def _newest(directory: str, storage: Storage) -> tuple[int, FileInfo] | None:
    found = {}
    for info in storage.list(f"{directory}/{LEASES}"):
        name = info.location.rpartition("/")[2].removesuffix(".json")
        if name.isdecimal() and int(name):
            found[int(name)] = info
    return max(found.items(), key=lambda one: one[0]) if found else None


def _location(directory: str, number: int) -> str:
    return f"{directory}/{LEASES}/{number:06d}.json"


def _create(directory: str, number: int, content: _LeaseFile, storage: Storage) -> None:
    storage.create(_location(directory, number), msgspec.json.encode(content))


def _read(directory: str, number: int, storage: Storage) -> _LeaseFile:
    location = _location(directory, number)
    try:
        return from_json(storage.read(location), _LeaseFile)
    except MissingFileError:
        raise ClaimedError(f"plan {directory!r} is gone: another run has finished it") from None
    except msgspec.MsgspecError as error:
        raise InvalidTableError(
            f"lease {location!r} cannot be read: {error}; remove it if no run is at work on the plan", location=location
        ) from None


SKEW_MAX_MS = 10 * MINUTE_MS
"""By how much our clock may be ahead of the store's before nothing is decided by age any more."""


def earlier_clock_ms(table: Table, runtime: Runtime) -> int:
    """The earlier of our clock and the store's, however far apart they are, epoch milliseconds."""
    return earlier_clock_below(own_directory(table.metadata, "runs"), table.storage, runtime)


def earlier_clock_below(directory: str, storage: Storage, runtime: Runtime) -> int:
    """The same, by a file in a directory of icekeep's own."""
    theirs_ms = _store_now_ms(directory, storage, runtime)
    return runtime.now_ms() if theirs_ms is None else min(theirs_ms, runtime.now_ms())


def safe_now_ms(table: Table, runtime: Runtime) -> int:
    """The earlier of our clock and the store's, epoch milliseconds.

    Raises:
        SafetyError: ours is far ahead, so that moments that were worked out from it before may be wrong too.
    """
    ours_ms = runtime.now_ms()
    theirs_ms = _store_now_ms(own_directory(table.metadata, "runs"), table.storage, runtime)
    if theirs_ms is None:
        return ours_ms
    if ours_ms - theirs_ms > SKEW_MAX_MS:
        raise SafetyError(
            f"the clock of this machine is {(ours_ms - theirs_ms) / MINUTE_MS:,.0f} minutes ahead of that of the store of "
            f"{table.metadata.location!r}, so ages cannot be trusted and nothing is deleted; set the clocks right",
            ours_ms=ours_ms,
            store_ms=theirs_ms,
        )
    return min(ours_ms, theirs_ms)


def _store_now_ms(directory: str, storage: Storage, runtime: Runtime) -> int | None:
    """What time a store says that it is, seen in a file that is made for it; `None` where it tells nothing."""
    location = f"{directory}/clock/{runtime.new_uuid()}"
    storage.create(location, b"")
    try:
        seen = storage.head(location)
    finally:
        storage.delete_many([location])
    return None if seen is None else seen.modified_ms
