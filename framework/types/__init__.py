"""The ground floor: frozen data everybody agrees on. No I/O, no asyncio."""
