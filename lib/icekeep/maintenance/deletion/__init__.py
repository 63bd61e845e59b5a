"""How files are deleted, by every job that deletes, in this order.

1. `reachable`: what metadata leads to; `garbage`: what nothing leads to any more.
2. `territory`: below which directories this table's files lie; `neighbours`: whether another table lies there.
3. `plans`, `plan_writing`: what is going to be deleted, written to storage before anything is.
4. `claims`: who is at work on a plan, one at a time.
5. `kept_by_plans`: which of a plan's files other plans keep for longer.
6. `last_look`: before each call, whether the table leads to them again.
7. `reclaim`: the only code that deletes files of tables, or moves them to the trash.
8. `due_plans`, `earlier_runs`, `finished_plans`: what earlier runs left to be done, and what becomes of a plan that is done.
"""
