"""Each format: a file that its framework has written (tests/data/logs), or lines of its source."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from supervisor.analysis.backtest.line_logs import PATTERNS
from supervisor.analysis.backtest.log_file import Remarks
from supervisor.analysis.backtest.trace import read_trace
from supervisor.errors import UsageError
from supervisor.records import StepRecord

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "tests" / "data" / "logs"


def read(path: Path, **mapping: str) -> list[StepRecord]:
    return list(read_trace(path, mapping))


def remarks_of(path: Path, **mapping: str) -> list[str]:
    remarks = Remarks()
    list(read_trace(path, mapping, remarks))
    return remarks.sentences()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "steps", "loss", "last"),
    [
        ("trainer_state.json", range(1, 61), 1.604904, {"grad_norm": 0.312768, "lr": 0.00083333}),
        ("transformers_console.log", range(60), 1.605, {"grad_norm": 0.3128, "lr": 0.0008333}),
        ("metrics.csv", range(60), 1.985657, {"loss": 0.165562, "lr": 0.0005}),
        ("run.wandb.xz", range(0, 120, 2), 2.042221, {"grad_norm": 1.635, "lr": 0.001}),
        ("tensorboard", range(60), 2.042221, {"lr": 0.001}),
        ("torchtune.txt.gz", range(1, 61), 1.94468, {"grad_norm": 1.606338, "lr": 2e-5}),
        ("fairseq.log.xz", range(1, 61), 7.887, {"grad_norm": 1.60634, "loss_scale": 4.0}),
        ("nanogpt.log", range(61), 10.685, {}),
        ("llmc.log", range(1, 61), 10.66727, {"grad_norm": 0.01, "lr": 0.01}),
        ("llmc_main.log", range(60), 10.66727, {}),
    ],
)
def test_a_log_is_read_as_its_framework_wrote_it(
    name: str, steps: range, loss: float, last: dict[str, float]
) -> None:
    records = read(LOGS / name)

    assert [record.step for record in records] == list(steps)
    assert records[0].loss == pytest.approx(loss, rel=1e-5)
    assert all(record.loss_seen for record in records)
    assert {n: getattr(records[-1], n) for n in last} == pytest.approx(last, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "steps", "loss", "last"),
    [
        ("parameter_golf.log", [*range(1, 11), 50, 100, 150, 7600, 7650, 7700], 6.9370, {}),
        ("detectron2.log", range(19, 160, 20), 156.1, {"lr": 0.00021204}),
        ("gluonnlp.log", range(10, 90, 10), 0.7393, {"loss": 0.1884, "lr": 1.78e-05}),
        ("icted_net.log", range(190, 290, 10), 1.363684, {"lr": 0.0484290}),
        ("llama_factory.jsonl", range(1, 9), 0.6491, {"lr": 7.8431e-09}),
        ("wide_resnet.log", range(2), 1.369556, {"lr": 0.1}),
    ],
)
def test_a_published_log_is_read(
    name: str, steps: Sequence[int], loss: float, last: dict[str, float]
) -> None:
    """Scripts, settings and evaluations between the steps; counts that begin anew in each epoch."""
    records = read(LOGS / "published" / name)

    assert [record.step for record in records] == list(steps)
    assert records[0].loss == pytest.approx(loss, rel=1e-5)
    assert all(record.loss_seen for record in records)
    assert not any(record.announced for record in records)
    assert {n: getattr(records[-1], n) for n in last} == pytest.approx(last, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "loss", "steps"),
    [
        ("cycle_gan.txt", "G_L1", [32, 432, 832]),
        ("mxnet.log", "M0_RPNL1BboxLoss", range(20, 120, 20)),
    ],
)
def test_a_published_log_of_several_losses_asks_for_one(
    name: str, loss: str, steps: Sequence[int]
) -> None:
    path = LOGS / "published" / name

    with pytest.raises(UsageError, match="--map loss="):
        read(path)
    assert [record.step for record in read(path, loss=loss)] == list(steps)


def test_episodes_of_a_monitor_are_a_run_of_reinforcement_learning() -> None:
    records = read(LOGS / "published" / "monitor.csv")

    assert len(records) == 12
    assert all(record.in_environment and not record.loss_seen for record in records)
    assert all(math.isfinite(record.observed["reward"]) for record in records)


CONSOLES = {
    # Megatron-LM: megatron/training/training.py, training_log
    "Megatron-LM": (
        " [2025-04-13 23:41:12] iteration       10/    1000 | consumed samples:          160 | "
        "elapsed time per iteration (ms): 1147.6 | learning rate: 0.000000E+00 | global batch size:"
        "    16 | loss scale: 8388608.0 | number of skipped iterations:  10 |\n"
        " [2025-04-13 23:41:20] iteration       20/    1000 | consumed samples:          320 | "
        "elapsed time per iteration (ms): 820.7 | learning rate: 4.000000E-05 | global batch size:"
        "    16 | lm loss: 1.072453E+01 | loss scale: 131072.0 | grad norm: 3.874 | num zeros: 71.0"
        " | number of skipped iterations:   6 | number of nan iterations:   0 |\n"
        " validation loss at iteration 20 | lm loss value: 8.889540E+00 | lm loss PPL: 7.2E+03\n",
        StepRecord(
            step=20, loss=10.72453, grad_norm=3.874, lr=4e-5, loss_scale=131072.0, batch_size=16
        ),
    ),
    # torchtitan: components/metrics.py, under torchrun, in colours
    "torchtitan": (
        "[rank0]:[titan] 2025-12-17 01:19:19,772 - root - INFO - Training starts at step 1\n"
        "[rank0]:[titan] 2025-12-17 01:19:19,772 - root - INFO - \x1b[31mstep:  8  \x1b[32mloss: "
        "11.89340  \x1b[33mgrad_norm:  9.1551  \x1b[36mmemory: 116.41GiB(83.32%)  \x1b[34mtps: "
        "6,556  \x1b[36mtflops: 1,330.91  \x1b[35mmfu: 33.46%\x1b[39m\n"
        "[rank1]:[titan] 2025-12-17 01:19:19,772 - root - INFO - step:  8  loss: 11.89340  "
        "grad_norm:  9.1551  memory: 116.41GiB(83.32%)  tps: 6,556\n"
        "[rank0]:[titan] 2025-12-17 01:19:20,772 - root - INFO - validate step:  8  loss:  9.1  "
        "memory: 116.41GiB(83.32%)  tps: 6,556\n",
        StepRecord(step=8, loss=11.8934, grad_norm=9.1551),
    ),
    # llm.c: train_gpt2.cu
    "llm.c": (
        "val loss 11.033154\n"
        "step   42/74 | loss 11.032358 (+nanz)| norm 22.1414 (+nanz)| lr 8.57e-07 | 2575.63 ms | "
        "39.0% bf16 MFU | 203557 tok/s\n",
        StepRecord(step=42, loss=11.032358, grad_norm=22.1414, lr=8.57e-07),
    ),
    # llm.c: llmc/logger.h
    "llm.c's main.log": (
        "s:0 tel:11.0332\ns:1 trl:11.0324 lr:0.000001 norm:22.14\n",
        StepRecord(step=1, loss=11.0324, grad_norm=22.14, lr=1e-6),
    ),
    "modded-nanogpt": (
        "step:0/6200 val_loss:10.98 train_time:262ms step_avg:nanms\n"
        "step:1/6200 train_loss:10.9810 train_time:1402ms step_avg:nanms\n",
        StepRecord(step=1, loss=10.981),
    ),
}


@pytest.mark.parametrize("trainer", CONSOLES)
def test_a_console_log_is_read_as_its_trainer_prints_it(tmp_path: Path, trainer: str) -> None:
    text, expected = CONSOLES[trainer]

    (record,) = read(written(tmp_path / "console.log", "Namespace(lr=1, x=2)\n\n" + text))

    seen = [record.step, record.loss, record.grad_norm, record.lr, record.loss_scale]
    wanted = [expected.step, expected.loss, expected.grad_norm, expected.lr, expected.loss_scale]
    assert seen == pytest.approx(wanted, nan_ok=True)
    assert record.batch_size == expected.batch_size


def test_the_docs_list_every_pattern() -> None:
    page = (ROOT / "docs" / "backtest.md").read_text()

    assert not [pattern for pattern in PATTERNS.values() if pattern not in page]


def test_a_wandb_table_of_several_runs_asks_for_one_and_gives_the_command(tmp_path: Path) -> None:
    """As W&B's page exports a chart."""
    header = '"Step","a - train/loss","a - train/loss__MIN","b - train/loss"\n'
    path = written(tmp_path / "chart.csv", header + '"0","2.5","2.4","3.5"\n')

    with pytest.raises(UsageError) as error:
        read(path)

    assert "a - train/loss, b - train/loss may each be the loss" in str(error.value)
    assert str(error.value).endswith(f"backtest {path} --map 'loss=a - train/loss,step=Step'")
    assert read(path, loss="b - train/loss")[0].loss == 3.5


