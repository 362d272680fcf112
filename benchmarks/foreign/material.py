"""Data for scripts that would fetch them: made here, small, the same every time."""

from __future__ import annotations

import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TRAIN, TEST = 1500, 300


def make(material: str, checkout: Path) -> None:
    """Makes what a catalogue's entry asks for: ``kind:folder of the checkout``, by spaces."""
    for one in material.split():
        kind, _, folder = one.partition(":")
        path = checkout / folder
        path.mkdir(parents=True, exist_ok=True)
        KINDS[kind](path)


def mnist(folder: Path, name: str = "MNIST") -> None:
    """The four files of MNIST as torchvision unpacks them: blurred bars, one place a digit."""
    chance = np.random.default_rng(0)
    raw = folder / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        labels = chance.integers(0, 10, count).astype(np.uint8)
        pictures = chance.integers(0, 90, (count, 28, 28)).astype(np.uint8)
        for picture, label in zip(pictures, labels, strict=True):
            picture[2 + 2 * label : 6 + 2 * label, 4:24] += 120
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        head = struct.pack(">II", 2049, count)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def characters(folder: Path) -> None:
    """What nanoGPT's `prepare.py` makes of a text: two rows of numbers, and what they mean."""
    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefgh") for _ in range(n)) for n in range(2, 9)]
    text = " ".join(chance.choice(words) for _ in range(8000))
    letters = sorted(set(text))
    numbers = np.array([letters.index(letter) for letter in text], dtype=np.uint16)
    numbers[:30000].tofile(folder / "train.bin")
    numbers[30000:].tofile(folder / "val.bin")
    meaning = {
        "vocab_size": len(letters),
        "itos": dict(enumerate(letters)),
        "stoi": {letter: n for n, letter in enumerate(letters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(meaning))


def pictures(folder: Path) -> None:
    """Two folders of pictures, one a class, as torchvision's `ImageFolder` reads them."""
    from PIL import Image

    chance = np.random.default_rng(0)
    for part, count in (("train", 24), ("val", 8)):
        for label in ("dark", "light"):
            place = folder / part / label
            place.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                values = chance.integers(0, 120, (32, 32, 3)) + (label == "light") * 120
                Image.fromarray(values.astype(np.uint8)).save(place / f"{number:03}.png")


def text(folder: Path) -> None:
    """Three texts of words, as language models for words read them."""
    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefgh") for _ in range(5)) for _ in range(200)]
    for part, lines in (("train", 1500), ("valid", 150), ("test", 150)):
        told = [" ".join(chance.choice(words) for _ in range(12)) for _ in range(lines)]
        (folder / f"{part}.txt").write_text("\n".join(told) + "\n")


def language(folder: Path) -> None:
    """A tiny language model with random weights, its tokenizer, and lines to train it on."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefgh") for _ in range(4)) for _ in range(60)]
    names = ["<unk>", "<pad>", "</s>", *dict.fromkeys(words)]
    base = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "<unk>"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=base, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )
    tokenizer.save_pretrained(folder / "tiny")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=len(names), eos_token_id=2, pad_token_id=1, **size, **heads)
    LlamaForCausalLM(config).save_pretrained(folder / "tiny")
    (folder / "lines").mkdir(exist_ok=True)
    with open(folder / "lines" / "train.jsonl", "w") as file:
        for _ in range(80):
            line = " ".join(chance.choice(words) for _ in range(9))
            file.write(json.dumps({"text": line}) + "\n")


def waves(folder: Path) -> None:
    """Sine waves of different phases, as `generate_sine_wave.py` of torch's examples saves them."""
    import torch

    phases = np.random.default_rng(0).integers(-80, 80, (12, 1))
    torch.save(np.sin((np.arange(60) + phases) / 20), folder / "traindata.pt")


def cora(folder: Path) -> None:
    """Papers with words and a subject each, and who cites whom, as pygcn reads them."""
    chance = np.random.default_rng(0)
    subjects = chance.integers(0, 7, 1600)
    words = (chance.random((1600, 60)) < 0.05) | (np.arange(60) % 7 == subjects[:, None])
    with open(folder / "cora.content", "w") as file:
        for number, (row, subject) in enumerate(zip(words, subjects, strict=True)):
            told = " ".join(str(int(word)) for word in row)
            file.write(f"{number} {told} subject{subject}\n")
    pairs = chance.integers(0, 1600, (4000, 2))
    (folder / "cora.cites").write_text("".join(f"{a} {b}\n" for a, b in pairs))


def planetoid(folder: Path) -> None:
    """Cora as Planetoid publishes it: words, subjects and neighbours, pickled one by one."""
    from scipy.sparse import csr_matrix

    chance = np.random.default_rng(0)
    train, known, tested = 140, 900, 300
    papers = known + tested
    subjects = chance.integers(0, 7, papers)
    words = (chance.random((papers, 60)) < 0.05) | (np.arange(60) % 7 == subjects[:, None])
    found, told = csr_matrix(words.astype(np.float32)), np.eye(7, dtype=np.int32)[subjects]
    neighbours = chance.integers(0, papers, (papers, 3)).tolist()
    parts = {
        "x": found[:train],
        "y": told[:train],
        "allx": found[:known],
        "ally": told[:known],
        "tx": found[known:],
        "ty": told[known:],
        "graph": dict(enumerate(neighbours)),
    }
    for name, value in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    (folder / "ind.cora.test.index").write_text("".join(f"{n}\n" for n in range(known, papers)))


def glue(folder: Path) -> None:
    """Pairs of sentences under GLUE's name, a tiny BERT with random weights, and the metric."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefgh") for _ in range(4)) for _ in range(60)]
    names = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *dict.fromkeys(words)]
    base = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "[UNK]"))
    base.pre_tokenizer = pre_tokenizers.Whitespace()
    base.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "sep_token": "[SEP]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, cls_token="[CLS]", **special)
    tokenizer.save_pretrained(folder / "bert-base-cased")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=len(names), num_attention_heads=2, pad_token_id=1, **size)
    BertForSequenceClassification(config).save_pretrained(folder / "bert-base-cased")
    place = folder / "nyu-mll" / "glue"
    place.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 240), ("validation", 40)):
        with open(place / f"{part}.jsonl", "w") as file:
            for number in range(count):
                label = chance.randrange(2)
                first = chance.choices(words, k=6)
                second = first[::-1] if label else chance.choices(words, k=6)
                line = {"sentence1": " ".join(first), "sentence2": " ".join(second)}
                file.write(json.dumps({**line, "label": label, "idx": number}) + "\n")
    (place / "README.md").write_text(_PARTS_OF_GLUE)
    (folder / "glue").mkdir(exist_ok=True)
    (folder / "glue" / "glue.py").write_text(_METRIC_OF_GLUE)


_PARTS_OF_GLUE = """---
configs:
- config_name: mrpc
  data_files:
  - {split: train, path: train.jsonl}
  - {split: validation, path: validation.jsonl}
---
"""

_METRIC_OF_GLUE = """import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        kinds = {name: datasets.Value("int64") for name in ("predictions", "references")}
        features = datasets.Features(kinds)
        return evaluate.MetricInfo("", "", features=features)

    def _compute(self, predictions, references):
        equal = [a == b for a, b in zip(predictions, references)]
        return {"accuracy": sum(equal) / len(equal)}
"""


def unet(folder: Path) -> None:
    """What Diffusers reads a small U-Net from."""
    size = {"sample_size": 16, "block_out_channels": [8, 16], "norm_num_groups": 4}
    down = {"down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "layers_per_block": 1}
    up = {"up_block_types": ["AttnUpBlock2D", "UpBlock2D"], "attention_head_dim": 4}
    told = {"_class_name": "UNet2DModel", **size, **down, **up}
    (folder / "config.json").write_text(json.dumps(told))


def torchtune(folder: Path) -> None:
    """A tiny Llama with random weights, its tokenizer, lines, and recipes for them."""
    import sentencepiece
    import torch

    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefgh") for _ in range(4)) for _ in range(60)]
    lines = [" ".join(chance.choices(words, k=9)) for _ in range(80)]
    with open(folder / "train.jsonl", "w") as file:
        file.writelines(json.dumps({"text": line}) + "\n" for line in lines)
    with open(folder / "tokenizer.model", "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=80, pad_id=3, minloglevel=2
        )
    width, inner, layers, names = 16, 32, 2, 80
    torch.manual_seed(0)
    shapes = {"tok_embeddings.weight": (names, width), "output.weight": (names, width)}
    for layer in range(layers):
        for part in ("q_proj", "k_proj", "v_proj", "output_proj"):
            shapes[f"layers.{layer}.attn.{part}.weight"] = (width, width)
        shapes[f"layers.{layer}.mlp.w1.weight"] = (inner, width)
        shapes[f"layers.{layer}.mlp.w2.weight"] = (width, inner)
        shapes[f"layers.{layer}.mlp.w3.weight"] = (inner, width)
    weights = {name: torch.randn(shape) / 4 for name, shape in shapes.items()}
    scales = [f"layers.{n}.{part}.scale" for n in range(layers) for part in ("sa_norm", "mlp_norm")]
    weights |= {name: torch.ones(width) for name in [*scales, "norm.scale"]}
    torch.save(weights, folder / "model.pt")
    size = {"vocab_size": names, "embed_dim": width, "intermediate_dim": inner}
    size |= {"num_layers": layers, "num_heads": 2, "num_kv_heads": 2, "max_seq_len": 64}
    lora = {
        "lora_attn_modules": ["q_proj", "v_proj"],
        "lora_rank": 4,
        "lora_alpha": 8,
        "apply_lora_to_mlp": False,
    }
    for recipe, model in (
        ("full", {"_component_": "torchtune.models.llama2.llama2", **size}),
        ("lora", {"_component_": "torchtune.models.llama2.lora_llama2", **size, **lora}),
    ):
        told = {**_RECIPE, "model": model}
        (folder / f"{recipe}.yaml").write_text(json.dumps(told))


_RECIPE: dict[str, Any] = {
    "output_dir": "out",
    "tokenizer": {
        "_component_": "torchtune.models.llama2.llama2_tokenizer",
        "path": "tiny/tokenizer.model",
        "max_seq_len": 32,
    },
    "dataset": {
        "_component_": "torchtune.datasets.text_completion_dataset",
        "source": "json",
        "data_files": "tiny/train.jsonl",
        "split": "train",
        "packed": False,
    },
    "seed": 5,
    "shuffle": True,
    "checkpointer": {
        "_component_": "torchtune.training.FullModelTorchTuneCheckpointer",
        "checkpoint_dir": "tiny",
        "checkpoint_files": ["model.pt"],
        "recipe_checkpoint": None,
        "output_dir": "out",
        "model_type": "LLAMA2",
    },
    "resume_from_checkpoint": False,
    "save_adapter_weights_only": False,
    "batch_size": 2,
    "epochs": 2,
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 0.001},
    "lr_scheduler": {
        "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "num_warmup_steps": 5,
    },
    "optimizer_in_bwd": False,
    "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
    "max_steps_per_epoch": 16,
    "gradient_accumulation_steps": 2,
    "clip_grad_norm": 1.0,
    "compile": False,
    "device": "cpu",
    "dtype": "fp32",
    "enable_activation_checkpointing": True,
    "enable_activation_offloading": False,
    "metric_logger": {
        "_component_": "torchtune.training.metric_logging.DiskLogger",
        "log_dir": "out/logs",
    },
    "log_every_n_steps": 1,
    "log_peak_memory_stats": False,
    "log_level": "INFO",
    "profiler": {"_component_": "torchtune.training.setup_torch_profiler", "enabled": False},
}


def preferences(folder: Path) -> None:
    """Beginnings with a preferred and a refused end each, in the words of `language`."""
    chance = random.Random(0)
    words = ["".join(chance.choice("abcdefgh") for _ in range(4)) for _ in range(60)]
    with open(folder / "train.jsonl", "w") as file:
        for _ in range(60):
            names = ("prompt", "chosen", "rejected")
            line = {name: " " + " ".join(chance.choices(words, k=4)) for name in names}
            file.write(json.dumps(line) + "\n")


KINDS: dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "clothes": lambda folder: mnist(folder, "FashionMNIST"),
    "characters": characters,
    "pictures": pictures,
    "text": text,
    "waves": waves,
    "cora": cora,
    "language": language,
    "planetoid": planetoid,
    "glue": glue,
    "unet": unet,
    "preferences": preferences,
    "torchtune": torchtune,
}
