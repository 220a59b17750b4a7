"""The import path of `MemoryStore` in earlier versions; it is now in `framework.store.memory`."""

from framework.store.memory import MemoryStore as MemoryStore
