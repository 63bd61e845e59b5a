"""The examples in docstrings say what is true."""

import doctest
from importlib import import_module
from pathlib import Path

from kit.cases import for_each

LIB = Path(__file__).parents[2] / "lib"
MODULES = sorted(
    ".".join(path.relative_to(LIB).with_suffix("").parts).removesuffix(".__init__")
    for path in LIB.rglob("*.py")
    if ">>>" in path.read_text("utf-8")
)


@for_each("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for examples in doctest.DocTestFinder().find(import_module(name), name):
        runner.run(examples, out=said.append)
    assert runner.tries, "there are examples"
    assert not runner.failures, "".join(said)
