"""What a process draws from outside is given again in the next one, place by place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.worker.outside_draws.outside_draws import OutsideDraws

BEGIN = """
import copy, datetime, json, os, pickle, random, secrets, sys, threading, time, uuid
from pathlib import Path
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.outside_draws.patches_draws import watch_outside

meta = json.loads(sys.argv[2])
OUTSIDE.install(Path(sys.argv[1]), resumes=meta is not None)
watch_outside()


class Depth:
    active, depth, thread = True, 0, threading.get_ident()


OUTSIDE.session_begins(Depth, meta, False)
before, after = [], []
"""
END = """
reasons = OUTSIDE.arrived(may_leave_out=False) if meta is not None else []
later()
print(json.dumps({"before": list(map(str, before)), "after": list(map(str, after)),
                  "meta": mark, "reasons": reasons}))
"""


def _attempt(folder: Path, script: str, later: str = "", meta: Any = None) -> dict[str, Any]:
    """Runs `script` up to a checkpoint, then `later`."""
    code = f"{BEGIN}{script}\nmark = None if meta else OUTSIDE.mark()\ndef later():\n    pass\n"
    code += "".join(f"    {line}\n" for line in later.splitlines()) + END
    line = [sys.executable, "-c", code, str(folder / "rank_0.outside"), json.dumps(meta)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


def _twice(folder: Path, script: str, later: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    first = _attempt(folder, script, later)
    return first, _attempt(folder, script, later, first["meta"])


@pytest.mark.parametrize(
    "source",
    [
        "os.urandom(8)",
        "os.getrandom(8)",
        "secrets.token_hex(8)",
        "secrets.randbelow(1 << 60)",
        "random.SystemRandom().sample(range(1000), 9)",
        "uuid.uuid4()",
        "uuid.uuid1()",
        "random.Random().random()",
        "(random.seed(), random.random())",
        "time.time()",
        "time.time_ns()",
        "time.monotonic()",
        "time.perf_counter_ns()",
        "time.process_time()",
        "time.clock_gettime(time.CLOCK_MONOTONIC)",
        "time.strftime('%H%M%S') + time.ctime() + time.asctime()",
        "time.mktime(time.localtime()) - time.mktime(time.gmtime())",
        "datetime.datetime.now()",
        "datetime.datetime.now(datetime.timezone.utc).isoformat()",
        "datetime.datetime.today()",
        "datetime.date.today()",
        "__import__('numpy').random.default_rng().permutation(50).tolist()",
        "__import__('numpy').random.RandomState().randint(1 << 30)",
        "(__import__('numpy').random.seed(), __import__('numpy').random.rand())",
    ],
)
def test_what_was_drawn_is_given_again(tmp_path: Path, source: str) -> None:
    script = f"for _ in range(3): before.append({source})"

    first, second = _twice(tmp_path, script)

    assert second["before"] == first["before"]
    assert second["reasons"] == []


def test_the_thread_that_watches_bars_sees_the_clock_that_the_script_has_seen(
    tmp_path: Path,
) -> None:
    """Else it takes a replayed bar for one that has stood still since the recorded run."""
    script = """
there = {"__name__": "tqdm._monitor", "time": time.time, "seen": []}
exec("def look(): seen.append(time())", there)
read = time.time()
looks_on = threading.Thread(target=there["look"])
looks_on.start()
looks_on.join()
before.append(there["seen"][0] == read)
"""
    assert _twice(tmp_path, script)[1]["before"] == ["True"]


def test_entropy_drawn_after_the_checkpoint_is_given_again_and_clocks_go_on(
    tmp_path: Path,
) -> None:
    later = "after.append(os.urandom(8)); after.append(time.monotonic_ns())"

    first, second = _twice(tmp_path, "before.append(time.monotonic_ns())", later)

    assert second["after"][0] == first["after"][0]
    assert int(second["after"][1]) > int(first["before"][0])


def test_a_third_attempt_is_given_the_same_values(tmp_path: Path) -> None:
    script = "before += [os.urandom(4), time.time()]"
    first, _ = _twice(tmp_path, script, "os.urandom(3)")

    third = _attempt(tmp_path, script, "", first["meta"])

    assert (third["before"], third["reasons"]) == (first["before"], [])


def test_a_place_that_draws_otherwise_is_told_with_its_line(tmp_path: Path) -> None:
    first = _attempt(tmp_path, "before.append(os.urandom(4))")

    second = _attempt(tmp_path, "before.append(os.urandom(5))", "", first["meta"])

    assert "draws from os.urandom otherwise than the recorded run" in second["reasons"][0]


def test_a_draw_that_is_left_out_is_told(tmp_path: Path) -> None:
    first = _attempt(tmp_path, "for _ in range(2 if meta is None else 1): os.urandom(4)")

    second = _attempt(
        tmp_path, "for _ in range(2 if meta is None else 1): os.urandom(4)", "", first["meta"]
    )

    assert "otherwise than the recorded run" in second["reasons"][0]


def test_how_long_a_lock_was_waited_for_is_the_processes_own(tmp_path: Path) -> None:
    script = """
