"""s3fs with a limit of time for each request of the S3 API.

aiohttp limits how long a server may take to answer, but not how long it may take to read what it is sent. A server that
stands still while it has the connection, or that has closed its half and reads no more, would hold a trainer for ever.

`_call_s3` is below s3fs' public interface, but every request passes through it;
`tests/runtime/storage/test_transfers.py` has a server that stops to read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fsspec.asyn import sync_wrapper
from s3fs import S3FileSystem

REQUEST_SECONDS = 300.0
"""For a request with all tries of the library: for a part of 16 MiB, 0.45 Mbit/s."""


class S3Files(S3FileSystem):  # type: ignore[misc]
    """An S3 file system whose requests raise TimeoutError after `REQUEST_SECONDS`."""

    async def _call_s3(self, method: str, *arguments: Any, **options: Any) -> Any:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await super()._call_s3(method, *arguments, **options)

    call_s3 = sync_wrapper(_call_s3)
