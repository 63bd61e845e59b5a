"""What every maintenance job must do; the test of a job inherits it, names the job and fills a table with work for it.

All of it is in memory and without Spark, on real data files of a few rows. A world with work in it is made once for each
job and format version and copied for each test.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations, cycle
from typing import Any, ClassVar

import msgspec
import pytest

from icekeep.errors import IcekeepError, NotFoundError, OptionError, OutcomeUnknownError, UnsupportedError, UsageError
from icekeep.maintenance.jobs import JobResult
from icekeep.maintenance.rewrite.run import TAG_PREFIX
from icekeep.operations.arguments import parse_command
from icekeep.operations.console.output import format_json
from icekeep.operations.console.values import plain_values
from icekeep.operations.jobs import resolve
from icekeep.runs import Run
from icekeep.settings import BRANCH, CatalogChange, Job
from icekeep.spec.metadata import parse_metadata
from icekeep.spec.types import DAY_MS
from icekeep.tables.refs import create_branch, create_tag
from kit.cases import some_of
from kit.fake_jobs import problems_of_result
from kit.job_world import Fault, Killed, World
from kit.runtime import no_spark

KINDS = dict.fromkeys(("read", "open", "head", "list", "list_share", "shares", "child_names", "load"), "read")
KINDS |= {"write": "write", "create": "write", "delete_many": "delete", "capabilities": "read"}
READS = {operation for operation, kind in KINDS.items() if kind == "read"} | {"directory_exists", "child_directories"}
LATER = {"elapsed_ms", "cpu_ms"}
"""Figures that a plan can only estimate."""
LEFT = {"swept_files_count", "finished_files_count", "emptied_trash_files_count"}
"""What is done about what earlier runs left."""


class JobContract:
    """What the test of a job says of it.

    Attributes:
        job: what the job's package says of it.
        versions: of the table format in which `fill` gives it something to do.
        told: the arguments that it is run and planned with.
        foretold: figures that plan and result have under one name, and that are not zero.
        only_planned: figures of the plan that the result does not have: what was looked at and how, and what was asked for.
        others: of a job that takes the hash of a plan, other values of each argument, which may change what it does.
        removes: in which part of its plan the files are that it deletes, if it deletes any.
    """

    job: ClassVar[Job]
    versions: ClassVar[tuple[int, ...]] = (1, 2, 3)
    told: ClassVar[Mapping[str, Any]] = {}
    foretold: ClassVar[tuple[str, ...]] = ()
    only_planned: ClassVar[frozenset[str]] = frozenset()
    others: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    removes: ClassVar[str] = ""

    @staticmethod
    def fill(version: int) -> World:
        """A world in which the job finds something to do."""
        raise NotImplementedError

    @staticmethod
    def rows_left(rows: Counter[str]) -> Counter[str]:
        """What of the rows of a filled table is left: of a job that deletes none, all."""
        return rows

    @classmethod
    def run(cls, world: World, **more: Any) -> Any:
        """Run the job on the table as it is now."""
        return resolve(cls.job.run)(world.table, no_spark, **{**cls.told, **more})

    @classmethod
    def plan(cls, world: World, **more: Any) -> Any:
        """What `--dry-run` calls: of a job that changes nothing, the job."""
        return resolve(cls.job.plan or cls.job.run)(world.table, no_spark, **{**cls.told, **more})

    @classmethod
    def is_finished(cls, world: World) -> bool:
        """Whether a run finds nothing to do."""
        before = world.state()
        cls.run(world)
        return world.state() == before

    @classmethod
    def run_again(cls, world: World) -> None:
        """The next run, the day after one that did not come to its end."""
        world.runtime.pass_ms(2 * DAY_MS)
        cls.run(world)

    @pytest.fixture(params=[1, 2, 3])
    def version(self, request: pytest.FixtureRequest) -> int:
        return request.param

    @pytest.fixture
    def ran(self, version: int) -> "Ran":
        return once_run(type(self), version)

    def test_it_does_its_work_and_no_row_changes(self, ran: "Ran", version: int) -> None:
        assert (ran.after.state() != ran.before.state()) == (version in self.versions)
        assert isinstance(ran.result, JobResult) == bool(self.versions)
        assert getattr(ran.result, "is_idle", True) != (version in self.versions)
        assert_same_rows(ran.after, rows_after(type(self), version))

    def test_files_go_only_where_plan_names_them(self, ran: "Ran") -> None:
        """A job removes only the files that its plan names, and every replaced file stays."""
        assert lost(ran.before, ran.after) == ({*getattr(ran.plan, self.removes)} if self.removes else set())

    def test_a_second_run_does_nothing(self, ran: "Ran") -> None:
        assert self.is_finished(ran.after.copy())

    def test_a_plan_writes_nothing(self, ran: "Ran") -> None:
        """Nor does it make a file and remove it again: who may only read can plan."""
        assert ran.planned.state() == ran.before.state()
        assert {*(ran.planned.storage.fired - ran.before.storage.fired)} <= READS

    def test_a_catalog_that_refuses_it_is_asked_before_any_work(self) -> None:
        """A plan shows what would be done all the same."""
        world = self._filled()
        world.catalog.refuses = {*CatalogChange}
        before = world.state()
        self.plan(world)
        if self.job.asks is None:
            return
        world.storage.fired.clear()
        with pytest.raises(UnsupportedError, match=f"^catalog 'local' does not take a {self.job.asks.value}$"):
            self.run(world)
        assert world.state() == before
        assert {*world.storage.fired} <= {"read", "load"}

    def test_the_figures_of_a_plan_are_those_of_the_run(self, ran: "Ran", version: int) -> None:
        planned, done = figures_of(ran.plan), figures_of(ran.result)
        assert planned.keys() - done.keys() <= self.only_planned
        both = planned.keys() & done.keys() - LATER
        assert {name: planned[name] for name in both} == {name: done[name] for name in both}
        assert [bool(planned[name]) for name in self.foretold] == [version in self.versions] * len(self.foretold)
        assert both >= {*self.foretold}

    def test_runs_with_different_changes_have_different_hashes(self) -> None:
        arguments = {setting.argument for setting in self.job.settings}
        if "approve" not in arguments:
            return
        assert self.others.keys() == arguments - {"approve"}
        asked = [{name: value} for name, values in self.others.items() for value in values]
        states: dict[str, Any] = {}
        for more in ({}, *asked):
            planned, after = self._planned_and_approved(more)
            assert states.setdefault(planned, after.state()) == after.state(), more
        assert all(one != other for one, other in combinations(states.values(), 2))

    def _planned_and_approved(self, more: Mapping[str, Any]) -> tuple[str, World]:
        """The hash of a plan with some arguments, and what becomes of the world by it."""
        world = self._filled()
        if "options" in more:
            more = {"options": {**self.told.get("options", {}), **more["options"]}}
        planned = self.plan(world.copy(), **more).hash
        self.run(world, **more, approve=planned)
        return planned, world

    @classmethod
    def leave(cls, world: World) -> None:
        """Have earlier runs leave something that the next run sees to."""
        for name in ("beat-1", "files/1"):
            world.storage.create(f"{world.table.metadata.location}/.icekeep/runs/dead-1/{name}", b"{}")
        world.runtime.pass_ms(2 * DAY_MS)

    def test_plan_predicts_handling_of_leftovers(self) -> None:
        """A plan gives the same figures for leftovers of earlier runs as the run itself."""
        world = self._filled()
        self.leave(world)
        planned, done = figures_of(self.plan(world.copy())), figures_of(self.run(world))
        assert {name: planned[name] for name in LEFT & done.keys()} == {name: done[name] for name in LEFT & done.keys()}
        assert all(done[name] for name in LEFT & done.keys())

    def test_what_it_prints_round_trips_and_fits_the_schema(self, ran: "Ran") -> None:
        for document in (ran.plan, ran.result):
            text = format_json(plain_values(document))
            assert msgspec.json.decode(text, type=type(document), strict=False) == document
            assert problems_of_result(self.job.name, json.loads(text)) == []

    def test_all_that_a_run_leaves_has_its_name(self) -> None:
        world, run = self._filled(), Run(run_id=f"{self.job.name}-1", job=self.job.name, policy="nightly")
        before = {s.snapshot_id for s in world.table.metadata.snapshots}
        named: set[str] = set()
        # What it keeps while it works, it removes at its end.
        world.storage.before = lambda operation, location: named.update(
            run_names(location) if operation in ("write", "create") else ()
        )
        result = resolve(self.job.run)(world.table.for_run(run), no_spark, **self.told)
        assert getattr(result, "run_id", run.run_id) == getattr(result, "run", run.run_id) == run.run_id
        assert sorted(name for name in named if not name.startswith(run.run_id)) == []
        if world.pointer() is not None:
            made = [s.summary or {} for s in world.table.metadata.snapshots if s.snapshot_id not in before]
            told = {tuple(one.get(key) for key in ("icekeep.job", "icekeep.run-id", "icekeep.policy")) for one in made}
            assert told <= {(self.job.name, run.run_id, "nightly")}

    def test_a_branch_is_worked_on_alone_or_refused_in_one_line(self) -> None:
        if BRANCH not in self.job.settings:
            must = [f"{setting.flag}=1" for setting in self.job.settings if setting.is_required]
            words = [self.job.name, "--table", "db.events", "--branch", "audit", *must]
            with pytest.raises(UsageError, match="unrecognized arguments: --branch audit") as raised:
                parse_command(words, None, 0)
            assert_one_line(raised.value)
            return
        world = self._filled()
        create_tag(create_branch(world.table, "audit"), "v1")
        before, main, rows = world.state(), world.table.metadata.head("main"), world.rows()
        for branch, error in (("audits", NotFoundError), ("v1", UsageError)):
            for ask in (self.run, self.plan):
                with pytest.raises(error, match=f"'{branch}'") as raised:
                    ask(world, branch=branch)
                assert_one_line(raised.value)
        assert world.state() == before
        self.run(world, branch="audit")
        metadata = world.table.metadata
        assert metadata.head("main") == main
        assert metadata.head("audit") != main
        assert (world.rows(), world.rows("audit")) == (rows, self.rows_left(rows))

    def test_an_unknown_option_is_refused_in_one_line(self) -> None:
        world = self._filled()
        before = world.state()
        for ask in (self.run, self.plan) if self.job.options else ():
            with pytest.raises(OptionError, match="no-such") as raised:
                ask(world, options={**self.told.get("options", {}), "no-such": "1"})
            assert_one_line(raised.value)
        assert world.state() == before

    def test_fault_at_any_call_is_finished_by_next_run(self) -> None:
        """A fault in the middle costs no row, and the next run does the rest."""
        counted = self._filled()
        with Fault(counted) as clean:
            self.run(counted)
        # Each swap is a kind of its own: whether it landed is what a lost answer leaves in doubt.
        kinds = [KINDS.get(operation) or (operation, n) for n, (operation, _) in enumerate(clean.calls)]
        places = some_of(range(len(kinds)), least=4, kind=kinds.__getitem__)
        turns = cycle(Fault.WAYS)
        for place in places:
            some = [next(turns)] if kinds[place] in KINDS.values() else ["lost"]
            for way in Fault.WAYS if len(places) == len(kinds) else some:
                self._fail_at(place, way)

    def test_result_reports_changes_despite_later_faults(self) -> None:
        """After the commit has landed, a fault at any later call still yields what was changed."""
        before, counted = self._filled(), self._filled()
        landed: list[bool] = []
        counted.storage.before = lambda operation, location: landed.append(has_landed(before, counted))
        result = self.run(counted)
        # A job that changes nothing has nothing to say.
        first = landed.index(True) if any(landed) else len(landed)
        for place in some_of(range(first, len(landed)), least=8):
            for way in ("foreign", "away"):
                self._fail_after_the_commit_at(place, way, result)

    def test_a_call_that_breaks_when_it_has_begun_to_delete_is_told(self) -> None:
        before, counted = self._filled(), self._filled()
        with Fault(counted) as clean:
            result = self.run(counted)
        files = before.state()[0]
        places = [n for n, call in enumerate(clean.calls) if call[0] == "delete_many" and call[1] in files]
        assert bool(places) == bool(self.removes)
        for place in places:
            self._fail_after_the_commit_at(place, "torn", result)

    def _fail_after_the_commit_at(self, place: int, way: str, clean: Any) -> None:
        before, world = self._filled(), self._filled()
        with Fault(world, place, way) as fault:
            try:
                result = self.run(world)
            except OutcomeUnknownError:
                # In the middle of a swap nobody knows.
                operation, location = fault.calls[place]
                assert operation == "swap" or location.endswith(".metadata.json")
                return
            except Exception as error:
                error.add_note(f"{way}: {fault.calls[place]}, call {place} of {len(fault.calls)}")
                raise
        told = f"{way}: {fault.calls[place]}, call {place} of {len(fault.calls)}"
        figures = figures_of(result)
        if way == "torn":
            # What no answer counts is told of.
            assert (result.status, bool(lost(before, world))) == ("partial", True), told
        elif self.removes:
            assert bool(figures["deleted_bytes_count"]) == bool(lost(before, world)), told
        else:
            assert [figures[name] for name in self.foretold] == [figures_of(clean)[name] for name in self.foretold], (
                told
            )
        if getattr(result, "status", "done") == "done":
            assert self.is_finished(world), told
            return
        assert result.status == "partial", told
        self.run_again(world)
        assert self.is_finished(world), told

    def _fail_at(self, place: int, way: str) -> None:
        before, world, result = self._filled(), self._filled(), None
        with Fault(world, place, way) as fault, suppress(IcekeepError, Killed):
            result = self.run(world)
        told = f"{way}: {fault.calls[place]}, call {place} of {len(fault.calls)}"
        version = max(self.versions, default=3)
        rows = rows_after(type(self), version)
        # What still points to the same metadata, and has all files, has the same rows.
        now = rows if heads(world) != heads(before) else rows_before(type(self), version)
        assert_same_rows(world, now if world.pointer() != before.pointer() else None, told)
        assert self.removes or not lost(before, world), told
        if result is not None and getattr(result, "status", "done") == "done":
            assert self.is_finished(world), told
            return
        self.run_again(world)
        assert_same_rows(world, rows, told)
        assert self.is_finished(world), told

    def _filled(self) -> World:
        return filled(type(self), max(self.versions, default=3)).copy()


def run_names(location: str) -> list[str]:
    """The names of runs in the location of a file that one of them keeps."""
    return re.findall(r"/\.icekeep/(?:runs|plans|trash|purges)/(?!clock/)([^/]+)/", location)


@dataclass(frozen=True)
class Ran:
    """A job that was planned and then run once; the worlds are as they were at each time."""

    before: World
    plan: Any
    planned: World
    result: Any
    after: World


@cache
def filled(contract: type[JobContract], version: int) -> World:
    """Made once; tests take copies."""
    return contract.fill(version)


@cache
def rows_before(contract: type[JobContract], version: int) -> Counter[str]:
    """What a scan of the filled table gives."""
    return filled(contract, version).rows()


def rows_after(contract: type[JobContract], version: int) -> Counter[str]:
    """What a scan gives once the job has done its work, if there is any in the version."""
    rows = rows_before(contract, version)
    return contract.rows_left(rows) if version in contract.versions else rows


@cache
def once_run(contract: type[JobContract], version: int) -> Ran:
    """Run once for all tests that only look at what came of it."""
    before = filled(contract, version)
    plan = contract.plan(planned := before.copy())
    result = contract.run(after := before.copy())
    return Ran(before, plan, planned, result, after)


def lost(before: World, after: World) -> set[str]:
    """Files that are not there any more, or not as they were."""
    files, left = before.state()[0], after.state()[0]
    return {location for location in files if left.get(location) != files[location]}


def has_landed(before: World, world: World) -> bool:
    """Whether the table is another one but for tags that runs hold their snapshots by, or has lost a file."""
    return heads(world) != heads(before) or bool(lost(before, world))


def heads(world: World) -> dict[str, int]:
    """The snapshots of a table, and where its references are; nothing of a table that was dropped."""
    location = world.pointer()
    if location is None:
        return {}
    metadata = parse_metadata(world.memory.files[location][0], location)
    refs = {name: ref.snapshot_id for name, ref in metadata.refs.items() if not name.startswith(TAG_PREFIX)}
    return refs | {str(number): number for number in metadata.snapshots_by_id}


def assert_same_rows(world: World, rows: Counter[str] | None, told: str = "") -> None:
    """A table that is there has every file that its snapshots lead to and, where they are given, these rows."""
    if world.pointer() is not None:
        assert world.lost_files() == set(), told
        assert rows is None or world.rows() == rows, told


def assert_one_line(error: BaseException) -> None:
    """As every error of ours is shown."""
    message = str(error)
    assert message
    assert "\n" not in message
    assert not message.endswith(".")


def figures_of(document: Any) -> dict[str, Any]:
    """What is counted or measured in it, and what is said by yes or no; of documents in it too."""
    found: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(document).items():
        if isinstance(value, int | float):
            found[name] = value
        elif isinstance(value, msgspec.Struct):
            found |= {f"{name}.{inner}": figure for inner, figure in figures_of(value).items()}
    return found
