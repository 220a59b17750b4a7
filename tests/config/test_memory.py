"""The memory of a server does not grow with the number of edits."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cases import FACTOR
from tests.support.projects import agent, write

EDITS = 100 * min(FACTOR, 20)
EDITING = """
import asyncio, ctypes, json, random, sys
from pathlib import Path
from framework import Runtime
from framework.cli.serve import tune_memory

root, edits, random = Path(sys.argv[1]), int(sys.argv[2]), random.Random(1)

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo

async def main():
    async with Runtime.open(root, watch=False) as runtime:
        before = libc.mallinfo2().fordblks
        for number in range(edits):
            file = root / f"agents.d/a{random.randrange(20)}.yaml"
            text = file.read_text().partition("instructions:")[0]
            file.write_text(text + "instructions: " + "answer " * random.randrange(1, 400) + f"{number}\\n")
            assert (await runtime.reload()).number == number + 2
        print(json.dumps([before, libc.mallinfo2().fordblks]))

tune_memory()
asyncio.run(main())
"""


THREADS = """
import threading
from pathlib import Path
from framework.cli.serve import tune_memory

def addresses():
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

tune_memory()
threading.stack_size(1024 * 1024)
before, started, end = addresses(), threading.Barrier(13), threading.Event()

def allocate():
    kept = [bytearray(1000) for _ in range(100)]
    started.wait()
    end.wait()

threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads:
    thread.start()
started.wait()
print(addresses() - before)
end.set()
"""


def gaps(root: Path, **environment: str) -> int:
    """Return the growth of the gaps in a process's heap over the edits, in bytes."""
    write(root, {f"agents.d/a{number}.yaml": agent(f"a{number}", model="offline") for number in range(20)})
    command = [sys.executable, "-c", EDITING, str(root), str(EDITS)]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, **environment})
    before, after = json.loads(done.stdout)
    return int(after - before)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc reserves addresses for each thread")
def test_threads_of_a_server_do_not_use_up_its_addresses() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=True, env=environment)
    assert int(done.stdout) < 200 * 1024 * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's heap that has the gaps")
@pytest.mark.timeout(300)
def test_edits_leave_no_gaps_in_the_heap_of_a_server(tmp_path: Path) -> None:
    untouched = gaps(
        tmp_path / "untouched", MALLOC_MMAP_THRESHOLD_="33554432"
    )  # the level that glibc reaches without edits
    assert gaps(tmp_path / "settled") < untouched / 2
