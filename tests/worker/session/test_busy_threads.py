from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from supervisor.worker.session.busy_threads import wait_for_executors


def test_a_save_under_way_is_waited_for() -> None:
    with ThreadPoolExecutor(1) as pool:
        saved = [pool.submit(time.sleep, 0.05) for _ in range(3)]

        assert wait_for_executors() == []
        assert all(one.done() for one in saved)


def test_threads_that_wait_for_the_training_keep_nobody() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(go_on.wait, 60.0)

        assert wait_for_executors() == []
        go_on.set()
        assert waiting.result()


def test_one_that_does_not_end_is_named() -> None:
    ended: list[bool] = []

    def work() -> None:
        while not ended:
            pass

    with ThreadPoolExecutor(1, thread_name_prefix="writer") as pool:
        pool.submit(work)
        try:
            assert wait_for_executors(0.1) == ["writer_0"]
        finally:
            ended.append(True)
