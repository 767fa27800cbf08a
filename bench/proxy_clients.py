"""Run many S3 clients, unchanged, through the measuring proxy against a real server.

    pip install boto3 s3fs obstore awscli litdata zstd s3torchconnector     # for PYTHON
    python bench/proxy_clients.py --endpoint http://127.0.0.1:9002 --python PYTHON

Each client writes, lists and reads through ``dstream proxy``; what it read is compared with what
was written, and the proxy's counts with what must have passed. Credentials as boto3 finds them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import uuid

SIZE_BYTES = 20_000_000

CLIENTS = {
    "boto3": """
import boto3, io, os
c = boto3.client("s3"); data = os.urandom(SIZE)
c.upload_fileobj(io.BytesIO(data), BUCKET, "boto3/large file.bin")
c.put_object(Bucket=BUCKET, Key="boto3/small", Body=data[:1000])
assert len(c.list_objects_v2(Bucket=BUCKET, Prefix="boto3/")["Contents"]) == 2
assert c.get_object(Bucket=BUCKET, Key="boto3/large file.bin")["Body"].read() == data
""",
    "s3fs": """
import s3fs, os
fs = s3fs.S3FileSystem(); data = os.urandom(SIZE)
fs.pipe_file(f"{BUCKET}/s3fs/large file.bin", data)
assert [f.rsplit("/")[-1] for f in fs.ls(f"{BUCKET}/s3fs")] == ["large file.bin"]
assert fs.cat_file(f"{BUCKET}/s3fs/large file.bin") == data
with fs.open(f"{BUCKET}/s3fs/large file.bin") as f:
    f.seek(1000); assert f.read(1000) == data[1000:2000]
""",
    "obstore": """
import obstore, os
from obstore.store import S3Store
s = S3Store(BUCKET); data = os.urandom(SIZE)
obstore.put(s, "obstore/large file.bin", data)
assert len(list(obstore.list(s, "obstore").collect())) == 1
assert bytes(obstore.get(s, "obstore/large file.bin").bytes()) == data
assert bytes(obstore.get_range(s, "obstore/large file.bin", start=5, end=1000)) == data[5:1000]
""",
    # Its writer fails on Ceph RGW 16.2 without any proxy as well (it wants an ETag header in the
    # answer to CompleteMultipartUpload), so boto3 writes.
    "s3torchconnector": """
import boto3, os
from s3torchconnector import S3ClientConfig, S3MapDataset
data = os.urandom(SIZE)
boto3.client("s3").put_object(Bucket=BUCKET, Key="connector/large.bin", Body=data)
d = S3MapDataset.from_prefix(
    f"s3://{BUCKET}/connector/", region="us-east-1", endpoint=os.environ["AWS_ENDPOINT_URL"],
    s3client_config=S3ClientConfig(force_path_style=True))
assert d[0].read() == data
""",
    # It reads no plain-http endpoint, ours or another: 0.2.76 gives obstore no allow_http.
    "litdata": """
import boto3, os, tempfile
from litdata.streaming import downloader
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
from litdata import StreamingRawDataset
data = os.urandom(SIZE); boto3.client("s3").put_object(Bucket=BUCKET, Key="lit/a.bin", Body=data)
d = StreamingRawDataset(
    f"s3://{BUCKET}/lit/", cache_dir=tempfile.mkdtemp(), recompute_index=True)
assert bytes(d[0]) == data
""",
    "aws-cli": """
import os, subprocess, sys, tempfile
data = os.urandom(SIZE); folder = tempfile.mkdtemp(); aws = os.path.dirname(sys.executable) + "/aws"
open(folder + "/in", "wb").write(data)
url = f"s3://{BUCKET}/cli/large file.bin"
subprocess.run([aws, "s3", "cp", "--quiet", folder + "/in", url], check=True)
subprocess.run([aws, "s3", "ls", url], check=True, stdout=subprocess.DEVNULL)
subprocess.run([aws, "s3", "cp", "--quiet", url, folder + "/out"], check=True)
assert open(folder + "/out", "rb").read() == data
subprocess.run([aws, "s3", "rm", "--quiet", url], check=True)
""",
}


def run(name: str, python: str, endpoint: str, bucket: str) -> str:
    head = f"BUCKET, SIZE = {bucket!r}, {SIZE_BYTES}\n"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dstream_cli", "proxy", "--json", "--upstream", endpoint),
            *("--", python, "-c", head + CLIENTS[name]),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        return f"failed ({done.returncode}): {done.stderr.strip()[-600:]}"
    report = json.loads(done.stdout)["report"]
    if report["received_bytes"] < SIZE_BYTES or report["sent_bytes"] < SIZE_BYTES:
        return f"too few bytes passed: {report['received_bytes']}, {report['sent_bytes']}"
    if set(report["outcomes"]) != {"ok"}:  # the client may have tried again and hidden it
        return f"not all was passed on: {report['outcomes']}"
    kinds = ", ".join(f"{kind['requests']} {kind['kind']}" for kind in report["kinds"])
    return f"ok: {kinds}"


def main() -> int:
    import boto3

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", choices=CLIENTS)
    arguments = parser.parse_args()
    client = boto3.client("s3", endpoint_url=arguments.endpoint)
    bucket = f"proxy-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    failed = 0
    for name in [arguments.only] if arguments.only else CLIENTS:
        told = run(name, arguments.python, arguments.endpoint, bucket)
        failed += not told.startswith("ok")
        print(f"{name:18} {told}", flush=True)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page.get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=entry["Key"])
    client.delete_bucket(Bucket=bucket)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