there = {"__name__": "filelock._core", "clock": time.perf_counter}
exec(compile("def waits(): clock()", "lock.py", "exec"), there)
for _ in range(3 if meta is None else 1): there["waits"]()
"""
    assert _twice(tmp_path, script)[1]["reasons"] == []


def test_a_record_that_is_gone_or_another_is_told(tmp_path: Path) -> None:
    first = _attempt(tmp_path, "before.append(os.urandom(4))")
    _attempt(tmp_path, "before.append(os.urandom(4))")  # began anew, as another run

    second = _attempt(tmp_path, "before.append(os.urandom(4))", "", first["meta"])

    assert second["reasons"] == ["the record of what the script draws from outside is gone"]


def test_what_a_forked_process_draws_is_told(tmp_path: Path) -> None:
    script = """
child = os.fork()
if not child:
    exec(compile("os.urandom(4)", "train.py", "exec"))
    os._exit(0)
os.waitpid(child, 0)
"""

    first, second = _twice(tmp_path, script)

    assert "draws from os.urandom in another process" in first["meta"]["lost"]
    assert second["reasons"] == [first["meta"]["lost"]]


@pytest.mark.parametrize(
    "reads",
    [
        *("open('/dev/urandom', 'rb').read(4)", "os.open(path, 0)", "Path(path).open('rb')"),
        "__import__('numpy').fromfile(path, 'u1', 4)",
    ],
)
def test_entropy_read_as_a_file_is_told(tmp_path: Path, reads: str) -> None:
    script = f"path = '/dev/urandom'\nexec(compile({reads!r}, 'train.py', 'exec'))"

    first, second = _twice(tmp_path, script)

    assert first["meta"]["lost"].startswith("train.py:1 draws from /dev/urandom, which no resume")
    assert second["reasons"] == [first["meta"]["lost"]]


def test_no_audit_hook_is_called_at_each_hash_of_a_tensor(tmp_path: Path) -> None:
    code = "import sys\nsys.addaudithook = lambda hook: print('a hook:', hook)\n" + BEGIN
    line = [sys.executable, "-c", code, str(tmp_path / "rank_0.outside"), "null"]

    ended = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)

    assert ended.stdout == ""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_number_of_a_process_is_no_value_of_the_script(tmp_path: Path, method: str) -> None:
    script = f"""
import multiprocessing
if meta is not None: os.waitpid(os.posix_spawn("/bin/true", ["true"], {{}}), 0)
child = multiprocessing.get_context("{method}").Process(target=int)
child.start()
before.append(child.pid)
child.join()
after.append(sorted(OUTSIDE.numbers().values()))
"""

    first, second = _twice(tmp_path, script)

    assert int(second["before"][0]) in json.loads(second["after"][0])
    assert first["before"] != second["before"]
    assert second["reasons"] == []


def test_numbers_of_processes_and_descriptors_are_paired(tmp_path: Path) -> None:
    script = """
if meta is not None: os.dup(1)  # so that numbers are others
for _ in range(2):
    before.append(os.open("/dev/null", os.O_RDONLY))
after.append(sorted(OUTSIDE.numbers().items()))
"""

    first, second = _twice(tmp_path, script)

    recorded, live = (list(map(int, one["before"])) for one in (first, second))
    assert second["after"] == [str(sorted(zip(recorded, live, strict=True)))]
    assert second["reasons"] == []


def test_the_process_s_own_number_is_noted_once_at_each_place(tmp_path: Path) -> None:
    script = """
size = Path(sys.argv[1]).stat().st_size
for _ in range(100):
    before.append(os.getpid())
after.append(Path(sys.argv[1]).stat().st_size - size)
after.append(sorted(OUTSIDE.numbers().items()))
"""

    first, second = _twice(tmp_path, script)

    assert int(first["after"][0]) < 200  # the place and its number
    assert second["after"][1] == str([(int(first["before"][0]), int(second["before"][0]))])
    assert second["reasons"] == []


def test_the_patched_functions_stay_what_they_were(tmp_path: Path) -> None:
    script = """
for one in (time.time, time.perf_counter, os.urandom, datetime.datetime.now):
    assert pickle.loads(pickle.dumps(one)) == one and copy.deepcopy(one) == one
class Timer:
    clock = time.time
class Later(datetime.datetime):
    pass
assert Timer().clock() > 1 and type(Later.now()) is Later and Later.now().tzinfo is None
assert type(datetime.datetime.now()) is datetime.datetime and time.time.__name__ == "time"
assert isinstance(random.SystemRandom().random(), float) and len(os.urandom(0)) == 0
for wrong in (-1, "a"):
    try:
        os.urandom(wrong)
    except (TypeError, ValueError):
        continue
    raise AssertionError(wrong)
assert random.Random(4).random() == random.Random(4).random()
assert abs(datetime.datetime.now().timestamp() - time.time()) < 60
"""

    _attempt(tmp_path, script)


def test_a_process_that_is_spawned_tells_what_it_draws(tmp_path: Path) -> None:
    training, spawned = OutsideDraws(), OutsideDraws()
    training.install(tmp_path / "rank_0.outside", resumes=False)
    assert training.mark()["lost"] == ""

    spawned.watches_for(training.path)
    spawned.draw("os.urandom", lambda: b"1")

    assert "draws from os.urandom in another process" in spawned.lost
    assert training.mark()["lost"] == spawned.lost
