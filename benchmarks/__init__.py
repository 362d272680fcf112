"""Measurements.

Each process has a case library of its own: neither do its runs learn from the user's other runs,
nor the user's from these.
"""

import atexit
import os
import shutil
import tempfile

_PREFIX = "supervisor-benchmark-"

if _PREFIX not in os.environ.get("SUPERVISOR_CASES", ""):  # else: started by another benchmark
    _folder = tempfile.mkdtemp(prefix=_PREFIX)
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    os.environ["SUPERVISOR_CASES"] = os.path.join(_folder, "cases.sqlite")
