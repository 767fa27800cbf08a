"""What requests and bytes cost, at stated prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dstream.diagnose.s3_request import Kind

_CHEAP = (Kind.GET, Kind.HEAD)
_FREE = (Kind.DELETE, Kind.DELETE_MANY, Kind.ABORT_UPLOAD)


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars. The defaults are S3 Standard's list prices of us-east-1, read in a region."""

    get_per_1000: float = 0.0004
    """GET, HEAD and the like."""
    put_per_1000: float = 0.005
    """PUT, COPY, POST and LIST."""
    egress_per_gb: float = 0.0
    """Bytes that leave, per 10**9; 0 within a region, 0.09 to the internet."""

    def dollars(self, requests: Mapping[Kind, int], received_bytes: int) -> float:
        """What these requests and bytes cost. Deletes are free.

        >>> round(Prices(egress_per_gb=0.09).dollars({Kind.GET: 1000, Kind.LIST: 1000}, 10**9), 4)
        0.0954
        """
        total = received_bytes / 1e9 * self.egress_per_gb
        for kind, count in requests.items():
            if kind not in _FREE:
                per_1000 = self.get_per_1000 if kind in _CHEAP else self.put_per_1000
                total += count / 1000 * per_1000
        return total
