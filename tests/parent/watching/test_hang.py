from __future__ import annotations

from supervisor.parent.watching.hang import main_thread_frames

DUMP = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/threading.py", line 320 in wait
  File "/usr/lib/queue.py", line 171 in get

Current thread 0x00007f2 (most recent call first):
  File "/home/me/train.py", line 12 in load
  File "/home/me/train.py", line 40 in <module>
"""


def test_the_main_thread_is_the_last_block_innermost_frame_first() -> None:
    assert main_thread_frames(DUMP) == (
        "load (/home/me/train.py:12)",
        "<module> (/home/me/train.py:40)",
    )


def test_of_several_dumps_the_last_one_counts() -> None:
    assert main_thread_frames(DUMP + DUMP.replace("in load", "in parse"))[0].startswith("parse")


def test_only_the_innermost_frames_are_shown() -> None:
    deep = DUMP + '  File "/home/me/train.py", line 50 in outer\n' * 9

    assert len(main_thread_frames(deep)) == 5
    assert main_thread_frames(deep)[0] == "load (/home/me/train.py:12)"


def test_nothing_dumped_is_nothing_shown() -> None:
    assert main_thread_frames("") == ()
    assert main_thread_frames("Segmentation fault\x00\n") == ()


def test_the_frames_that_start_the_script_are_left_out() -> None:
    dump = (
        DUMP + '  File "/ours/program.py", line 9 in run\n  File "<frozen runpy>", line 8 in _run\n'
    )

    assert main_thread_frames(dump, ours="/ours/") == main_thread_frames(DUMP)
