"""HTTPS clients share one context of trusted certificates."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx2
import pytest

from framework.types.http import trusted_certificates
from tests.support.site import make_certificate


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that `SSL_CERT_FILE` names, with one certificate."""
    path = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


def test_the_context_is_shared() -> None:
    assert trusted_certificates() is trusted_certificates()


def test_the_context_trusts_what_a_client_of_httpx_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    ours, theirs = trusted_certificates(), httpx2.create_ssl_context()
    assert ours.get_ca_certs(binary_form=True) == theirs.get_ca_certs(binary_form=True)
    assert (ours.verify_mode, ours.check_hostname) == (theirs.verify_mode, theirs.check_hostname)


def test_the_context_trusts_the_file_of_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    its_own = trusted_certificates()
    assert len(its_own.get_ca_certs()) == 1

    monkeypatch.delenv("SSL_CERT_FILE")
    assert trusted_certificates() is not its_own


def test_a_changed_file_is_read_again(file: Path) -> None:
    before = trusted_certificates()
    file.write_text(file.read_text("utf-8") * 2, "utf-8")
    os.utime(file, ns=(1, 1))

    assert trusted_certificates() is not before


def test_a_broken_file_is_an_error(file: Path) -> None:
    file.write_text("no certificate", "utf-8")
    with pytest.raises(ssl.SSLError):
        trusted_certificates()


def test_a_missing_file_trusts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file.pem")
    trust = trusted_certificates()
    assert trust.verify_mode == ssl.CERT_REQUIRED
    assert trust.cert_store_stats()["x509"] == 0
