"""What an error proves; most of the rules are shown over HTTP in `test_rest_faults.py`, and with Glue in `test_glue.py`."""

import socket
import subprocess
import sys

import msgspec
import pytest
from botocore.exceptions import ClientError, NoCredentialsError
from requests.exceptions import InvalidHeader, InvalidURL
from thrift.Thrift import TApplicationException

from icekeep.catalog.clients.errors import CommitRefused, Refusal, described, proved_rejection, read_failure
from icekeep.catalog.open import open_catalog
from icekeep.errors import (
    IcekeepBug,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.secrets import MASK, remember
from icekeep.storage.open import open_storage
from icekeep.storage.ranges import FIRST_ANSWER_TIMEOUT
from kit.cases import for_each

SECRETS = {"token": "hunter2secret", "s3.secret-access-key": "s3cr3t", "uri": "http://host", "credential": "id:pw12"}


def answer_error():
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(b'{"number": "x"}', type=dict[str, int])
    return raised.value


@for_each(
    "error",
    [
        *(ValueError("x"), OSError("x"), RuntimeError(), TimeoutError("x")),
        *(Refusal("x"), CommitRefused("x"), answer_error()),
    ],
)
def test_an_error_that_nobody_listed_proves_nothing(error):
    assert proved_rejection(error, "prod") is None


@for_each(
    ("code", "kind"),
    [
        ("AccessDeniedException", UsageError),
        ("EntityNotFoundException", NotFoundError),
        ("ThrottlingException", UnavailableError),
        ("InternalServiceException", type(None)),
        ("SomethingNew", type(None)),
    ],
)
def test_glue_refuses_by_codes_of_its_own(code, kind):
    error = ClientError({"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {}}, "UpdateTable")
    assert type(proved_rejection(error, "prod")) is kind


def test_secrets_are_cut_out_of_messages():
    remember(SECRETS)
    text = described(ValueError("token hunter2secret and s3cr3t with id:pw12 at http://host\nmore"))
    assert text == f"token {MASK} and {MASK} with {MASK} at http://host"
    assert described(ValueError("no client pw12 with id")) == f"no client {MASK} with id"


def test_invalid_answer_is_one_line_with_its_place():
    failure = read_failure(answer_error(), "prod")
    assert isinstance(failure, UnsupportedError)
    assert failure.message == (
        "catalog 'prod' answered what the protocol does not say: Expected `int`, got `str` - at `$[...]`"
    )


def test_failed_read_is_unavailable_and_own_error_is_kept():
    ours = NotFoundError("not there")
    assert read_failure(ours, "prod") is ours
    failure = read_failure(ConnectionResetError("reset"), "prod")
    assert isinstance(failure, UnavailableError)
    assert failure.message == "catalog 'prod' cannot be asked: reset"


@for_each(
    "error",
    [NameError("name 'x' is not defined"), TypeError("%d format: a number is required"), RecursionError("too deep")],
)
def test_a_mistake_in_code_is_no_outage(error):
    failure = read_failure(error, "prod")
    assert isinstance(failure, IcekeepBug)
    assert failure.message.startswith(f"catalog 'prod': {error} ({type(error).__name__}); please report it")


@for_each(
    ("error", "kind"),
    [
        (
            TApplicationException(TApplicationException.UNKNOWN_METHOD, "Invalid method name: 'get_table'"),
            UnsupportedError,
        ),
        (TApplicationException(TApplicationException.INTERNAL_ERROR, "x"), UnavailableError),
        (InvalidHeader("Invalid header value"), UsageError),
        (InvalidURL("Failed to parse"), UsageError),
        (NoCredentialsError(), UsageError),
    ],
)
def test_what_trying_again_does_not_help_is_no_outage(error, kind):
    assert type(read_failure(error, "prod")) is kind


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
def test_missing_client_module_error_says_what_to_install(properties, module):
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


LIMIT = {FIRST_ANSWER_TIMEOUT: "200"}
PATIENT = {"rest.client.socket-timeout-ms": "3000", "hive.client.socket-timeout-ms": "3000", "glue.max-retries": "1"}
"""Longer than the limit, and not so long that a client without it would hold the tests."""


@pytest.fixture
def silent():
    """The address of a server whose system accepts connections, and that never looks at them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def opened(kind, address):
    schemes = {"rest": "http", "glue": "http", "hive": "thrift"}
    where = f"{schemes[kind]}://{address}"
    keys = {"glue.access-key-id": "x", "glue.secret-access-key": "x", "glue.region": "us-east-1"}
    properties = {"type": kind, "uri": where, "glue.endpoint": where, **keys, **PATIENT, **LIMIT}
    return where, open_catalog("mine", properties)


@for_each("kind", ["rest", "glue", "hive"])
def test_silent_catalog_times_out_with_its_address(kind, silent):
    where, catalog = opened(kind, silent)
    with pytest.raises(UnavailableError) as caught:
        catalog.list_namespaces()
    assert str(caught.value) == (
        f"catalog 'mine' cannot be asked: {where} did not answer within 0.2 s; check the address and the server, or raise "
        f"{FIRST_ANSWER_TIMEOUT}"
    )


def test_silent_token_server_is_named(server, silent):
    properties = server.properties | PATIENT | LIMIT
    tokens = {"credential": "name:secret", "oauth2-server-uri": f"http://{silent}/v1/oauth/tokens"}
    with pytest.raises(UnavailableError, match=f"http://{silent} did not answer") as caught:
        open_catalog("mine", properties | tokens).list_namespaces()
    assert "secret" not in str(caught.value)


def test_a_change_that_is_never_answered_may_have_happened(silent):
    _, catalog = opened("glue", silent)
    with pytest.raises(OutcomeUnknownError, match="may or may not have happened"):
        catalog.create_namespace(("db",))


def test_several_metastores_that_do_not_answer_share_the_limit(silent):
    with socket.create_server(("127.0.0.1", 0)) as other:
        both = f"{silent},thrift://127.0.0.1:{other.getsockname()[1]}"
        where, catalog = opened("hive", both)
        with pytest.raises(UnavailableError, match=f"{where.replace(',', ', ')} did not answer"):
            catalog.list_namespaces()


def test_silent_hdfs_times_out_with_its_address(silent):
    storage = open_storage({**LIMIT, "ipc.client.rpc-timeout.ms": "3000"})
    for act in (storage.head, storage.read, lambda at: [*storage.list(at)]):
        with pytest.raises(UnavailableError, match=f"hdfs://{silent} did not answer within 0.2 s"):
            act(f"hdfs://{silent}/wh/file")
