"""Orphan removal beside everything else, and what waits for it: files that nothing leads to for now, and that are no orphans."""

import json
from collections.abc import Iterator

from icekeep.maintenance.orphans.job import remove_orphan_files
from kit.no_spark import no_spark
from kit.runtime import with_runtime
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
        """Nothing goes as an orphan that a plan names, unless its time has come, or some run carries it out."""
        for directory, names in waiting_plans(model.world.disk, model.world.scheduler.now_ms):
            model.require(
                location not in names, "G2", f"{location!r} is deleted as an orphan; plan {directory!r} names it"
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
            if world.removing_orphans or any(owner for _, _, owner in claimed_plans(world.disk)):
                break
            client.sleep_ms(100)
        client.sleep_ms(self.random.choice([0, 100, 500]))
        return super().run(client)


def waiting_plans(disk: Disk, now_ms: int) -> Iterator[tuple[str, set[str]]]:
    """The plans of expirations that wait, are done or are being restored, and the files that each names.

    A file of two plans whose time has come goes by either of them, to the trash of the one that keeps it for longer.
    """
    for directory, job, _ in claimed_plans(disk):
        plan = json.loads(disk.files[f"{directory}/plan.json"][0])
        if plan["job"] != "expire_snapshots" or job not in ("expire_snapshots", "restore"):
            continue
        is_done = f"{directory}/done.json" in disk.files
        if job == "expire_snapshots" and plan["not-before-ms"] <= now_ms and not is_done:
            continue
        names: set[str] = set()
        for part in plan["parts"]:
            lines = disk.files.get(part["location"], (b"", 0))[0].splitlines()
            names |= {json.loads(line)["location"] for line in lines}
        yield directory, names


def claimed_plans(disk: Disk) -> Iterator[tuple[str, str, str]]:
    """The directories of plans that count, which job was at work on each last, and who is now."""
    own = [name for name in disk.files if name.startswith(f"{LOCATION}/.icekeep/")]
    for head in own:
        directory, _, name = head.rpartition("/")
        last = max((claim for claim in own if claim.startswith(f"{directory}/claims/")), default=None)
        if name == "plan.json" and last is not None:
            claim = json.loads(disk.files[last][0])
            yield directory, claim["job"], claim["owner"]
