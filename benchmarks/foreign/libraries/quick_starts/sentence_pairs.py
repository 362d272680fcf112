"""sentence-transformers: a tiny random encoder, its trainer, multiple negatives, an evaluator of similarity."""
import os
import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

set_seed(0)
words = ["sun", "rain", "wind", "snow", "cat", "dog", "fish", "bird", "red", "blue", "green", "gray"]
if not os.path.isdir("encoder"):
    one = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["[PAD]", "[UNK]", *words])}, unk_token="[UNK]")); one.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=one, pad_token="[PAD]", unk_token="[UNK]").save_pretrained("encoder")
    BertModel(BertConfig(vocab_size=14, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)).save_pretrained("encoder")
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.models import Pooling, Transformer

base = Transformer("encoder"); net = SentenceTransformer(modules=[base, Pooling(32)], device="cpu")
rng = random.Random(0); pairs = [" ".join(rng.choices(words, k=4)) for _ in range(160)]
data = Dataset.from_dict({"anchor": pairs, "positive": [" ".join(reversed(p.split())) for p in pairs]})
args = SentenceTransformerTrainingArguments("out", num_train_epochs=4, per_device_train_batch_size=16, logging_steps=5, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
SentenceTransformerTrainer(net, args, train_dataset=data, loss=losses.MultipleNegativesRankingLoss(net)).train()
torch.save(net.state_dict(), "net.pt")
