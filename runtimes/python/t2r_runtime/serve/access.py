"""Who may send requests: the names of the server in Host and Origin, and its key.

A browser sends requests for any page. A page whose name was made to stand for this server's address (DNS rebinding)
could read the answers; its requests have that name in Host. Those of other pages have their name in Origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from t2r_runtime.errors import printable
from t2r_runtime.serve.errors import ApiError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
ANY = "*"
AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+?)\.?)(?::[0-9]*)?", re.IGNORECASE)  # address or name, and port


@dataclass(frozen=True)
class Access:
    """Checks the headers of a request.

    Args:
        own: names that the server is called by, beside those of the loopback address.
        allowed: names that may be in Host and Origin, or "*" for all.
        addresses: accept any IP address in Host, since no name stands for it; for a server of other machines.
        key: the API key; None if there is none.
    """

    own: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    addresses: bool = False
    key: str | None = None

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise ApiError for headers, with names in lower case, that are not accepted."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if ANY not in self.allowed:
            name = host_name(host)
            if name not in LOOPBACK | self.own | self.allowed and not (self.addresses and _is_address(name)):
                raise _forbidden("a request to a name of this server", "Host", host, name)
            if origin is not None and origin.partition("://")[2].lower() != host.lower():
                name = host_name(origin.partition("://")[2])
                if name not in self.allowed:
                    raise _forbidden("no request of another page", "Origin", origin, name)
        if self.key is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode(), self.key.encode())
            if scheme.lower() != "bearer" or not same:
                message = "expected the server's API key; received another, or none; send Authorization: Bearer KEY"
                raise ApiError(401, message, code="invalid_api_key")


def host_name(authority: str) -> str:
    """The name or address of `NAME[:PORT]` or `[ADDRESS][:PORT]`, in lower case; "" for anything else."""
    found = AUTHORITY.fullmatch(authority)
    return (found[1] or found[2]).lower() if found else ""


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _forbidden(expected: str, header: str, value: str, name: str) -> ApiError:
    received = f"{header}: {printable(value, 100)}" if value else f"no {header}"
    do = f"start the server with --allow-host {printable(name, 100)} to allow it" if name else "send another"
    return ApiError(403, f"expected {expected}; received {received}; {do}", code="forbidden_host")
