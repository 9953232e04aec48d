"""Readers of what a server has: each gives the bytes of one object."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.readers import write_tar
from support.servers import http_server

CONTENT = bytes(range(250)) * 40
BUCKET, NAME = "bucket", "sample.bin"
_KEYS = {"key": "testing", "secret": "testing"}


class Places(NamedTuple):
    """Where the object is: the URL of its folder, the URL of an S3 server, and a local folder."""

    http: str
    s3: str
    folder: Path


@contextlib.contextmanager
def places(folder: Path) -> Iterator[Places]:
    """Serve the object in each form."""
    (folder / NAME).write_bytes(CONTENT)
    row = {"x": CONTENT.hex()}
    (folder / "sample.jsonl").write_text(json.dumps(row), encoding="utf-8")
    write_tar(folder / "sample.tar", [CONTENT])
    with http_server(folder) as http, _s3_server() as s3:
        yield Places(http, s3, folder)


@contextlib.contextmanager
def _s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = s3_client(url)
        client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key=NAME, Body=CONTENT)
        yield url
    finally:
        server.stop()


def s3_client(url: str, retries: int = 0) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=_KEYS["key"],
        aws_secret_access_key=_KEYS["secret"],
        config=Config(retries={"max_attempts": retries}),
    )


def _urllib(where: Places) -> bytes:
    with urllib.request.urlopen(f"{where.http}/{NAME}") as answer:  # noqa: S310  # our own
        return bytes(answer.read())


def _requests(where: Places) -> bytes:
    import requests

    return requests.get(f"{where.http}/{NAME}").content  # noqa: S113  # that is the question


def _aiohttp(where: Places) -> bytes:
    import aiohttp

    async def ask() -> bytes:
        url = f"{where.http}/{NAME}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.read()

    return asyncio.run(ask())


def _boto3(where: Places) -> bytes:
    answer = s3_client(where.s3).get_object(Bucket=BUCKET, Key=NAME)
    return bytes(answer["Body"].read())


def _s3fs(where: Places) -> bytes:
    import s3fs

    config = {"retries": {"max_attempts": 0}}
    files = s3fs.S3FileSystem(endpoint_url=where.s3, config_kwargs=config, **_KEYS)
    files.retries = 1
    return bytes(files.cat_file(f"{BUCKET}/{NAME}"))


def _fsspec(where: Places) -> bytes:
    import fsspec

    with fsspec.open(f"{where.http}/{NAME}", "rb") as file:
        return bytes(file.read())


def _datasets(where: Places) -> bytes:
    import datasets

    datasets.config.STREAMING_READ_RETRY_INTERVAL = 0.01  # It is 5 s, twenty times.
    rows = datasets.load_dataset(
        "json",
        data_files=f"{where.http}/sample.jsonl",
        streaming=True,
        split="train",
        cache_dir=str(where.folder / "cache"),
    )
    return b"".join(bytes.fromhex(row["x"]) for row in rows)


def _of_shards(url: str) -> bytes:
    import webdataset

    shards = webdataset.WebDataset(url, shardshuffle=False, empty_check=False)
    return b"".join(sample["bin"] for sample in shards)


def _webdataset(where: Places) -> bytes:
    return _of_shards(f"{where.http}/sample.tar")


def _pipe(where: Places) -> bytes:
    return _of_shards(f"pipe:curl -s -f {where.http}/sample.tar")


READERS: dict[str, Callable[[Places], bytes]] = {
    "`urllib.request.urlopen`": _urllib,
    "`requests.get`": _requests,
    "`aiohttp.ClientSession`": _aiohttp,
    "`boto3`": _boto3,
    "`s3fs.S3FileSystem`": _s3fs,
    "`fsspec.open` of http": _fsspec,
    "`datasets.load_dataset`, streaming over http": _datasets,
    "`webdataset.WebDataset` over http": _webdataset,
    "`webdataset.WebDataset` of `pipe:curl`": _pipe,
}
"""By the name that the page shows."""
