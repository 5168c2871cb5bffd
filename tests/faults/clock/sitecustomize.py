"""Steps the wall clock of one process: imported by its interpreter before anything else, controlled through a file.

The file holds one float, the seconds that ``time.time()`` is ahead; the driver writes it while the process runs.
"""

import mmap
import os
import struct
import time
from pathlib import Path

_file = os.environ.get("FAULT_CLOCK")
if _file:
    with Path(_file).open("rb") as stream:
        _page = mmap.mmap(stream.fileno(), struct.calcsize("d"), prot=mmap.PROT_READ)
    _true_time = time.time

    def _stepped_time() -> float:
        offset: float = struct.unpack_from("d", _page)[0]
        return _true_time() + offset

    time.time = _stepped_time
