"""Where an outgoing request may connect to: the guard against requests into private networks."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from workers.errors import LanewiseError

_PORTS = {"https": 443, "http": 80}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(LanewiseError):
    """The URL leads somewhere that must not be called."""


@dataclass(frozen=True, slots=True)
class Target:
    """One checked address of a URL; connect to exactly this one, with `host` as Host and SNI."""

    scheme: str
    host: str
    port: int
    address: str
    path: str


async def resolve_target(url: str, *, allow_private: bool) -> Target:
    """Resolve the host once and check every address it has.

    http and https, ports 80 and 443, no user name; all addresses global, also the IPv4 address
    inside an IPv6 one. `allow_private` lifts the rules about ports and addresses.

    Raises: AddressRefused naming the rule; OSError when the name does not resolve.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise AddressRefused(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise AddressRefused(f"{url!r} is neither http nor https")
    if parts.username is not None or parts.password is not None:
        raise AddressRefused(f"the URL for {parts.hostname} holds a user name; leave it out")
    if not allow_private and port not in _PORTS.values():
        raise AddressRefused(f"port {port} is not allowed, use 80 or 443")
    addresses = await _resolve(parts.hostname, port)
    if not allow_private:
        for address in addresses:
            if not is_public(address):
                raise AddressRefused(f"{parts.hostname} leads to {address}, not a public address")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname, port, str(addresses[0]), path)


def is_public(address: Address) -> bool:
    """Whether an address, and the IPv4 address it may carry, is global and no multicast."""
    inner = _carried(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not address.is_multicast


def _carried(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


async def _resolve(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
