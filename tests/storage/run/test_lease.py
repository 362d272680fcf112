"""Who may supervise a run: one on this machine by a lock, one among all hosts by a lease."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from supervisor.errors import RunDirectoryError
from supervisor.storage.run.lease import (
    STALE_S,
    living_holder,
    read_holder,
    take_lease,
    text_of,
    this_process,
)
from supervisor.storage.run.rundir import RunDirectory

TAKE = (
    "import sys; from supervisor.storage.run.lease import take_lease; "
    "from supervisor.storage.run.rundir import RunDirectory; "
    "lease = take_lease(RunDirectory(sys.argv[1])); print('mine', flush=True); sys.stdin.read()"
)
ELSEWHERE = replace(this_process(), host="node7", boot_id="another boot", pid=1, token="theirs")


@pytest.fixture
def rundir(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def write_lease(rundir: RunDirectory, *, age_s: float, **changes: object) -> None:
    rundir.lease.write_text(json.dumps(asdict(ELSEWHERE) | changes))
    made_s = rundir.lease.stat().st_mtime
    os.utime(rundir.lease, (made_s - age_s, made_s - age_s))


def test_a_second_supervisor_on_this_machine_is_refused_while_the_first_lives(
    rundir: RunDirectory,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TAKE, str(rundir.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "mine\n"

        with pytest.raises(RunDirectoryError, match=f"process {first.pid} on host .* end it first"):
            take_lease(rundir)
        with pytest.raises(RunDirectoryError):
            take_lease(rundir, force=True)
        seen = living_holder(rundir)
        first.kill()
        first.wait()

        assert seen is not None
        assert seen.pid == first.pid
        assert living_holder(rundir) is None
        take_lease(rundir).release()


def test_a_fresh_lease_of_another_host_is_refused_with_its_age_and_what_to_do(
    rundir: RunDirectory,
) -> None:
    write_lease(rundir, age_s=STALE_S - 30)

    with pytest.raises(RunDirectoryError) as refused:
        take_lease(rundir)

    assert f"on host node7 is supervising this run, its lease was renewed {STALE_S - 30:.0f} s" in (
        str(refused.value)
    )
    assert "--force" in str(refused.value)
    assert read_holder(rundir.lease) == ELSEWHERE
    assert living_holder(rundir) == ELSEWHERE


def test_a_lease_of_another_host_may_be_taken_when_it_is_stale_or_by_force(
    rundir: RunDirectory,
) -> None:
    write_lease(rundir, age_s=STALE_S + 5)
    assert living_holder(rundir) is None
    take_lease(rundir).release()
    write_lease(rundir, age_s=0)
    take_lease(rundir, force=True).release()

    assert not rundir.lease.exists()


def test_a_clock_that_is_wrong_by_an_hour_changes_nothing(
    rundir: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lease(rundir, age_s=0)
    monkeypatch.setattr("time.time", lambda: rundir.lease.stat().st_mtime + 3600.0)

    with pytest.raises(RunDirectoryError, match="renewed 0 s ago"):
        take_lease(rundir)


def test_the_same_host_name_after_another_boot_is_another_host(rundir: RunDirectory) -> None:
    write_lease(rundir, age_s=1, host=this_process().host, pid=os.getpid())

    with pytest.raises(RunDirectoryError, match="its lease was renewed"):
        take_lease(rundir)


def test_a_container_of_this_machine_that_is_gone_needs_no_waiting(rundir: RunDirectory) -> None:
    write_lease(
        rundir, age_s=0, boot_id=this_process().boot_id, host="a container", pid_namespace="pid:[1]"
    )

    take_lease(rundir).release()  # nobody has the lock, and this kernel would know


def test_who_was_taken_over_notices_it_and_leaves_the_lease_alone(rundir: RunDirectory) -> None:
    lease = take_lease(rundir)
    lease.renew()
    assert lease.taken_by is None

    write_lease(rundir, age_s=0)
    lease.renew()
    lease.release()

    assert lease.taken_by == ELSEWHERE
    assert read_holder(rundir.lease) == ELSEWHERE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": 5}', '{"token": "x", "pid": "7"}'])
def test_a_lease_that_is_no_lease_is_nobodys_or_only_a_name(
    rundir: RunDirectory, text: str
) -> None:
    rundir.lease.write_text(text)

    lease = take_lease(rundir, force=True)
    lease.renew()

    assert lease.taken_by is None
    lease.release()


def test_a_lease_with_a_flipped_bit_is_nobodys(rundir: RunDirectory) -> None:
    holder = this_process()
    text = text_of(holder).encode()

    for place in range(len(text) - 1):
        rundir.lease.write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        assert read_holder(rundir.lease) in (None, holder), text[place:]
