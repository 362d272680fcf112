"""Where a silent script stands, told from stacks and source."""

from pathlib import Path

import pytest

from supervisor.parent.watching.place_of_silence import Standing, find_place, last_dump, waits_in
from supervisor.storage.run.training_places import TrainingPlace
from supervisor.worker.process import patches_input

SOURCE = """\
def step(batch):
    prepare(batch)
    net(batch)

def fit():
    for epoch in range(3):
        for batch in loader:
            step(batch)
        validate()
    send()

while again:
    fit()
fit()
upload()
"""
MAIN, OTHER = 1, 2


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SOURCE)
    return str(path)


def stack(file: str, *lines: int) -> list[tuple[str, int, str]]:
    return [("/usr/lib/python3/threading.py", 9, "wait"), *((file, line, "f") for line in lines)]


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ((3, 8, 14), Standing.TRAINING),  # the forward
        ((2, 8, 14), Standing.TRAINING),  # another line of the same step
        ((9, 14), Standing.TRAINING),  # between two epochs
        ((10, 14), Standing.OVER),
        ((15,), Standing.OVER),
        ((10, 13), Standing.OVER),  # its loop was never seen to train
    ],
)
def test_only_within_the_loop_that_trained_is_silence_a_hang(
    file: str, lines: tuple[int, ...], place: Standing
) -> None:
    known = [TrainingPlace(MAIN, ((file, 3), (file, 8), (file, 14)))]

    assert find_place([(MAIN, stack(file, *lines))], known) is place


def test_a_loop_further_out_may_bring_the_training_back(file: str) -> None:
    known = [TrainingPlace(MAIN, ((file, 3), (file, 8), (file, 13)))]

    assert find_place([(MAIN, stack(file, 10, 13))], known) is Standing.BETWEEN
    assert find_place([(MAIN, stack(file, 15))], known) is Standing.OVER


def test_a_thread_that_trains_is_looked_at_and_one_that_only_loads_is_not(file: str) -> None:
    frames = ((file, 3), (file, 8), (file, 14))
    threads = [(OTHER, stack(file, 3, 8, 14)), (MAIN, stack(file, 15))]

    assert find_place(threads, [TrainingPlace(OTHER, frames, False)]) is Standing.TRAINING
    assert find_place(threads, [TrainingPlace(OTHER, frames, False, True)]) is Standing.OVER


def test_what_cannot_be_told_is_training(tmp_path: Path, file: str) -> None:
    gone = str(tmp_path / "gone.py")

    assert find_place([], []) is Standing.TRAINING
    assert find_place([(MAIN, stack(file, 15))], []) is Standing.TRAINING
    known = [TrainingPlace(MAIN, ((gone, 3),))]
    assert find_place([(MAIN, stack(gone, 15))], known) is Standing.TRAINING


def test_of_several_dumps_the_last_one_counts(file: str) -> None:
    dump = 'Thread 0x{} (most recent call first):\n  File "{}", line {} in f\n'
    text = dump.format(2, file, 3) + dump.format(1, file, 8) + dump.format(1, file, 15)

    threads = last_dump(text)

    assert threads == [(MAIN, [(file, 15, "f")])]
    assert waits_in(threads) == f"f ({file}:15)"


def test_the_patch_that_reads_a_persons_answer_is_known_as_input(file: str) -> None:
    read = str(Path(patches_input.__file__))
    known = [TrainingPlace(MAIN, ((file, 3), (file, 8), (file, 14)))]

    found = find_place([(MAIN, [(read, 9, "<lambda>"), *stack(file, 8, 14)[1:]])], known)

    assert found is Standing.INPUT
