"""`supervisor init`: what it sees, and files that the tool itself accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from supervisor.cli.script_look import MEANINGS, Trait, config_text, look_at, policy_text
from supervisor.config import load_config, load_policy
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]


def seen(tmp_path: Path, text: str, **environment: str) -> set[str]:
    path = tmp_path / "train.py"
    path.write_text(text)
    return {trait.name for trait in look_at(path, environment)}


@pytest.mark.parametrize(
    ("text", "traits"),
    [
        ("for step in range(3): loss.backward()", set()),
        ("scaler = torch.amp.GradScaler()", {"scaler"}),
        ("with torch.autocast('cuda', dtype=torch.bfloat16): pass", {"autocast", "bf16"}),
        ("import torch\nx = torch.bfloat16\ny = torch.float16", {"bf16", "fp16"}),
        ("model = model.half()", {"fp16"}),
        ("import lightning as L\nL.Trainer(max_steps=3)", {"lightning"}),
        (
            "import pytorch_lightning as pl\npl.Trainer(precision='16-mixed')",
            {"lightning", "fp16", "scaler", "autocast"},
        ),
        ("from transformers import Trainer, GPT2LMHeadModel", {"transformers", "language_model"}),
        (
            "from transformers import Trainer\nA(bf16=True, fp16=False)",
            {"transformers", "bf16", "autocast"},
        ),
        ("from trl import GRPOTrainer", {"transformers", "rl"}),
        ("# GradScaler()\nprecision = '16-true'", set()),
        ("import accelerate\naccelerate.Accelerator(mixed_precision='no')", {"accelerate"}),
        ("import gymnasium as gym", {"rl"}),
        ("from ray.rllib.algorithms import ppo", {"rl"}),
        ("class MyVAE(nn.Module): pass", {"latents"}),
        ("import torchvision", {"images"}),
        ("torch.distributed.init_process_group('gloo')", {"ranks"}),
        ("torch.manual_seed(0)", {"seeds"}),
        ("torch.Generator().manual_seed(0)", set()),
        ("import os\nos.environ['SLURM_PROCID']", {"slurm"}),
    ],
)
def test_what_a_script_uses_is_seen(tmp_path: Path, text: str, traits: set[str]) -> None:
    assert seen(tmp_path, text) == traits


def test_slurm_is_seen_in_the_environment(tmp_path: Path) -> None:
    assert seen(tmp_path, "", SLURM_JOB_ID="7") == {"slurm"}


def test_modules_beside_the_script_are_read_and_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "model.py").write_text("open('ran', 'w')\nclass SmallVAE: pass")
    (tmp_path / "broken.py").write_text("def (")

    found = seen(tmp_path, "import broken\nfrom parts import model\nopen('ran', 'w')")

    assert found == {"latents"}
    assert not (tmp_path / "ran").exists()


def some_traits(*names: str) -> list[Trait]:
    return [Trait(name=name, where="train.py:1", evidence="x") for name in names]


SETS = [(), ("rl",), ("scaler",), ("language_model", "scaler", "slurm"), tuple(MEANINGS)]


@pytest.mark.parametrize("names", SETS, ids="+".join)
def test_what_is_written_is_accepted_with_every_suggestion(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    config, policy = tmp_path / "c.yaml", tmp_path / "p.yaml"
    config.write_text(config_text(Path("train.py"), some_traits(*names)))
    policy.write_text(policy_text(Path("train.py"), "p.yaml", some_traits(*names)))

    load_config(str(config))
    load_policy(str(policy))
    config.write_text(with_suggestions(config.read_text()))
    policy.write_text(with_suggestions(policy.read_text()))

    assert load_config(str(config)).checkpoint.every_steps == 500
    assert load_config(str(config)).metrics_port == 9400
    assert load_config(str(config)).notify.webhook == "env:NOTIFY_URL"
    assert load_policy(str(policy)).observe_only


def with_suggestions(text: str) -> str:
    """The file with every ``# key: value`` line switched on."""
    return re.sub(r"^( *)# ( *[a-z_]+:(?: .*)?)$", r"\1\2", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["", "seeds", "slurm", "images", "scaler", "latents", "rl"])
def test_a_file_changes_nothing_of_its_base_but_what_it_says(tmp_path: Path, name: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(config_text(Path("train.py"), some_traits(name) if name else []))
    (base,) = re.findall(r"^defaults: \[(\w+)\]", config.read_text(), re.MULTILINE)

    ours, theirs = load_config(str(config)), load_config(base)

    for other in (ours, theirs):
        other.name = other.description = ""
        other.in_environment = None
    assert ours == theirs


def test_what_a_script_holds_cannot_leave_its_comment(tmp_path: Path) -> None:
    odd = Trait(name="slurm", where="a\nseed: 1\n.py:1", evidence="SLURM_\nseed: 2")
    config = tmp_path / "c.yaml"

    config.write_text(config_text(Path("a\nseed: 3.py"), [odd]))

    assert load_config(str(config)).seed is None


def test_the_command_writes_both_and_says_how_to_start(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nscaler = torch.amp.GradScaler()\n")

    code, out, _ = cli("init", "train.py")

    assert code == 0
    assert "train.py:2: a GradScaler" in out
    assert (
        "supervisor run --config train.config.yaml --policy train.policy.yaml train.py"
        in " ".join(out.split())
    )
    assert "defaults: [fp16]" in (tmp_path / "train.config.yaml").read_text()
    assert "defaults: [fp16]" in (tmp_path / "train.policy.yaml").read_text()


def test_a_file_that_is_there_is_not_replaced_without_force(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.policy.yaml").write_text("mine")

    refused = cli("init", "train.py")
    forced = cli("init", "train.py", "--force", "--json")

    assert refused[0] == 64
    assert "train.policy.yaml: is there already" in refused[2]
    assert forced[0] == 0
    assert json.loads(forced[1])["traits"] == []


@pytest.mark.parametrize("text", ["def (", "\0"])
def test_what_is_no_python_is_refused(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)

    code, _, err = cli("init", "train.py")

    assert code == 64
    assert "train.py" in err
    assert "give a Python script that runs" in err


def test_our_examples_are_seen_for_what_they_are() -> None:
    names = {
        path.name: {trait.name for trait in look_at(path, {})}
        for path in (ROOT / "examples").glob("*.py")
    }

    assert "latents" in names["vae.py"]
    assert names["train_torch.py"] == {"seeds"}
    assert names["train_transformers.py"] == {"transformers", "language_model", "seeds"}
    assert "lightning" in names["train_lightning.py"]
    assert "accelerate" in names["train_accelerate.py"]
    assert "rl" not in set().union(*names.values())
