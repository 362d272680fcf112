"""What cannot be resumed exactly is refused before anything is trained."""

from __future__ import annotations

import sys
import types

import pytest
from torch import nn

from supervisor.worker.process.unsupported import refuse_fsdp1


class Flat(nn.Module):
    pass


def test_fsdp1_is_refused_with_a_way_out_wherever_it_lies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "torch.distributed.fsdp.fully_sharded_data_parallel"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(FullyShardedDataParallel=Flat))

    refuse_fsdp1(nn.Sequential(nn.Linear(1, 1)))
    with pytest.raises(SystemExit) as ended:
        refuse_fsdp1(nn.Sequential(Flat()))

    assert ended.value.code == 64
    assert "fully_shard" in capsys.readouterr().err
