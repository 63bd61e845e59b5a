"""The tools that come with the suite, by the names of their packages."""

from collections.abc import Callable, Mapping

from conformance.tools.ours import Icekeep, Java
from conformance.tools.tool import ProcessTool, Tool
from kit.shell import ROOT

_RIVALS = ROOT / ".venv-rivals" / "bin" / "python"


def _rival(name: str, script: str) -> Callable[[], Tool]:
    def make() -> Tool:
        if not _RIVALS.exists():
            raise FileNotFoundError("there is no .venv-rivals; run `make rivals-env` first")
        return ProcessTool(name, _RIVALS, script)

    return make


TOOLS: Mapping[str, Callable[[], Tool]] = {
    "icekeep": Icekeep,
    "java": Java,
    "iceberg-compaction": _rival("iceberg-compaction", "with_rust.py"),
    "iceberg-zamboni": _rival("iceberg-zamboni", "with_zamboni.py"),
}
