import io
import json

import fastavro
import pytest

from icekeep.errors import UnsupportedError
from icekeep.spec.avro import encode_long, packer, read_header, read_records, write_header
from kit.cases import for_each
from kit.manifests import encode_block

NUMBERS = {"type": "record", "name": "row", "fields": [{"name": "n", "type": "long", "field-id": 1}]}


@for_each("codec", ["null", "deflate", "snappy", "zstandard"])
def test_a_block_of_ours_is_read_by_fastavro(codec: str):
    encoded = [encode_long(n) for n in (1, -70, 2**62)]
    header = write_header({"avro.schema": json.dumps(NUMBERS).encode(), "avro.codec": codec.encode()}, b"s" * 16)
    data = header + encode_block(b"".join(encoded), 3, codec, b"s" * 16)
    data += encode_block(encoded[0], 1, codec, b"s" * 16)
    assert [r["n"] for r in fastavro.reader(io.BytesIO(data))] == [1, -70, 2**62, 1]
    assert [r["n"] for r in read_records(data, read_header(data, "f"), "f")] == [1, -70, 2**62, 1]


def test_a_codec_that_we_do_not_write_is_refused():
    with pytest.raises(
        UnsupportedError, match="'bzip2' cannot be written; use one of deflate, snappy, zstandard, null"
    ):
        encode_block(b"", 0, "bzip2", bytes(16))


@pytest.mark.parametrize(("codec", "level"), [("deflate", 9), ("zstandard", 19)])
def test_a_higher_level_packs_tighter(codec: str, level: int):
    payload = b"".join(encode_long(n * n) for n in range(20_000))
    assert len(packer(codec, level)(payload)) < len(packer(codec, 1)(payload))


@pytest.mark.parametrize(("codec", "level"), [("deflate", 10), ("zstandard", 23)])
def test_a_level_that_a_codec_does_not_have_is_refused(codec: str, level: int):
    with pytest.raises(UnsupportedError, match=f"has no level {level}; its levels are"):
        packer(codec, level)
