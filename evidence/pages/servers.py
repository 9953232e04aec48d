"""Readers of what a server has: each returns the bytes of the object at a URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.readers.libraries import tar
from support.readers.register import CONTENT, READERS, raw, reads, split
from support.servers import http_server

BUCKET = "bucket"
_KEYS = {"key": "testing", "secret": "testing"}


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[dict[str, str]]:
    """Serve a file for each reader from *folder*: the URL of the folder, and of the bucket."""
    for reader in READERS.values():
        if reader.server:
            reader.write(f"{folder}/{reader.file}")
    with http_server(folder) as http, s3_server() as s3:
        yield {"http": http, "s3": f"{s3}/{BUCKET}"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The URL of a server whose bucket has the object ``x.bin``."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = s3_client(url)
        client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="x.bin", Body=CONTENT)
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


@reads("`urllib.request.urlopen`", server="http")
def urllib_urlopen(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:  # noqa: S310  # our own
        return answer.read()


@reads("`requests.get`", "requests", server="http")
def requests_get(url: str) -> bytes:
    import requests

    return requests.get(url).content  # noqa: S113  # that is the question


@reads("`aiohttp.ClientSession`", "aiohttp", server="http")
def aiohttp_session(url: str) -> bytes:
    import aiohttp

    async def ask() -> bytes:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.read()

    return asyncio.run(ask())


@reads("`boto3`", "boto3", server="s3")
def boto3_object(url: str) -> bytes:
    server, bucket, key = url.rsplit("/", 2)
    return s3_client(server).get_object(Bucket=bucket, Key=key)["Body"].read()


@reads("`s3fs.S3FileSystem`", "s3fs", server="s3")
def s3fs_file(url: str) -> bytes:
    import s3fs

    server, bucket, key = url.rsplit("/", 2)
    config = {"retries": {"max_attempts": 0}}
    files = s3fs.S3FileSystem(endpoint_url=server, config_kwargs=config, **_KEYS)
    files.retries = 1
    return files.cat_file(f"{bucket}/{key}")


@reads("`fsspec.open` of http", "fsspec", server="http")
def fsspec_http(url: str) -> bytes:
    import fsspec

    with fsspec.open(url, "rb") as file:
        return file.read()


def _rows(path: str, content: bytes = CONTENT) -> None:
    raw(path, b"".join(b"%s\n" % json.dumps({"x": each.hex()}).encode() for each in split(content)))


@reads("`datasets.load_dataset`, streaming over http", "datasets", "x.jsonl", _rows, server="http")
def datasets_stream(url: str) -> bytes:
    import datasets

    datasets.config.STREAMING_READ_RETRY_INTERVAL = 0.01  # It is 5 s, twenty times.
    options = {"data_files": url, "streaming": True, "split": "train"}
    with tempfile.TemporaryDirectory() as cache:
        rows = datasets.load_dataset("json", cache_dir=cache, **options)
        return b"".join(bytes.fromhex(row["x"]) for row in rows)


def _of_shards(url: str) -> bytes:
    import webdataset

    shards = webdataset.WebDataset(url, shardshuffle=False, empty_check=False)
    return b"".join(sample["bin"] for sample in shards)


@reads("`webdataset.WebDataset` over http", "webdataset", "x.tar", tar, server="http")
def webdataset_http(url: str) -> bytes:
    return _of_shards(url)


@reads("`webdataset.WebDataset` of `pipe:curl`", "webdataset", "x.tar", tar, server="http")
def webdataset_pipe(url: str) -> bytes:
    return _of_shards(f"pipe:curl -s -f {url}")


SERVED = {key: reader for key, reader in READERS.items() if reader.server}
