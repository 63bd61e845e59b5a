"""Which allocator Arrow has in processes of icekeep's own."""

import subprocess
import sys

import pytest

from kit.lake import Lake
from kit.shell import ROOT

pytestmark = pytest.mark.process

SAYS = "import pyarrow as pa; print(pa.default_memory_pool().backend_name)"
TAKEN = "from icekeep.formats.machine import choose_pool; choose_pool()"


def said(code, *words, **environ):
    """The last line that a process prints."""
    environ["PYTHONPATH"] = str(ROOT / "lib")
    done = subprocess.run([sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_arrow_allocates_in_small_pages():
    assert said(SAYS) == "mimalloc"
    assert said(f"{TAKEN}; {SAYS}") == "jemalloc"


def test_what_an_operator_has_chosen_holds():
    assert said(f"{TAKEN}; {SAYS}", ARROW_DEFAULT_MEMORY_POOL="system") == "system"


def test_where_address_space_is_limited_arrow_keeps_little():
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))"
    assert said(f"{limited}; {TAKEN}; {SAYS}") == "system"
    assert said(f"{limited}; {TAKEN}; {SAYS}", ARROW_DEFAULT_MEMORY_POOL="jemalloc") == "jemalloc"


def test_an_arrow_without_that_allocator_stays_as_it_is():
    absent = "import pyarrow as pa\ndef absent(): raise NotImplementedError\npa.jemalloc_memory_pool = absent"
    assert said(f"{absent}\n{TAKEN}; {SAYS}") == "mimalloc"


@pytest.mark.parametrize(
    ("call", "pool"),
    [("entry_point()", "jemalloc"), ("sys.exit(main(sys.argv[1:]))", "mimalloc")],
    ids=["own", "of-others"],
)
def test_a_command_changes_only_a_process_of_its_own(call, pool, tmp_path):
    lake = Lake(tmp_path)
    lake.filled(commits=2)
    conf = tmp_path / "icekeep.yaml"
    conf.write_text(
        f"catalogs: {{local: {{type: sql, uri: '{lake.properties['uri']}', warehouse: '{tmp_path.as_uri()}'}}}}"
    )
    imports = "import sys\nfrom icekeep.__main__ import entry_point\nfrom icekeep.cli import main"
    code = f"{imports}\ntry:\n    {call}\nfinally:\n    {SAYS}"
    words = ["compact", "--conf", str(conf), "--table", "local.db.events", "--option", "rewrite-all=true"]
    assert said(code, *words) == pool
