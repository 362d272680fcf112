"""PEFT: LoRA on a tiny random BERT, by the Trainer, with evaluation and saves."""
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)
class Rows(torch.utils.data.Dataset):
    def __init__(self, n, seed): g = torch.Generator().manual_seed(seed); self.x = torch.randint(0, 50, (n, 12), generator=g)
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return {"input_ids": self.x[i], "labels": int(self.x[i, 0] > 25)}
net = BertForSequenceClassification(BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16))
net = get_peft_model(net, LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["query", "value"]))
args = TrainingArguments("out", num_train_epochs=4, per_device_train_batch_size=16, eval_strategy="epoch", save_strategy="epoch", save_total_limit=2, logging_steps=5, learning_rate=5e-3, warmup_steps=5, lr_scheduler_type="cosine", report_to=[], use_cpu=True, disable_tqdm=True, load_best_model_at_end=True)
trainer = Trainer(net, args, train_dataset=Rows(192, 0), eval_dataset=Rows(48, 1), compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())})
trainer.train(); print(trainer.evaluate()["eval_loss"])
net.save_pretrained("adapter")
