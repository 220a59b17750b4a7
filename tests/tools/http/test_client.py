"""HTTP for tools reaches only allowed addresses, hosts and methods, within size limits. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.tools.http import (
    ALWAYS_REFUSED,
    HttpClient,
    HttpFailed,
    HttpRefused,
    HttpReply,
    Resolver,
    UrlRefused,
    WebUrl,
    is_allowed_address,
    parse_canonical_url,
    parse_http_url,
)
from framework.types.errors import ToolError
from framework.types.http import HttpLimits
from tests.support.cases import cases, each
from tests.support.site import Site, answer, make_certificate, redirect, served_with, site

ALL = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
EVERYWHERE = ("0.0.0.0/0", "::/0")


def limits_for(served: Site, **more: object) -> HttpLimits:
    return HttpLimits.model_validate({"domains": (served.host,), "methods": ALL, "timeout": 30, **more})


def names(**hosts: str) -> Resolver:
    """A resolver with these names and addresses."""

    async def answers(host: str, _: int) -> Sequence[str]:
        if host not in hosts:
            raise OSError("no such host")
        return hosts[host].split()

    return answers


def fetch(limits: HttpLimits, url: str, method: str = "GET", *, resolver: Resolver | None = None) -> HttpReply:
    client = HttpClient(limits, resolver=resolver) if resolver else HttpClient(limits)
    return asyncio.run(client.request(method, url))


# --- allowed requests


def test_without_limits_every_request_is_rejected_with_the_line_to_write() -> None:
    with pytest.raises(HttpRefused) as refused:
        fetch(HttpLimits(), "https://api.example.com/orders")
    assert 'tools: {http: {domains: ["api.example.com"]}}' in refused.value.message
    assert "allowed: none" in refused.value.message


def test_an_allowed_address_is_read() -> None:
    async def main() -> None:
        async with site({"/a": answer("hällo", "content-type: text/plain; charset=utf-8", "x-two: 2")}) as served:
            reply = await HttpClient(limits_for(served)).request("GET", f"{served.url}/a?b=c#d")
            assert (reply.status, reply.text, reply.truncated) == (200, "hällo", False)
            assert (reply.content_type, reply.headers["x-two"]) == ("text/plain", "2")
            assert [request.target for request in served.requests] == ["/a?b=c"]
            assert served.requests[0].headers["host"] == served.host

    asyncio.run(main())


def test_methods_that_are_not_listed_are_rejected_before_anything_is_sent() -> None:
    async def main() -> None:
        async with site({}) as served:
            client = HttpClient(limits_for(served, methods=("GET",)))
            with pytest.raises(HttpRefused, match=r"methods: \[GET, POST\]"):
                await client.request("POST", served.url, body=b"secret")
            assert served.requests == []

    asyncio.run(main())


@each(
    ("domain", "url", "allowed"),
    [
        ("example.com", "https://example.com/", True),
        ("example.com", "http://example.com/", True),
        ("example.com", "https://api.example.com/", False),
        ("example.com", "https://badexample.com/", False),
        ("example.com", "https://example.com.evil.net/", False),
        ("*.example.com", "https://api.example.com/", True),
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://badexample.com/", False),
        ("example.com", "https://example.com:8443/", False),
        ("example.com:8443", "https://example.com:8443/", True),
        ("example.com:8443", "https://example.com/", False),
        ("example.com", "http://example.com:22/", False),
        ("*", "https://anything.example/", True),
        ("*", "https://anything.example:6379/", False),
        ("[2606:4700::0:1111]:8080", "http://[2606:4700::1111]:8080/", True),
    ],
)
def test_a_domain_matches_only_its_hosts(domain: str, url: str, allowed: bool) -> None:
    async def nowhere(host: str, port: int) -> Sequence[str]:
        raise OSError

    limits = HttpLimits(domains=(domain,), timeout=0.2)
    with pytest.raises(ToolError) as error:
        fetch(limits, url, resolver=nowhere)
    assert isinstance(error.value, HttpFailed) is allowed


@pytest.mark.parametrize("domain", ["http://a.com", "a.com/x", "a..com", "A.com", "a.*.com", "**", "", "a b", "a.com."])
def test_a_domain_that_can_never_match_is_an_error_in_the_settings(domain: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        HttpLimits(domains=(domain,))


def test_an_invalid_network_is_an_error_in_the_settings() -> None:
    with pytest.raises(ValueError, match="does not appear to be"):
        HttpLimits(private_networks=("intranet",))


# --- case 19 and 20: addresses

LOOPBACK = (
    "http://127.0.0.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://127.0.0.1./",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://①②⑦.⓪.⓪.①/",
    "http://127。0。0。1/",
    "http://127%2e0%2e0%2e1/",
    "http://localhost/",
    "http://localhost./",
    "http://LOCALHOST/",
    "http://0/",
    "http://0.0.0.0/",
    "http://[::]/",
)


@pytest.mark.hostile(19)
@pytest.mark.parametrize("url", LOOPBACK)
def test_asi02_every_spelling_of_loopback_is_rejected(url: str) -> None:
    async def main() -> None:
        async with site({}, host="127.0.0.1") as served:
            place = url.rstrip("/") + f":{served.port}/"
            limits = HttpLimits(domains=("*", "localhost", f"localhost:{served.port}"))
            for where in (url, place):
                with pytest.raises((HttpRefused, UrlRefused)):
                    await HttpClient(limits).request("GET", where)
            assert served.requests == []

    asyncio.run(main())


@pytest.mark.hostile(20)
@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2001:db8:1:1:0:5efe:a9fe:a9fe",
        "fe80::1",
        "fe80::1%eth0",
    ],
)
def test_asi03_metadata_addresses_are_rejected_for_any_listed_networks(address: str) -> None:
    assert not is_allowed_address(address, EVERYWHERE)
    limits = HttpLimits(domains=("metadata.example",), private_networks=EVERYWHERE)
    with pytest.raises(HttpRefused, match="but no metadata service"):
        fetch(limits, "http://metadata.example/", resolver=names(**{"metadata.example": address}))


def test_asi03_a_metadata_address_is_rejected_even_if_it_is_listed_itself() -> None:
    with pytest.raises(HttpRefused, match="but no metadata service"):
        fetch(HttpLimits(domains=("169.254.169.254",)), "http://169.254.169.254/latest/meta-data/")


@each(
    "address",
    [
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "192.88.99.1", "fd00::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1",
        "2002:7f00:1::", "2002:808:808::", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::808:808", "::808:808",
        "2606:4700::5efe:a00:1", "100::1", "not an address", "",
    ],
)  # fmt: skip
def test_asi02_private_reserved_and_tunnelled_addresses_are_rejected(address: str) -> None:
    assert not is_allowed_address(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "2606:4700::5efe:808:808"]
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed_address(address)


@given(st.ip_addresses())
@cases(150)
def test_asi02_only_public_addresses_are_connected_to(address: IPv4Address | IPv6Address) -> None:
    if is_allowed_address(str(address)):
        real = getattr(address, "ipv4_mapped", None) or address
        assert real.is_global or real in ip_network("64:ff9b::/96")
        assert not real.is_private
        assert not any(real in network for network in ALWAYS_REFUSED)


@given(st.ip_addresses(v=4))
@cases(200)
def test_asi02_an_embedded_address_decides_in_every_form(address: IPv4Address) -> None:
    number = int(address)
    public = is_allowed_address(str(address))
    for embedded in (0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x26064700 << 96 | 0x5EFE << 32 | number):
        assert is_allowed_address(str(IPv6Address(embedded))) is public
    assert not is_allowed_address(str(IPv6Address(0x2002 << 112 | number << 80)))


@given(st.ip_addresses(), st.sampled_from(["0.0.0.0/0", "::/0", "10.0.0.0/8", "fd00::/8"]))
@cases(200)
def test_a_listed_network_allows_its_addresses_and_no_others(address: IPv4Address | IPv6Address, network: str) -> None:
    listed = is_allowed_address(str(address), [network])
    if ip_address(address) in ip_network(network) and not getattr(address, "ipv4_mapped", None):
        assert (
            listed is not any(address in never for never in ALWAYS_REFUSED)
            or "ff9b" in str(address)
            or "5efe" in str(address)
        )
    elif not isinstance(address, IPv6Address):
        assert listed is is_allowed_address(str(address))


# --- case 21: names


@pytest.mark.hostile(21)
def test_asi02_a_name_with_one_private_address_among_public_ones_is_rejected() -> None:
    limits = HttpLimits(domains=("mixed.example",))
    with pytest.raises(HttpRefused, match="not public"):
        fetch(limits, "http://mixed.example/", resolver=names(**{"mixed.example": "8.8.8.8 127.0.0.1"}))


@pytest.mark.hostile(21)
def test_asi02_a_name_that_resolves_differently_the_second_time_is_checked_again() -> None:
    async def main() -> None:
        async with site({"/": redirect("/again"), "/again": answer("reached")}) as served:
            answers = [["127.0.0.1"], ["169.254.169.254"]]
            lookups = []

            async def rebinding(host: str, port: int) -> Sequence[str]:
                lookups.append((host, port))
                return answers[len(lookups) - 1]

            host = f"rebind.example:{served.port}"
            limits = limits_for(served, domains=(host,), private_networks=("127.0.0.0/8",))
            with pytest.raises(HttpRefused, match=r"rebind\.example resolves to an address"):
                await HttpClient(limits, resolver=rebinding).request("GET", f"http://{host}/")
            assert lookups == [("rebind.example", served.port)] * 2, "once a connection"
            assert [request.target for request in served.requests] == ["/"]

    asyncio.run(main())


def test_asi02_the_connection_goes_to_the_address_that_was_checked() -> None:
    async def main() -> None:
        async with site({"/": answer("right")}, host="127.0.0.2") as served:
            lookups = []

            async def once(host: str, port: int) -> Sequence[str]:
                lookups.append(host)
                return ["127.0.0.2"] if len(lookups) == 1 else ["127.0.0.1"]

            host = f"service.internal:{served.port}"
            limits = limits_for(served, domains=(host,), private_networks=("127.0.0.2/32",))
            reply = await HttpClient(limits, resolver=once).request("GET", f"http://{host}/")
            assert (reply.text, lookups) == ("right", ["service.internal"])
            assert served.requests[0].headers["host"] == host

    asyncio.run(main())


def test_a_host_is_tried_at_its_other_address_when_the_first_does_not_answer() -> None:
    async def main() -> None:
        async with site({"/": answer("second")}, host="127.0.0.1") as served:
            host = f"two.internal:{served.port}"
            limits = limits_for(served, domains=(host,), private_networks=("127.0.0.0/8",))
            resolver = names(**{"two.internal": "127.0.0.3 127.0.0.1"})
            assert (await HttpClient(limits, resolver=resolver).request("GET", f"http://{host}/")).text == "second"

    asyncio.run(main())


def test_a_host_that_does_not_exist_or_does_not_listen_is_named() -> None:
    with pytest.raises(HttpFailed, match=r"no host named gone\.example"):
        fetch(HttpLimits(domains=("gone.example",)), "http://gone.example/", resolver=names())
    with pytest.raises(HttpFailed, match=r"cannot connect to 127\.0\.0\.1:1"):
        fetch(HttpLimits(domains=("127.0.0.1:1",)), "http://127.0.0.1:1/")


def test_asi02_a_proxy_from_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with site({}) as proxy, site({"/": answer("direct")}) as served:
            for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, proxy.url)
            assert (await HttpClient(limits_for(served)).request("GET", served.url)).text == "direct"
            assert proxy.requests == []

    asyncio.run(main())


# --- case 22 and 26: redirects


@pytest.mark.hostile(22)
@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/",
        "http://127.0.0.1:1/",
        "http://localhost/",
        "//10.0.0.1/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "ftp://127.0.0.1/",
        "http://a@127.0.0.1/",
        "http://127.1/",
        "http:\\\\127.0.0.1\\",
        "http://127.0.0.1\t/",
        "http://①②⑦.⓪.⓪.①/",
        "javascript:alert(1)",
        "http://[fe80::1%25eth0]/",
    ],
)
def test_asi02_a_redirect_is_checked_like_the_first_address(location: str) -> None:
    async def main() -> None:
        async with site({"/": redirect(location)}) as served:
            with pytest.raises((HttpRefused, HttpFailed, UrlRefused)):
                await HttpClient(limits_for(served)).request("GET", served.url)
            assert len(served.requests) == 1

    asyncio.run(main())


def test_asi02_a_redirect_to_another_port_of_the_same_host_is_rejected() -> None:
    async def main() -> None:
        async with site({"/": answer("secret")}) as other, site({"/": redirect(other.url)}) as served:
            with pytest.raises(HttpRefused, match="tools may not reach"):
                await HttpClient(limits_for(served)).request("GET", served.url)
            assert other.requests == []

    asyncio.run(main())


@pytest.mark.hostile(22)
def test_llm10_a_redirect_loop_ends() -> None:
    async def main() -> None:
        async with site({"/": redirect("/")}) as served:
            with pytest.raises(HttpFailed, match="more than 4 redirects"):
                await HttpClient(limits_for(served)).request("GET", served.url)
            assert len(served.requests) == 5

    asyncio.run(main())


def test_a_redirect_is_followed_and_not_followed() -> None:
    async def main() -> None:
        async with site({"/": redirect("a/../b?c"), "/b": answer("here")}) as served:
            client = HttpClient(limits_for(served))
            reply = await client.request("GET", f"{served.url}/")
            assert (reply.url, reply.text) == (f"{served.url}/b?c", "here")
            left = await client.request("GET", f"{served.url}/", follow=False)
            assert (left.status, left.headers["location"]) == (302, "a/../b?c")

    asyncio.run(main())


SECRETS = {"Authorization": "Bearer s3cret", "Cookie": "id=s3cret", "X-Api-Key": "s3cret", "Accept": "text/html"}


@pytest.mark.hostile(26)
def test_asi03_secrets_do_not_follow_a_redirect_to_another_host() -> None:
    async def main() -> None:
        async with site({"/": answer("other")}) as other, site({"/": redirect(other.url)}) as served:
            limits = limits_for(served, domains=(served.host, other.host))
            await HttpClient(limits).request("GET", served.url, headers=SECRETS)
            assert served.requests[0].headers["authorization"] == "Bearer s3cret"
            assert "s3cret" not in str(other.requests[0].headers)
            assert other.requests[0].headers["accept"] == "text/html"

    asyncio.run(main())


def test_a_redirect_on_the_same_host_keeps_the_headers() -> None:
    async def main() -> None:
        async with site({"/": redirect("/b"), "/b": answer()}) as served:
            await HttpClient(limits_for(served)).request("GET", served.url, headers=SECRETS)
            assert served.requests[1].headers["x-api-key"] == "s3cret"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "method", "then", "body"),
    [
        ("301 M", "POST", "GET", b""),
        ("302 F", "POST", "GET", b""),
        ("303 S", "PUT", "GET", b""),
        ("303 S", "HEAD", "HEAD", b""),
        ("302 F", "PUT", "PUT", b"data"),
        ("307 T", "POST", "POST", b"data"),
        ("308 P", "POST", "POST", b"data"),
    ],
)
def test_a_redirect_changes_the_method_as_browsers_do(status: str, method: str, then: str, body: bytes) -> None:
    async def main() -> None:
        async with site({"/": redirect("/b", status), "/b": answer()}) as served:
            data = None if method == "HEAD" else b"data"
            kind = {"content-type": "text/plain"}
            await HttpClient(limits_for(served)).request(method, served.url, headers=kind, body=data)
            last = served.requests[1]
            assert (last.method, last.body, "content-type" in last.headers) == (then, body, bool(body))

    asyncio.run(main())


def test_asi02_a_redirect_cannot_bring_in_a_method_that_is_not_allowed() -> None:
    async def main() -> None:
        async with site({"/": redirect("/b", "303 See Other"), "/b": answer()}) as served:
            with pytest.raises(HttpRefused, match="GET"):
                await HttpClient(limits_for(served, methods=("POST",))).request("POST", served.url, body=b"x")

    asyncio.run(main())


def test_asi03_a_cookie_set_by_one_answer_is_not_sent_with_the_next() -> None:
    async def main() -> None:
        page = redirect("/b").replace(b"location", b"set-cookie: id=1\r\nlocation")
        async with site({"/": page, "/b": answer()}) as served:
            await HttpClient(limits_for(served)).request("GET", served.url)
            assert all("cookie" not in request.headers for request in served.requests)

    asyncio.run(main())


# --- case 23 and 25: spellings


@pytest.mark.hostile(23)
@pytest.mark.parametrize(
    "url",
    [
        "http://good.example@evil.example/", "http://good.example:80@evil.example/", "http://evil.example\\@good.example/",
        "http://good.example\\.evil.example/", "http://good.example%2eevil.example/", "http://good.example%00.evil.example/",
        "http://good.example./", "http://good.example/ a", "http://good.example/\r\nhost: evil", "http://good.example/\x00",
        "http://good.example\r\n/", "http://gööd.example/", "http://good。example/", "HTTP://good.example/",
        "http:/good.example/", "http:///good.example/", "//good.example/", "good.example", "", "http://", "http://:80/",
        "http://good.example:/", "http://good.example:99999/", "http://good.example:0/", "http://good.example:8 0/",
        "http://[fe80::1%25eth0]/", "http://[::1", "http://::1/", "http://[good.example]/", "http://good..example/",
        "http://-good.example/", "http://good_.example:80:90/", "file:///etc/passwd", "data:text/plain,x",
        "http://1.2.3/", "http://1.2.3.4.5/", "http://1.2.3.256/", "http://good.0x1/", "http://a" + "a" * 4000,
    ],
)  # fmt: skip
def test_asi02_a_url_that_could_be_read_as_another_host_is_rejected(url: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        parse_http_url(url)
    assert refused.value.message.isprintable()


def test_asi02_a_user_in_a_url_is_named_as_the_problem() -> None:
    with pytest.raises(UrlRefused, match="has a user before its host"):
        parse_http_url("http://good.example@evil.example/")


def test_asi02_a_fragment_is_not_part_of_the_host() -> None:
    assert parse_http_url("http://good.example#@evil.example/") == WebUrl("http", "good.example", 80, "/")
    assert parse_http_url("http://good.example?@evil.example/").host == "good.example"
    assert parse_http_url("http://good.example/@evil.example/").host == "good.example"


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example/a/../admin", "https://api.example/./admin", "https://api.example/%61dmin",
        "https://api.example/%2e%2e/admin", "https://api.example/a%2fb", "https://api.example/..", "https://api.example/%",
        "https://api.example:443/admin", "https://api.example:0443/admin", "https://api.example?x",
        "http://[::0:1]/", "http://[2606:4700:0:0:0:0:0:1111]/",
    ],
)  # fmt: skip
def test_asi02_a_url_that_rules_match_has_one_spelling(url: str) -> None:
    with pytest.raises(UrlRefused, match="write"):
        parse_canonical_url(url)


DISGUISED = (
    *("/orders/..%2Fadmin", "/orders/..%2fadmin", "/orders/%2E%2E%2Fadmin", "/orders/..%252Fadmin"),
    *("/orders/..;/admin", "/orders/..;x=1/admin", "/orders/..%3Badmin", "/orders/..%5Cadmin", "/orders%5C..%5Cadmin"),
    *("/orders/..%00/admin", "/orders/%00", "//admin", "/orders//admin", "/orders/.%2Fadmin", "/orders/%5Cadmin"),
)
"""Paths that some servers read as `/admin`, or as another path than the rules do."""


@pytest.mark.parametrize("path", DISGUISED)
def test_asi02_a_path_that_servers_read_in_different_ways_is_rejected(path: str) -> None:
    with pytest.raises(UrlRefused):
        parse_canonical_url(f"https://api.example{path}")


@pytest.mark.parametrize("path", ["/a%2Fb", "/a;v=1/b", "/a..b/..c", "/x?next=..%2F//%5C", "/a%20b", "/%C3%BC", "/..."])
def test_escapes_that_every_server_reads_alike_are_accepted(path: str) -> None:
    assert parse_canonical_url(f"https://api.example{path}").target == path


@pytest.mark.parametrize("path", DISGUISED[:-1])
def test_asi02_a_redirect_to_such_a_path_is_rejected(path: str) -> None:
    async def main() -> None:
        async with site({"/": redirect(path if path[1] != "/" else f"/x{path}")}) as served:
            with pytest.raises(HttpRefused):
                await HttpClient(limits_for(served)).request("GET", served.url)
            assert len(served.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "url",
    ["https://api.example", "https://api.example/", "http://a.b:8080/x%2F%20y?q=%C3%BC&r=a+b#part", "http://[::1]/"],
)
def test_plain_urls_are_accepted_unchanged(url: str) -> None:
    assert str(parse_canonical_url(url)).rstrip("/") == url.partition("#")[0].rstrip("/")


URL_PARTS = st.sampled_from(
    [
        "http://",
        "https://",
        "a.example",
        "127.0.0.1",
        "[::1]",
        "@",
        ":",
        ":80",
        "/",
        "\\",
        "?",
        "#",
        "%2e",
        ".",
        "..",
        "é",
    ]
)


@given(st.lists(URL_PARTS | st.text(max_size=3), max_size=7).map("".join))
@cases(500)
def test_asi02_an_accepted_url_is_read_alike_by_every_parser(text: str) -> None:
    try:
        url = parse_http_url(text)
    except UrlRefused:
        return
    split, theirs = urlsplit(text), httpx2.URL(text)
    assert (split.hostname or "").lower() == theirs.host.lower() or "[" in text
    assert ip_address(theirs.host) == ip_address(url.host) if "[" in text else theirs.host == url.host
    assert (split.username, split.scheme, theirs.scheme) == (None, url.scheme, url.scheme)
    assert (split.port or url.port, theirs.port or url.port) == (url.port, url.port)
    assert parse_http_url(str(url)) == url


@pytest.mark.hostile(25)
@pytest.mark.parametrize(
    "headers",
    [
        {"x": "a\r\nhost: evil"}, {"x": "a\nb"}, {"x\r\ny": "a"}, {"x": "a\0"}, {"": "a"}, {"x y": "a"}, {"x:": "a"},
        {"x": "ü"}, {"Host": "evil.example"}, {"content-length": "5"}, {"Transfer-Encoding": "chunked"},
        {"connection": "upgrade"}, {"Upgrade": "h2c"}, {"Proxy-Authorization": "x"}, {"X": "1", "x": "2"},
        {f"x-{number}": "1" for number in range(51)}, {"x": "a" * 4001},
    ],
)  # fmt: skip
def test_asi02_headers_cannot_change_what_the_request_is(headers: dict[str, str]) -> None:
    async def main() -> None:
        async with site({"/": answer()}) as served:
            with pytest.raises(HttpRefused, match="header"):
                await HttpClient(limits_for(served)).request("GET", served.url, headers=headers)
            assert served.requests == []

    asyncio.run(main())


# --- case 24: sizes and times


@pytest.mark.hostile(24)
def test_llm10_a_large_body_is_truncated() -> None:
    async def main() -> None:
        async with site({"/": answer(b"x" * 3_000_000)}) as served:
            reply = await HttpClient(limits_for(served)).request("GET", served.url)
            assert (len(reply.body), reply.truncated) == (1_000_000, True)

    asyncio.run(main())


def test_llm10_a_body_of_exactly_the_limit_is_complete() -> None:
    async def main() -> None:
        async with site({"/": answer(b"x" * 1000)}) as served:
            reply = await HttpClient(limits_for(served, max_bytes=1000)).request("GET", served.url)
            assert (len(reply.body), reply.truncated) == (1000, False)

    asyncio.run(main())


@pytest.mark.hostile(24)
def test_llm10_a_decompression_bomb_is_truncated() -> None:
    async def main() -> None:
        bomb = gzip.compress(bytes(50_000_000))
        assert len(bomb) < 100_000
        async with site({"/": answer(bomb, "content-encoding: gzip")}) as served:
            reply = await HttpClient(limits_for(served)).request("GET", served.url)
            assert (len(reply.body), reply.truncated) == (1_000_000, True)

    asyncio.run(main())


def test_compressed_text_is_decompressed() -> None:
    async def main() -> None:
        async with site({"/": answer(gzip.compress(b"text"), "content-encoding: gzip")}) as served:
            assert (await HttpClient(limits_for(served)).request("GET", served.url)).text == "text"

    asyncio.run(main())


@pytest.mark.hostile(24)
def test_llm10_a_slow_body_is_abandoned_at_the_timeout() -> None:
    async def main() -> None:
        async def drip(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)

        async with site({"/": drip}) as served:
            with pytest.raises(HttpFailed, match=r"did not respond in full within 2s"):
                await HttpClient(limits_for(served, timeout=2)).request("GET", served.url)
            await served.left.wait()

    asyncio.run(main())


@pytest.mark.hostile(24)
def test_llm10_endless_headers_are_abandoned() -> None:
    async def main() -> None:
        async def endless(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                writer.write(b"x-more: " + b"y" * 1000 + b"\r\n")
                await writer.drain()

        async with site({"/": endless}) as served:
            with pytest.raises(HttpFailed, match="no usable response"):
                await HttpClient(limits_for(served)).request("GET", served.url)
            await served.left.wait()

    asyncio.run(main())


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nplain",
    ],
)
def test_an_invalid_response_is_an_error_with_a_reason(page: bytes) -> None:
    async def main() -> None:
        async with site({"/": page}) as served:
            client = HttpClient(limits_for(served))
            with pytest.raises(HttpFailed, match=r"no usable response from 127\.0\.0\.1"):
                await client.request("GET", served.url)
            with pytest.raises(HttpFailed, match="whether it took effect is unknown"):
                await client.request("POST", served.url, body=b"x")

    asyncio.run(main())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of 127.0.0.1, with its key in the same file."""
    return make_certificate(tmp_path)


