"""Quick starts of the most used training libraries under the supervisor, beside plain python.

    python -m benchmarks.foreign.libraries [--only WORD ...] [--json FILE]
    python -m benchmarks.foreign.libraries --table FILE

Each script of `quick_starts/` runs by plain python, healthy, and killed with SIGKILL at 35 and at
75 % of its steps, each in a run of its own. What plain python does not repeat itself is asked of
nobody. Libraries that are not installed are left out and named; a result that is in the file of
--json already is kept, but for --again WORD. The exit code is 1 if a resume was falsely exact, or a
healthy run was not plain python's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.foreign.foreign_script import Foreign
from benchmarks.foreign.libraries.library_table import library_table
from benchmarks.foreign.trial import Trial
from benchmarks.foreign.verdict import read_verdicts

QUICK_STARTS = {
    "bo_loop": "botorch",
    "clip_train": "open_clip_torch",
    "compiled": "torch",
    "darts_blocks": "darts",
    "diffusion": "diffusers accelerate",
    "einops_vit": "einops",
    "fastai_fit": "fastai",
    "gluonts_deepar": "gluonts lightning",
    "gpytorch_fit": "gpytorch",
    "graph_net": "torch_geometric",
    "hf_datasets_accelerate": "datasets accelerate",
    "hf_seq2seq": "transformers",
    "hydra_multi": "hydra-core",
    "hydra_run": "hydra-core",
    "keras_fit": "keras",
    "ignite_engine": "pytorch-ignite zarr",
    "kornia_augment": "kornia",
    "lightly_simclr": "lightly",
    "lightning_callbacks": "lightning torchmetrics",
    "litgpt_pretrain": "litgpt",
    "metric_learning": "pytorch-metric-learning",
    "mlflow_tracking": "mlflow-skinny",
    "monai_segment": "monai",
    "neural_forecast": "neuralforecast",
    "optuna_study": "optuna",
    "other_optimizers": "pytorch_optimizer",
    "peft_lora": "peft transformers",
    "schedule_free": "schedulefree",
    "segmentation": "segmentation_models_pytorch",
    "sentence_pairs": "sentence-transformers",
    "skorch_fit": "skorch",
    "spacy_text": "spacy",
    "tabnet_fit": "pytorch-tabnet",
    "tft": "pytorch-forecasting",
    "timm_train": "timm",
    "torchao_qat": "torchao",
    "torchrl_buffer": "torchrl tensordict",
    "wandb_offline": "wandb",
    "webdata": "webdataset",
    "yolo_detect": "ultralytics",
}
"""Script → the libraries that it shows."""
SHARES = (0.35, 0.75)


def main() -> int:
    given = _options()
    verdicts = read_verdicts(given.table or given.json)
    if given.table:
        print(library_table(verdicts.values()))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        for name, needs in QUICK_STARTS.items():
            wanted = any(word in name for word in given.only) or not given.only
            known = name in verdicts and not any(word in name for word in given.again)
            try:
                versions = {library: version(library) for library in needs.split()}
            except PackageNotFoundError as missing:
                print(f"{name}: {missing.name} is not installed", file=sys.stderr)
                continue
            if known or not wanted:
                continue
            script = Foreign(name, "libraries/quick_starts", f"{name}.py", kill_at=0)
            trial = Trial(script, Path(__file__).parent, folder, timeout_s=given.timeout_s)
            verdicts[name] = trial.run_at(SHARES, versions)
            print(library_table([verdicts[name]], with_head=False), flush=True)
            if given.json:
                told = [verdict.to_dict() for verdict in verdicts.values()]
                given.json.write_text(json.dumps(told, indent=1))
    ran = list(verdicts.values())
    print(library_table(ran))
    return 0 if all(v.is_healthy and not v.is_false for v in ran) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.foreign.libraries", description=__doc__)
    words = {"nargs": "*", "default": [], "metavar": "WORD"}
    parser.add_argument("--only", **words, help="scripts with one of these words in their name")
    parser.add_argument("--again", **words, help="run these although their result is known")
    parser.add_argument("--timeout-s", type=float, default=900.0)
    parser.add_argument("--keep", type=Path, help="folder for the runs, kept afterwards")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE", help="of --json: print the table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