@pytest.mark.parametrize(
    "text",
    [
        '{"_step": 4, "_runtime": 1.5, "train/loss": "NaN"}\n{"_step": 5, "val/loss": 1}\n',
        '[{"step": 4, "train": {"loss": NaN}}]',
        json.dumps({"loss": ["nan"], "val_loss": [1.0], "step": [4]}),
        json.dumps({"log_history": [{"step": 4, "loss": math.nan}], "best_metric": None}, indent=2),
        "2026-01-01 | INFO | train_inner | {'loss': nan, 'step': 4}\n",
        "step;train_loss;phase\n4;nan;warm\n",
        '#{"t_start": 1}\nstep,loss\n4,nan\n',
    ],
)
def test_histories_in_other_shapes_are_read(tmp_path: Path, text: str) -> None:
    (record,) = read(written(tmp_path / "log", text))

    assert record.step == 4
    assert record.has_nonfinite_loss


def test_packed_logs_are_read_and_one_that_breaks_off_is_told(tmp_path: Path) -> None:
    text = "step,loss\n" + "".join(f"{step},{1 + step / 7}\n" for step in range(20_000))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(text.encode()))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text.encode())[:20_000])

    assert len(read(tmp_path / "a.csv.gz")) == len(read(tmp_path / "a.csv.xz")) == 20_000
    assert 1000 < len(read(tmp_path / "cut.csv.gz")) < 20_000
    assert "break off" in remarks_of(tmp_path / "cut.csv.gz")[0]


