"""A training with the Trainer of Transformers, end to end: a small GPT-2 learns to sort.

    supervisor run --config llm --policy llm examples/train_transformers.py
    supervisor run --set 'faults=[{kind: sigkill, step: 60}]' examples/train_transformers.py

It is supervised as it is. The callback is optional: it adds the epoch, what was evaluated, and an
end by the Trainer's own way (`stop_at`).
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from supervisor.integrations.transformers import TransformersCallback

SYMBOLS, LENGTH = 16, 8


class Sorting(torch.utils.data.Dataset):
    """Sequences of symbols, followed by the same symbols in order."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.given = torch.randint(0, SYMBOLS, (count, LENGTH), generator=generator)

    def __len__(self):
        return len(self.given)

    def __getitem__(self, index):
        given = self.given[index]
        tokens = torch.cat([given, given.sort().values])
        labels = tokens.clone()
        labels[:LENGTH] = -100  # only the sorted half is to be learned
        return {"input_ids": tokens, "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--output", default="sorting-gpt2")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=SYMBOLS,
        n_positions=2 * LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    trainer = Trainer(
        GPT2LMHeadModel(shape),
        TrainingArguments(
            arguments.output,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=256,
            learning_rate=3e-3,
            warmup_steps=10,
            eval_strategy="epoch",
            save_strategy="no",  # the supervisor's checkpoints resume bit for bit
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Sorting(2048, seed=1),
        eval_dataset=Sorting(256, seed=2),
        callbacks=[TransformersCallback()],
    )
    trainer.train()
    print(f"result: {trainer.evaluate()['eval_loss']:.6f}")


if __name__ == "__main__":
    main()
