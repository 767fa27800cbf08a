"""Every store passes the one contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dstream.store.base import Store, Upload
from dstream.store.local_walk import TEMP_PREFIX
from dstream.store.memory import MemoryStore
from dstream.store.opening import open_store
from s3_services import S3Place, plain_client
from store_contract import StoreContract

MIB = 1024 * 1024


class TestMemory(StoreContract):
    large_bytes = pytest.fixture(lambda self: 3 * MIB)

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore("some/prefix")


class TestLocal(StoreContract):
    large_bytes = pytest.fixture(lambda self: 3 * MIB)

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "root")

    def begin_upload(self, store: Store, key: str) -> Upload | None:
        name = f"{key.rpartition('/')[0]}/{TEMP_PREFIX}0123"
        (Path(store.url) / name).write_bytes(b"half")
        return Upload(key, name, 0.0)


@pytest.mark.usefixtures("each_engine")
class S3Contract(StoreContract):
    large_bytes = pytest.fixture(lambda self: 33 * MIB)

    @pytest.fixture
    def store(self, place: S3Place) -> Iterator[Store]:
        store = open_store(f"{place.url}/some prefix/ü", options=place.options)
        yield store
        store.close()

    def begin_upload(self, store: Store, key: str) -> Upload | None:
        bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
        client = plain_client(self.endpoint_url)
        begun = client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{key}")
        client.close()
        return Upload(key, begun["UploadId"], 0.0)

    @pytest.fixture(autouse=True)
    def _remember(self, place: S3Place) -> None:
        self.endpoint_url = place.endpoint_url


class TestMoto(S3Contract):
    @pytest.fixture
    def place(self, moto_bucket: S3Place) -> S3Place:
        return moto_bucket


@pytest.mark.rgw
class TestRgw(S3Contract):
    @pytest.fixture
    def place(self, rgw_bucket: S3Place) -> S3Place:
        return rgw_bucket
