"""What the judges that share no code with Iceberg Java read, and the faults that are known of them, one by one."""

import json
from collections import Counter

import pytest

from kit.judging.answers import answer_texts
from kit.judging.examples import EXAMPLES, HISTORY, example
from kit.judging.faults import FAULTS, VERSIONS, Fault, faults_of
from kit.judging.judge import JudgeError
from kit.judging.kinds import Kind
from kit.judging.panel import Panel, our_rows
from kit.lake import Lake


@pytest.fixture
def own_lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Apart from the directory whose tables all judges read at the end of a test."""
    return Lake(tmp_path_factory.mktemp("judged"))


def test_the_list_of_faults_is_of_these_versions(panel: Panel) -> None:
    assert {judge.name: judge.version for judge in panel.judges} == VERSIONS


@pytest.mark.parametrize("name", [*EXAMPLES, HISTORY])
def test_who_is_not_known_to_fail_reads_it(name: str, own_lake: Lake, panel: Panel) -> None:
    assert panel.disagreements(example(own_lake, name)) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.judge} {fault.what}")
def test_a_fault_is_still_there(fault: Fault, own_lake: Lake, panel: Panel) -> None:
    table = example(own_lake, fault.example)
    assert fault in faults_of(fault.judge, Kind(table))
    judge = panel.judge(fault.judge)
    if fault.says:
        with pytest.raises(JudgeError, match=fault.says):
            judge.rows(table)
        return
    rows = judge.rows(table)
    expected = answer_texts(table.metadata.schema, our_rows(table), has_null_lists=judge.has_null_lists)
    assert (_numbers(expected - rows), _numbers(rows - expected)) == (fault.missing, fault.added)


def _numbers(rows: Counter[str]) -> tuple[int, ...]:
    return tuple(sorted(json.loads(row)[0] for row in rows.elements()))