def test_asi07_a_server_with_an_untrusted_certificate_is_rejected(certificate: Path) -> None:
    async def main() -> None:
        async with site({"/": answer("hello")}, tls=served_with(certificate)) as served:
            with pytest.raises(HttpFailed, match="self-signed certificate"):
                await HttpClient(limits_for(served)).request("GET", f"https://{served.host}/")
            assert served.requests == []

    asyncio.run(main())


def test_asi07_a_certificate_is_checked_against_the_name_not_the_address(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def main() -> None:
        async with site({"/": answer("hello")}, tls=served_with(certificate)) as served:
            right, wrong = f"service.internal:{served.port}", f"other.internal:{served.port}"
            limits = limits_for(served, domains=(right, wrong), private_networks=("127.0.0.0/8",))
            resolver = names(**{"service.internal": "127.0.0.1", "other.internal": "127.0.0.1"})
            client = HttpClient(limits, resolver=resolver)
            assert (await client.request("GET", f"https://{right}/")).text == "hello"
            with pytest.raises(HttpFailed, match="Hostname mismatch"):
                await client.request("GET", f"https://{wrong}/")

    asyncio.run(main())


def test_asi07_a_redirect_from_https_to_http_is_rejected(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    async def main() -> None:
        async with site({"/": answer("seen by all")}) as plain:
            pages = {"/": redirect(f"{plain.url}/"), "/b": redirect("/c"), "/c": answer("safe")}
            async with site(pages, tls=served_with(certificate)) as served:
                client = HttpClient(limits_for(served, domains=(served.host, plain.host)))
                with pytest.raises(HttpRefused, match="from https to http"):
                    await client.request("GET", f"https://{served.host}/")
                assert (await client.request("GET", f"https://{served.host}/b")).text == "safe"
            assert plain.requests == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/plain; charset=gb18030", "中文".encode("gb18030"), "中文"),
        ("text/plain; charset=no-such", b"abc", "abc"),
        ("text/plain", b"\xff", "\ufffd"),
    ],
)
def test_text_is_decoded_with_the_charset_of_the_response(content_type: str, body: bytes, text: str) -> None:
    assert HttpReply("u", 200, {"content-type": content_type}, body, False).text == text
