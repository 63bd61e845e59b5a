"""A REST catalog over TLS: whose certificate is trusted, and which one is shown, by PyIceberg's properties."""

import datetime
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, UsageError
from icekeep.storage.open import open_storage
from kit.rest_server import RestServer


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The paths of a certificate that vouches for itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "icekeep")])
    began = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + datetime.timedelta(days=36500))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    kind, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, none))
    return tuple(map(str, paths))


@pytest.fixture
def encrypted(tmp_path, pair):
    """The properties of a catalog at a server that speaks TLS and wants a certificate."""
    server = RestServer(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    context.load_verify_locations(pair[0])
    context.verify_mode = ssl.CERT_REQUIRED
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    yield {**server.properties, "uri": server.uri.replace("http:", "https:")}
    server.close()


def test_certificates_are_those_that_properties_name(encrypted, pair, monkeypatch):
    # The property is nearer than what the environment says to all programs.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
    shown = {"ssl.client.cert": pair[0], "ssl.client.key": pair[1]}
    assert open_catalog("local", {**encrypted, "ssl.cabundle": pair[0], **shown}).list_namespaces() == []


def test_a_certificate_that_nobody_vouches_for_is_told(encrypted):
    with pytest.raises(
        UsageError,
        match=r"^catalog 'local' cannot be asked at https://127.0.0.1:\d+: its certificate is not trusted here \(self.signed "
        r"certificate\); check the address, or set ssl.cabundle$",
    ):
        open_catalog("local", encrypted).list_namespaces()


def test_a_server_without_tls_is_no_outage(tmp_path):
    server = RestServer(tmp_path)
    with pytest.raises(
        UsageError, match=r"at https://(localhost|127\.0\.0\.1):\d+: it speaks no TLS; give an address with http://$"
    ):
        open_catalog("local", {**server.properties, "uri": server.uri.replace("http:", "https:")}).list_namespaces()
    server.close()


def test_so_is_that_of_a_store(encrypted):
    keys = {"s3.region": "x", "s3.access-key-id": "a", "s3.secret-access-key": "bcde"}
    with pytest.raises(
        UsageError, match=r"cannot create 's3://b/x': the store's certificate is not trusted here; check the endpoint"
    ):
        open_storage({"s3.endpoint": encrypted["uri"], **keys}).create("s3://b/x", b"data")


@pytest.mark.parametrize("key", ["ssl.cabundle", "ssl.client.cert", "ssl.client.key"])
def test_a_file_that_is_not_there_is_a_configuration_error(encrypted, key):
    with pytest.raises(ConfigError, match=f"local.{key}.* is '/nowhere'; give the path of a file"):
        open_catalog("local", {**encrypted, key: "/nowhere"}).list_namespaces()
