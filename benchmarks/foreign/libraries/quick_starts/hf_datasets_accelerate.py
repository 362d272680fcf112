"""datasets and Accelerate: a mapped, shuffled data set in torch's format, accumulation, checkpoints of its own."""
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from datasets import Dataset, disable_caching

disable_caching(); set_seed(0)
rows = Dataset.from_dict({"x": torch.randn(320, 8).tolist()}).map(lambda row: {"y": sum(row["x"][:3])}).shuffle(seed=1).with_format("torch")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_config=ProjectConfiguration("out", automatic_checkpoint_naming=True, total_limit=2))
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)); opt = torch.optim.AdamW(net.parameters(), 1e-2); loader = torch.utils.data.DataLoader(rows, 16, shuffle=True)
schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, 60); net, opt, loader, schedule = accelerator.prepare(net, opt, loader, schedule)
for epoch in range(6):
    for batch in loader:
        with accelerator.accumulate(net):
            loss = (net(batch["x"]) - batch["y"][:, None]).pow(2).mean(); accelerator.backward(loss)
            if accelerator.sync_gradients: accelerator.clip_grad_norm_(net.parameters(), 1.0)
            opt.step(); schedule.step(); opt.zero_grad()
    print(epoch, loss.item(), flush=True); accelerator.save_state()
torch.save(accelerator.unwrap_model(net).state_dict(), "net.pt")
