"""A silent mistake stands in TensorBoard as a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.step_logs.step_log import TensorboardLog


def test_a_text_is_on_tensorboards_page_of_texts(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorboardLog(tmp_path / "log") as log:
        log.write_text(20, "mistake/never_a_gradient", "train.py:3: y")
        log.flush()

    read = EventAccumulator(str(tmp_path / "log"))
    read.Reload()
    (found,) = read.Tensors("mistake/never_a_gradient")
    assert (found.step, found.tensor_proto.string_val) == (20, [b"train.py:3: y"])
    kind = read.SummaryMetadata("mistake/never_a_gradient").plugin_data.plugin_name
    assert kind == "text"
