"""API keys of a server."""

from __future__ import annotations

KEY, OTHER = "0123456789abcdef0123", "fedcba9876543210fedc"
