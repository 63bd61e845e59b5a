import subprocess
import sys

from kit.cases import for_each


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def opened_without(module, properties):
    """What is said when a catalog is opened where a module is not installed."""
    return run(
        "import sys\n"
        f"sys.modules[{module!r}] = None\n"
        "from icekeep.catalog.open import open_catalog\n"
        f"try:\n open_catalog('prod', {properties!r})\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    ).stdout


REMEDIES = {"puresasl": "install it with: pip install 'pyiceberg[hive-kerberos]'"}
BROUGHT = "icekeep[catalogs] brings it (how to install it: docs/install.md)"


@for_each(
    ("properties", "module"),
    [
        ({"type": "rest", "uri": "http://x"}, "requests"),
        ({"type": "rest", "uri": "http://x", "rest.sigv4-enabled": "true"}, "boto3"),
        ({"type": "glue"}, "boto3"),
        ({"type": "hive", "uri": "thrift://x:1"}, "thrift"),
        ({"type": "hive", "uri": "thrift://x:1", "hive.kerberos-authentication": "true"}, "puresasl"),
    ],
)
def test_without_the_module_of_a_client_one_line_says_what_to_install(properties, module):
    assert opened_without(module, properties) == (
        f"UnsupportedError catalog 'prod' needs the Python module {module!r}; {REMEDIES.get(module, BROUGHT)}\n"
    )


def test_other_catalogs_need_no_module_of_another_client():
    assert opened_without("boto3", {"type": "rest", "uri": "http://x"}) == ""
    assert opened_without("hive_metastore", {"type": "rest", "uri": "http://x"}) == ""
    assert opened_without("pyiceberg", {"type": "glue"}) == ""


def test_opening_a_catalog_loads_no_client():
    code = (
        "import sys\n"
        "from icekeep.catalog.open import open_catalog\n"
        "for kind in ('rest', 'hive', 'glue'): open_catalog('prod', {'type': kind, 'uri': 'http://x'})\n"
        "print([name for name in ('pyiceberg', 'pydantic', 'boto3', 'requests', 'thrift') if name in sys.modules])\n"
    )
    assert run(code).stdout == "[]\n"
