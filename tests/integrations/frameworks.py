"""Small trainings in the frameworks, each with our callback; `STOP` and `SICK` are filled in."""

DATA = """
import sys, torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
X, Y = torch.randn(64, 4), torch.randn(64, 1)
if SICK: X[:] = float("nan")
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
rows = torch.utils.data.TensorDataset(X, Y)
loader = torch.utils.data.DataLoader(rows, batch_size=16, shuffle=True)
"""

LIGHTNING = """
import lightning as L
from supervisor.integrations.lightning import LightningCallback

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, batch, index):
        return F.mse_loss(self.net(batch[0]), batch[1])
    def validation_step(self, batch, index):
        self.log("val/loss", F.mse_loss(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)
    def on_train_end(self):
        print("ended by itself at", self.global_step)

trainer = L.Trainer(
    max_epochs=6, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, logger=L.pytorch.loggers.CSVLogger("logs"),
    log_every_n_steps=1, num_sanity_val_steps=0, callbacks=[LightningCallback(STOP)],
)
trainer.fit(Module(), loader, torch.utils.data.DataLoader(rows, batch_size=64))
torch.save(model.state_dict(), sys.argv[-1])
"""

TRANSFORMERS = """
from transformers import Trainer, TrainingArguments
from supervisor.integrations.transformers import TransformersCallback

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model
    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": F.mse_loss(out, labels), "logits": out}

rows = [{"x": x, "labels": y} for x, y in zip(X, Y)]
arguments = TrainingArguments(
    "out", num_train_epochs=6, per_device_train_batch_size=16, eval_strategy="epoch",
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)
trainer = Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows,
                  callbacks=[TransformersCallback(STOP)])
trainer.train()
print("ended by itself at", trainer.state.global_step)
torch.save(model.state_dict(), sys.argv[-1])
"""

ACCELERATE = """
from accelerate import Accelerator
from supervisor.integrations.accelerate import AccelerateTracker

accelerator = Accelerator(cpu=True, log_with=AccelerateTracker())
accelerator.init_trackers("run")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(6):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"epoch": epoch, "val/loss": float(loss), "name": "no number"})
accelerator.end_training()
torch.save(model.state_dict(), sys.argv[-1])
"""

IGNITE = """
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from supervisor.integrations.ignite import IgniteHandler

optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
trainer = create_supervised_trainer(model, optimizer, F.mse_loss)
evaluator = create_supervised_evaluator(model, {"loss": Loss(F.mse_loss)})
IgniteHandler(STOP).attach(trainer, evaluator)

@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(loader)

@trainer.on(Events.COMPLETED | Events.TERMINATE)
def ended(engine):
    print("ended by itself at", engine.state.iteration)

trainer.run(loader, max_epochs=6)
torch.save(model.state_dict(), sys.argv[-1])
"""

SCRIPTS = {
    "lightning": LIGHTNING,
    "transformers": TRANSFORMERS,
    "accelerate": ACCELERATE,
    "ignite": IGNITE,
}


def training(framework: str, *, sick: bool = False, stop_at: str | None = None) -> str:
    """The script; `sick` data are NaN from the first step on."""
    text = DATA.replace("SICK", str(sick)) + SCRIPTS[framework]
    return text.replace("STOP", "" if stop_at is None else f"stop_at={stop_at!r}")
