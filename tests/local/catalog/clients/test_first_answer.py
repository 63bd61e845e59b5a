"""Servers that accept a connection and never answer: each client gives up at the one limit, whatever it would try again."""

import socket

import pytest

from icekeep.catalog.open import open_catalog
from icekeep.errors import OutcomeUnknownError, UnavailableError
from icekeep.storage.open import open_storage
from icekeep.storage.ranges import FIRST_ANSWER_TIMEOUT
from kit.cases import for_each

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
def test_a_catalog_that_never_answers_is_given_up_in_one_line_with_its_address(kind, silent):
    where, catalog = opened(kind, silent)
    with pytest.raises(UnavailableError) as caught:
        catalog.list_namespaces()
    assert str(caught.value) == (
        f"catalog 'mine' cannot be asked: {where} did not answer within 0.2 s; check the address and the server, or raise "
        f"{FIRST_ANSWER_TIMEOUT}"
    )


def test_a_server_that_hands_out_tokens_and_never_answers_is_the_one_that_is_named(server, silent):
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


def test_hdfs_that_never_answers_is_given_up_in_one_line_with_its_address(silent):
    storage = open_storage({**LIMIT, "ipc.client.rpc-timeout.ms": "3000"})
    for act in (storage.head, storage.read, lambda at: [*storage.list(at)]):
        with pytest.raises(UnavailableError, match=f"hdfs://{silent} did not answer within 0.2 s"):
            act(f"hdfs://{silent}/wh/file")
