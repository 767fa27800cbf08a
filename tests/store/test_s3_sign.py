"""Our signature is botocore's, for whatever is asked."""

from datetime import UTC, datetime
from unittest import mock

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from dstream.store.s3_sign import signed_headers

TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
NAMES = st.sampled_from(
    ["Range", "If-Match", "x-amz-request-payer", "User-Agent", "x-amz-server-side-encryption-b"]
)


@given(
    path=st.sampled_from(["/bucket/key", "/a%20b/%C3%A9~-_.x", "/"]),
    query=st.sampled_from(["", "versionId=abc", "a=&versionId=a%2Fb"]),
    headers=st.dictionaries(NAMES, st.lists(TEXT, min_size=1, max_size=3).map("  ".join)),
    token=st.none() | TEXT,
    secret=TEXT,
    region=st.sampled_from(["us-east-1", "eu-west-3"]),
    now_s=st.integers(1_500_000_000, 2_000_000_000),
)
def test_as_botocore_signs(
    path: str,
    query: str,
    headers: dict[str, str],
    token: str | None,
    secret: str,
    region: str,
    now_s: int,
) -> None:
    host = "store.example:9000"
    url = f"https://{host}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method="GET", url=url, headers=dict(headers))
    moment = datetime.fromtimestamp(now_s, UTC)
    with mock.patch("botocore.auth.get_current_datetime", return_value=moment):
        given_credentials = ReadOnlyCredentials("key-id", secret, token)
        S3SigV4Auth(given_credentials, "s3", region).add_auth(request)
    ours = signed_headers(host, path, query, headers, ("key-id", secret, token), region, now_s)
    assert ours["Authorization"] == request.headers["Authorization"]
    assert {k.lower(): v for k, v in ours.items()} == {
        k.lower(): v for k, v in request.headers.items()
    }
