"""A bucket of a real S3 server."""

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
        import s3fs

        # Another server of this process may have been there: fsspec keeps what it made for it.
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir(bucket)
        yield f"s3://{bucket}"
    server.stop()
