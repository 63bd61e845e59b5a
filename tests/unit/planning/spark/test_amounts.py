from icekeep.planning.spark.workers import Amount, small_tasks, tasks_count
from kit.cases import for_each
from unit.planning.spark.test_tasks import Session

AMOUNT = Amount(10, 100)
GIVEN = {"spark__default__parallelism": "4"}


@for_each(
    ("total", "count"),
    [(0, 1), (9, 1), (19, 1), (20, 2), (55, 5), (999, 99), (1_000, 100), (10_000, 100), (10_001, 101), (99_999, 1_000)],
)
@for_each("cores", [2, 400, 40_000])
def test_work_is_cut_by_its_amount_whatever_cores_are_there(total, count, cores):
    """Two cores were registered when a run began that had four hundred a minute later."""
    assert tasks_count(Session("yarn", parallelism=cores), total, AMOUNT) == count


@for_each(
    ("session", "a_slot", "count"),
    [
        (Session("local[3]", parallelism=3), 1, 3),
        (Session("local[3]", parallelism=3), 4, 12),
        (Session("local[3]", parallelism=4, **GIVEN), 4, 4),
        (Session("yarn", parallelism=4, **GIVEN), 4, 4),
        (Session("spark://host:7077", parallelism=2), 4, 100),
        (Session("local-cluster[2,3,1024]", parallelism=2), 1, 100),
    ],
)
def test_how_many_tasks_may_be_small_says_the_operator_or_a_local_master(session, a_slot, count):
    assert small_tasks(session, a_slot=a_slot) == count
    assert tasks_count(session, 10**4, AMOUNT, a_slot=a_slot) == max(count, 100)
    assert tasks_count(session, 2_000, AMOUNT, a_slot=a_slot) == max(count, 20)
    # An operator's number makes no task that is not worth its start.
    assert tasks_count(session, 25, AMOUNT, a_slot=a_slot) == 2


def test_a_task_has_as_much_of_its_own_as_it_reads_beside():
    yarn = Session("yarn")
    assert [tasks_count(yarn, 10_000, AMOUNT, beside=beside) for beside in (5, 50, 200, 20_000)] == [100, 100, 50, 1]
    assert tasks_count(yarn, 150, AMOUNT, beside=50) == 3
