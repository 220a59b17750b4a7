"""Decides which IP addresses tools may connect to: public ones, and private ones only if the operator lists them."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_Address = IPv4Address | IPv6Address

ALWAYS_REFUSED = tuple(
    ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: the metadata service of most clouds, with credentials
        "168.63.129.16/32",  # of Azure
        "100.100.100.200/32",  # of Alibaba Cloud
        "192.0.0.192/32",  # of Oracle Cloud
        "fd00:ec2::/32",  # of AWS
        "fd20:ce::/32",  # of Google Cloud
        "fe80::/10",  # link-local
    )
)
"""Metadata services and link-local addresses: refused even inside a network that the operator lists."""
_TUNNELS = tuple(ip_network(text) for text in ("2001::/32", "2002::/16", "192.88.99.0/24"))
"""Teredo and 6to4 tunnels: they hide the IPv4 address they lead to, and no public service needs them."""
_PUBLIC_V6 = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_allowed_address(text: str, private_networks: Iterable[str] = ()) -> bool:
    """Return whether tools may connect to an address: it is public or in a listed network, and no metadata service."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    target = _embedded_ipv4(address)
    if any(address in network or target in network for network in ALWAYS_REFUSED) or getattr(address, "scope_id", None):
        return False
    allowed_networks = [ip_network(network) for network in private_networks]
    return any(target in network for network in allowed_networks) or _is_public(target)


def _embedded_ipv4(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address represents, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped:
        return address.ipv4_mapped
    number = int(address)
    if address in _NAT64 or number >> 32 & 0xFFFFFFFF in _ISATAP:
        return IPv4Address(number & 0xFFFFFFFF)
    return address


def _is_public(address: _Address) -> bool:
    if any(address in network for network in _TUNNELS):
        return False
    if isinstance(address, IPv6Address) and address not in _PUBLIC_V6:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
