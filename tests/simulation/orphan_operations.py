"""Orphan removal beside everything else, and what waits for it: files that nothing leads to for now, and that are no orphans."""

import json
from collections.abc import Iterator
from typing import Any

from icekeep.maintenance.orphans.job import remove_orphan_files
from kit.runtime import no_spark, with_runtime
from simulation.client import Client
from simulation.doing import Effect
from simulation.model import Model
from simulation.operation import Operation
from simulation.snapshot_operations import ExpireAndReclaim, Restore
from simulation.world import EVENTS, LOCATION, Disk

DAY_MS = 24 * 3600 * 1000


class RemoveOrphans(Operation):
    """The job as it is; files that were written a day ago, and that nothing leads to, are orphans.

    It begins when two days have gone by in which nobody did anything: no file of a writer under way is that old.
    """

    waits = True

    def run(self, client: Client) -> bool:
        client.world.removing_orphans.add(self)
        try:
            done = remove_orphan_files(
                with_runtime(client.catalog.load(EVENTS), client),
                no_spark,
                older_than=client.now_ms() - DAY_MS,
                trash=self.random.choice([0, 0, 1]),
                force=True,
            )
        finally:
            client.world.removing_orphans.remove(self)
        seen = client.world.seen
        seen["files removed as orphans"] += done.deleted_files_count
        seen["files that are no orphans since a plan names them"] += done.kept.waiting_count
        return False

    def effect(self, model: Model, before: object, after: object) -> Effect | None:
        raise NotImplementedError("it never commits")

    def deletes(self, model: Model, location: str) -> None:
        """Nothing goes as an orphan that a plan names, unless its time has come, or some run carries it out.

        A file of two plans goes by the one that keeps it for longer: to its trash, while the other still waits.
        """
        disk, now_ms = model.world.disk, model.world.scheduler.now_ms
        for directory, names, until_ms in waiting_plans(disk, now_ms):
            model.require(
                location not in names or days_in_trash_end_ms(disk, location, now_ms) >= until_ms,
                "G2",
                f"{location!r} is deleted as an orphan; plan {directory!r} names it",
            )


class ExpireAndWait(ExpireAndReclaim):
    """Its files stay in their places for days, so that its snapshots can come back."""

    grace = ("0", "5d")
    trash = (0, 1, 3)


class RestoreBeside(Restore):
    """Brings back what somebody is about to delete, or while orphans are removed: when most is at stake."""

    def run(self, client: Client) -> bool:
        for _ in range(self.random.randint(1, 200)):
            world = client.world
            if world.removing_orphans or any(claim["owner"] for _, claim in claimed_plans(world.disk)):
                break
            client.sleep_ms(100)
        client.sleep_ms(self.random.choice([0, 100, 500]))
        return super().run(client)


def waiting_plans(disk: Disk, now_ms: int) -> Iterator[tuple[str, set[str], int]]:
    """The plans of expirations that wait, are done or are being restored: what each names, and until when it keeps that.

    A file of two plans whose time has come goes by either of them, to the trash of the one that keeps it for longer. A restore
    that has not said yet that it brings its files back gives up where another run is at work on them.
    """
    for directory, claim in claimed_plans(disk):
        plan = json.loads(disk.files[f"{directory}/plan.json"][0])
        if plan["job"] != "expire_snapshots" or claim["job"] not in ("expire_snapshots", "restore"):
            continue
        is_done = f"{directory}/done.json" in disk.files
        if claim["job"] == "restore" and not claim["restored_ms"] and not is_done:
            continue
        if claim["job"] == "expire_snapshots" and plan["not-before-ms"] <= now_ms and not is_done:
            continue
        until_ms = plan["not-before-ms"]
        if claim["restored_ms"] or is_done:
            until_ms = max(until_ms, plan["trash-until-ms"] or 0, claim["restored_ms"] + DAY_MS)
        yield directory, named_by(disk, plan), until_ms


def named_by(disk: Disk, plan: dict[str, Any]) -> set[str]:
    """The files of a plan."""
    parts = (disk.files.get(part["location"], (b"", 0))[0] for part in plan["parts"])
    return {json.loads(line)["location"] for part in parts for line in part.splitlines()}


def days_in_trash_end_ms(disk: Disk, location: str, now_ms: int) -> int:
    """Until when a file that goes to a trash now is kept there; 0 if it is in none."""
    ends = [0]
    for directory, _ in claimed_plans(disk):
        plan = json.loads(disk.files[f"{directory}/plan.json"][0])
        in_trash = f"{directory}/files/{location.removeprefix(LOCATION).lstrip('/')}"
        if plan["trash-until-ms"] is not None and in_trash in disk.files:
            ends.append(now_ms + plan["trash-until-ms"] - plan["not-before-ms"])
    return max(ends)


def claimed_plans(disk: Disk) -> Iterator[tuple[str, dict[str, Any]]]:
    """The directories of plans that count, with the last claim of each: which job is or was at work on it, and who is now."""
    own = [name for name in disk.files if name.startswith(f"{LOCATION}/.icekeep/")]
    for head in own:
        directory, _, name = head.rpartition("/")
        last = max((claim for claim in own if claim.startswith(f"{directory}/claims/")), default=None)
        if name == "plan.json" and last is not None:
            yield directory, json.loads(disk.files[last][0])
