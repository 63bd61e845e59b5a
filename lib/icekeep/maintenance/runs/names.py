"""How a run names what it keeps below `.icekeep/`, its new files, plans and tags: by its id, which snapshots have too."""

from icekeep.catalog.base import Table


def run_name(table: Table, number: int = 1) -> str:
    """The id of the run that works on a table, with the number of the plan from the second on: what each keeps is its own."""
    run_id = str(table.runtime.new_uuid()) if table.run is None else table.run.run_id
    return run_id if number == 1 else f"{run_id}-{number}"
