import os
import subprocess
import sys
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.runtime import SYSTEM, SystemRuntime, interrupt_behind, new_snapshot_id
from kit.runtime import START_MS, FakeRuntime


class Drawing(FakeRuntime):
    """Gives some UUIDs in turn."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.numbers.pop(0))


def test_the_system_tells_the_time_in_milliseconds():
    before = time.time()  # noqa: TID251 - what `now_ms` is compared with
    now_ms = SYSTEM.now_ms()
    assert isinstance(now_ms, int)
    assert before * 1000 - 1 <= now_ms <= before * 1000 + 60_000


def test_the_monotonic_clock_does_not_go_back():
    first = SYSTEM.monotonic_ms()
    assert isinstance(first, int)
    assert SYSTEM.monotonic_ms() >= first


def test_sleeping_takes_as_long_as_it_says():
    before = SYSTEM.monotonic_ms()
    SYSTEM.sleep_ms(3)
    assert SYSTEM.monotonic_ms() - before >= 2
    SYSTEM.sleep_ms(0)


def test_uuids_are_random_and_of_version_4():
    drawn = {SYSTEM.new_uuid() for _ in range(100)}
    assert len(drawn) == 100
    assert {one.version for one in drawn} == {4}


def test_a_random_number_is_in_its_range_and_not_always_the_same():
    drawn = {SYSTEM.uniform(2.0, 3.0) for _ in range(100)}
    assert all(2.0 <= number <= 3.0 for number in drawn)
    assert len(drawn) > 90


def test_the_system_is_one_of_its_kind():
    assert isinstance(SYSTEM, SystemRuntime)


# A driver that says who is above it and whether it is abandoned: at once, and once more after a line has been read.
DRIVER = """
import os, sys
from icekeep.runtime import SYSTEM
def tell():
    print(SYSTEM.is_abandoned(), flush=True)
if "--forked" in sys.argv and os.fork():
    os.wait()
    os._exit(0)
tell()
sys.stdin.readline()
tell()
"""
# What starts it, tells its own number, and waits to be killed.
STARTER = """
import os, subprocess, sys
print(os.getpid(), flush=True)
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
"""


def outlive(starter_dies, *, submitted, arguments=(), **variables):
    """What a driver answers before and after its starter was killed, or neither."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_GATEWAY_PORT"} | {"PYTHONPATH": paths}
    if submitted:
        environment["PYSPARK_GATEWAY_PORT"] = "1"
    environment |= variables
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, DRIVER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    first = process.stdout.readline().strip()
    if starter_dies:
        process.kill()
        process.wait()
    print("go", file=process.stdin, flush=True)
    second = process.stdout.readline().strip()
    process.stdout.close()
    process.stdin.close()
    process.wait()
    return first, second


@pytest.mark.process
def test_a_driver_whose_submitter_was_killed():
    assert outlive(True, submitted=True) == ("False", "True")


@pytest.mark.process
def test_a_driver_whose_submitter_lives_is_not_abandoned():
    assert outlive(False, submitted=True) == ("False", "False")


@pytest.mark.process
def test_a_process_that_a_shell_started_may_outlive_it():
    assert outlive(True, submitted=False) == ("False", "False")


@pytest.mark.process
def test_forked_driver_is_not_abandoned_while_parent_lives():
    assert outlive(True, submitted=True, arguments=("--forked",)) == ("False", "False")


@pytest.mark.process
def test_environment_decides_when_driver_is_abandoned():
    assert outlive(True, submitted=True, ICEKEEP_SUBMITTER="none") == ("False", "False")
    assert outlive(True, submitted=False, ICEKEEP_SUBMITTER="parent") == ("False", "True")


@given(st.integers(0, 2**128 - 1))
def test_snapshot_id_uses_both_uuid_halves_and_is_positive(number):
    halves = (number >> 64) ^ (number & (2**64 - 1))
    expected = halves & (2**63 - 1)
    if expected:
        assert new_snapshot_id(Drawing(number)) == expected
        assert 0 < expected < 2**63


def test_an_id_that_is_taken_or_zero_is_drawn_again():
    assert new_snapshot_id(Drawing(5, 0, (7 << 64) | 7, 1 << 63, 6, 9), {5, 6}) == 9


@pytest.mark.parametrize("seed", [0, 1])
def test_fake_runtime_is_reproducible_per_seed(seed):
    one, two, other = FakeRuntime(seed), FakeRuntime(seed), FakeRuntime(seed + 1)
    drawn = [one.new_uuid() for _ in range(10)]
    assert drawn == [two.new_uuid() for _ in range(10)]
    assert len({*drawn, *(other.new_uuid() for _ in range(10))}) == 20
    assert {d.version for d in drawn} == {4}


def test_only_sleeping_moves_the_fake_clock():
    fake = FakeRuntime()
    assert (fake.now_ms(), fake.now_ms(), fake.monotonic_ms()) == (START_MS, START_MS, 0)
    fake.sleep_ms(250)
    fake.pass_ms(50)
    assert (fake.now_ms(), fake.monotonic_ms(), fake.sleeps_ms) == (START_MS + 300, 300, [250])
    assert (fake.uniform(1, 3), FakeRuntime(chance=1.0).uniform(1, 3)) == (1, 3)
    assert 1 <= FakeRuntime(chance=None).uniform(1, 3) <= 3
    assert not fake.is_abandoned()
    fake.abandoned = True
    assert fake.is_abandoned()


def test_interrupt_is_found_behind_error_raised_from_it():
    interrupt = KeyboardInterrupt()
    with pytest.raises(ValueError) as raised:
        raise ValueError("x") from interrupt
    assert interrupt_behind(raised.value) is interrupt
    assert interrupt_behind(interrupt) is interrupt


def test_handled_interrupt_is_not_behind_later_error():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(ValueError) as raised:
            int("x")
    assert interrupt_behind(raised.value) is None
