"""A bucket of an object store that the test starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest


@contextmanager
def s3_bucket(name: str) -> Iterator[str]:
    """Start an S3 server with a bucket, which this process's environment leads to; yields the bucket's URI.

    Servers of one process have the same buckets, so the bucket's name only begins with the given one.
    """
    bucket = f"{name}-{uuid4().hex[:8]}"
    pytest.importorskip("s3fs")
    server_of = pytest.importorskip("moto.server").ThreadedMotoServer
    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "id")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        from rljob_runtime.storage.s3_files import S3Files

        forget_s3_clients()  # another server of this process may have been there
        S3Files().mkdir(bucket)
        yield f"s3://{bucket}"
    server.stop()


def forget_s3_clients() -> None:
    """Have clients of S3 made again: fsspec keeps them, with their address and keys."""
    from s3fs import S3FileSystem

    from rljob_runtime.storage.s3_files import S3Files

    for kind in (S3FileSystem, S3Files):
        kind.clear_instance_cache()


@contextmanager
def gcs_bucket(name: str) -> Iterator[str]:
    """Start a server that speaks Google Cloud Storage's JSON API, with a bucket; yields the bucket's URI."""
    pytest.importorskip("gcsfs")
    create_server = pytest.importorskip("gcp_storage_emulator.server").create_server
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=name)
    server.start()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server._api._httpd.server_port}")
        # The kind of a bucket is asked by gRPC, which the server does not speak.
        environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        try:
            yield f"gs://{name}"
        finally:
            server.stop()