def test_broken_lines_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    table = written(
        tmp_path / "t.csv", "step,loss\n0,1.0\n1,oops\n2,1,3\n0.5,1\n3,1.0\nstep,loss\n"
    )
    lines = written(tmp_path / "t.jsonl", '{"step": 1, "loss": 1.0}\n{"step": 2, "lo\n')
    console = written(tmp_path / "t.log", "iter 1: loss 2.5, time 1.00ms\niter 2: lo")

    assert [record.step for record in read(table)] == [0, 3]
    assert remarks_of(table) == [
        "left out 3 broken lines: line 3: column loss: 'oops' is no number"
    ]
    assert remarks_of(lines) == ["left out 1 broken line: line 2: no whole JSON object"]
    assert remarks_of(console) == ["left out 1 broken line: line 2: no value after the step"]


def test_text_is_left_out_and_each_column_named_once(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "step,loss,phase,note\n0,1.0,a,x\n1,1.0,b,y\n")

    assert remarks_of(path) == ["left out the text in: phase, note"]
    assert read(path)[0].observed == {}


def test_rates_and_validations_in_rows_of_their_own_join_the_step(tmp_path: Path) -> None:
    text = (
        "step,lr-Adam,train_loss,val_loss\n0,0.1,,\n0,,2.5,\n1,0.2,,\n2,,2.4,\n2,,,3.0\n7,,,3.5\n"
    )
    path = written(tmp_path / "metrics.csv", text)

    records = read(path)

    assert (records[0].step, records[0].loss, records[0].lr) == (0, 2.5, 0.1)
    assert (records[1].step, records[1].observed) == (2, {"val_loss": 3.0})
    assert "left out 2 rows" in remarks_of(path)[1]


def test_rows_of_an_evaluation_are_none_of_the_training(tmp_path: Path) -> None:
    text = "Test: step 9 loss 9.0\n" + "".join(
        f"Epoch: [{epoch}][{step}/4]\tTime 0.1 (0.2)\tLoss {3 - epoch} (2.4)\n"
        for epoch in (0, 1)
        for step in range(4)
    )
    path = written(tmp_path / "imagenet.log", text + "epoch 1: loss 2.2\nval: {'loss': 7.0}\n")

    records = read(path)

    assert [record.step for record in records] == list(range(8))
    assert [record.loss for record in records] == [3.0] * 4 + [2.0] * 4


def test_a_second_training_in_one_log_begins_anew(tmp_path: Path) -> None:
    """As transformers' console, which names no step."""
    lines = [f"{{'loss': 1.5, 'epoch': {i / 10}}}\n" for i in range(12)]

    records = read(written(tmp_path / "console.log", "".join(lines * 2)))

    assert [record.step for record in records if record.announced] == [12]


