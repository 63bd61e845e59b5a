"""The report of benchmarks: medians of rounds, and ratios of what ran in the same round."""

import json
from pathlib import Path

import pytest

from bench.compaction import CompactionCase, CompactionTrial
from bench.runner import published
from bench.runner.figures import Figures, Run
from bench.runner.published import Published, line, rounds_of
from bench.tables.lineitem import Lineitem
from kit.shell import ROOT

TABLE = Lineitem(scale="1", files=60, by_pyiceberg=True)
CASE = CompactionCase(table=TABLE, arguments={}, into_files=2, codec="zstd", level=3, rounds=3, runs=2)


def run_of(seconds: float, memory: int = 1) -> Run:
    return Run(
        seconds=seconds,
        cpu_seconds=2 * seconds,
        driver_bytes=memory,
        jvm_bytes=0,
        worker_bytes=0,
        total_bytes=memory,
        result={},
        steal_seconds=seconds / 10,
    )


def figures_of(rival: str, *seconds: float) -> Figures:
    return Figures(case="a case", rival=rival, runs=tuple(map(run_of, seconds)), facts={"MB written": 1.5})


def test_the_best_run_of_each_round_counts() -> None:
    assert [run.seconds for run in rounds_of(figures_of("java", 3, 2, 5, 6, 4, 1), CASE)] == [2, 5, 1]


def test_ratios_are_of_the_same_round_and_medians_of_all() -> None:
    own = rounds_of(figures_of("icekeep", 1, 9, 2, 9, 4, 9), CASE)
    found = line(figures_of("java", 3, 9, 2, 9, 8, 9), CASE, own)
    assert (found.seconds, found.cpu_seconds, found.rounds_seconds) == (3, 6, (3, 2, 8))
    # Of 3, 1 and 2; the medians, 3 and 2, have another ratio.
    assert found.ratio == 2
    assert found.steal_seconds == pytest.approx(0.8)
    assert line(figures_of("java", 2, 9, 6, 9, 9, 9), CASE, own[:2]).ratio == 2.5
    assert line(figures_of("java", 2, 9), CASE, None).ratio is None


def test_a_report_has_machine_versions_cases_and_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "versions", lambda rival: {rival.name: "1.2"})
    monkeypatch.setattr(published, "_commit", lambda: "abc")
    told = Published()
    told.add(CASE, [figures_of("icekeep", 1, 1, 1, 1, 1, 1), figures_of("iceberg-compaction", 2, 2, 2, 2, 2, 2)])
    told.write(tmp_path / "of" / "rivals", ["another case"])
    text = (tmp_path / "of" / "rivals.md").read_text()
    assert "| iceberg-compaction | iceberg-compaction 1.2 |" in text
    assert "Table sf1-60-pyiceberg, warm sessions, 3 rounds, zstd, level 3 where it can be set." in text
    assert "| iceberg-compaction | 2.00 (2.00, 2.00, 2.00) | 4.00 | 2.00 | 0 | 1.50 | 0.2 | 0.0 |" in text
    assert "another case" in text.splitlines()[-1]
    page = " ".join((ROOT / "docs" / "performance" / "rivals.md").read_text().split())
    words = [one for one in text.splitlines() if one.startswith(("Medians of ", "Of a compaction: ", "Of manifests, "))]
    assert [one in page for one in words] == [True] * 3
    document = json.loads((tmp_path / "of" / "rivals.json").read_bytes())
    assert document["machine"]["commit"] == "abc"
    assert [one["rival"] for one in document["cases"][0]["lines"]] == ["icekeep", "iceberg-compaction"]


@pytest.mark.parametrize(
    ("codec", "level", "wanted"),
    [
        (None, None, []),
        ("snappy", None, ["write.parquet.compression-codec=snappy"]),
        ("zstd", 3, ["write.parquet.compression-codec=zstd", "write.parquet.compression-level=3"]),
    ],
)
def test_the_codec_of_a_case_is_a_property_of_its_copies(codec: str | None, level: int | None, wanted: object) -> None:
    trial = object.__new__(CompactionTrial)
    trial.case = CompactionCase(table=TABLE, arguments={}, into_files=2, codec=codec, level=level)
    assert trial.properties == wanted
