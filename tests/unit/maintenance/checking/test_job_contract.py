from contracts.job_contract import JobContract
from icekeep.maintenance.checking import JOB
from kit.job_world import World
from kit.written_deletes import data_files, delete_by_vector


class TestCheck(JobContract):
    job = JOB
    told = {"deep": True}  # noqa: RUF012 - as its base says
    foretold = ("snapshots_count", "manifests_count", "entries_count")

    @staticmethod
    def fill(version):
        world = World(version, [("at", "month")])
        for number in range(3):
            world.append(number, month=1 + number % 2)
        if version == 3:
            delete_by_vector(world.table, data_files(world.table)[0].file_path, [1])
        return world