def test_the_guess_is_a_loss_and_no_count(tmp_path: Path) -> None:
    """As StyleGAN's stats.jsonl."""
    score = {"num": 64, "mean": -3.1, "std": 1.3}
    row = {"Loss/scores/fake": score, "Loss/G/loss": {"num": 64, "mean": 2.0, "std": 0.1}}
    path = written(tmp_path / "stats.jsonl", json.dumps(row) + "\n")

    with pytest.raises(UsageError, match=r"--map loss=Loss/G/loss/mean$"):
        read(path)


def test_a_mapping_names_any_column_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "a,b,c\n3,1.5,0.25\n")

    (record,) = read(path, step="a", loss="b", reward="c")

    assert (record.step, record.loss, record.observed) == (3, 1.5, {"reward": 0.25})
    with pytest.raises(UsageError, match=r"--map loss=x: .* it has a, b, c"):
        read(path, loss="x")


def test_without_a_known_loss_the_columns_and_a_command_are_given(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "it,lr,val_ce,train_ce,phase\n0,0.1,2,1,a\n")

    with pytest.raises(UsageError) as error:
        read(path)

    assert "in it, lr, val_ce, train_ce, phase: say which" in str(error.value)
    assert str(error.value).endswith("--map loss=train_ce,step=it")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello\nworld\n", "no log that is known"),
        ("step,lr\n0,1\n", "no column is known as the loss"),
    ],
)
def test_what_holds_no_loss_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(written(tmp_path / "t.txt", text))


def event_file(path: Path, points: list[tuple[int, str, float]]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(path))
    for step, tag, value in points:
        writer.add_scalar(tag, value, step)
    writer.close()


def test_every_point_of_event_files_is_read(tmp_path: Path) -> None:
    """TensorBoard's own reader keeps 10,000 of them."""
    count = 12_000
    event_file(tmp_path, [(step, "train/loss", 1.0 + step) for step in range(count)])

    assert [record.loss for record in read(tmp_path)] == [1.0 + step for step in range(count)]


def test_tags_of_event_files_join_by_step_and_a_resumed_run_begins_another_pass(
    tmp_path: Path,
) -> None:
    """Tags one after another, and a second file that goes back."""
    event_file(tmp_path, [(s, tag, float(s)) for tag in ("lr", "loss") for s in range(30)])
    first = next(tmp_path.glob("*.tfevents.*"))
    first.rename(first.with_name("events.out.tfevents.0000000001.a"))
    event_file(tmp_path, [(s, tag, 0.5) for s in range(20, 25) for tag in ("loss", "lr")])

    records = read(tmp_path)

    assert [record.step for record in records] == [*range(30), *range(20, 25)]
    assert [record.lr for record in records] == [*map(float, range(30)), *[0.5] * 5]
    assert [record.step for record in records if record.restarted] == [20]


def test_event_files_of_tensorflow_and_a_cut_one_are_read(tmp_path: Path) -> None:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    # summary.proto: tag, tensor with type DT_FLOAT, no dimension, and four bytes of content
    tensor = b"\x08\x01" + field(2, b"") + field(4, struct.pack("<f", 2.5))
    event = b"\x10\x07" + field(5, field(1, field(1, b"loss") + field(8, tensor)))
    record = struct.pack("<Q", len(event)) + b"crc." + event + b"crc."
    (tmp_path / "events.out.tfevents.1.a").write_bytes(record + record[:-9])

    (read_record,) = read(tmp_path)

    assert (read_record.step, read_record.loss) == (7, 2.5)
    assert "ends in the middle of it" in remarks_of(tmp_path)[0]


def test_a_folder_with_one_log_is_that_log_and_several_are_listed(tmp_path: Path) -> None:
    (tmp_path / "out" / "version_0").mkdir(parents=True)
    written(tmp_path / "out" / "version_0" / "metrics.csv", "step,train_loss\n0,1.5\n")

    assert read(tmp_path)[0].loss == 1.5
    (tmp_path / "out" / "version_1").mkdir()
    written(tmp_path / "out" / "version_1" / "metrics.csv", "step,train_loss\n0,1.5\n")
    with pytest.raises(UsageError, match=r"2 logs in it.*version_0.*version_1"):
        read(tmp_path)
