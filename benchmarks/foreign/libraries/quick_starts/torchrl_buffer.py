"""TorchRL: a prioritized replay buffer in lazy storage, a DQN loss with a soft target on made transitions."""
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)); actor = QValueActor(net, in_keys=["observation"], action_space="categorical")
criterion = DQNLoss(actor, action_space="categorical", delay_value=True); target = SoftUpdate(criterion, eps=0.95); criterion.make_value_estimator(gamma=0.9)
buffer = TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=LazyTensorStorage(2000), batch_size=16); opt = torch.optim.Adam(criterion.parameters(), 1e-3)
for i in range(100):
    s = torch.randn(8, 4); n = s + 0.1 * torch.randn(8, 4)
    with torch.no_grad(): a = actor(TensorDict({"observation": s}, [8]))["action"]
    done = torch.rand(8, 1) < 0.1
    buffer.extend(TensorDict({"observation": s, "action": a, "next": TensorDict({"observation": n, "reward": n.sum(1, keepdim=True), "done": done, "terminated": done}, [8])}, [8]))
    batch = buffer.sample(); loss = criterion(batch)["loss"]; opt.zero_grad(); loss.backward(); opt.step(); target.step(); buffer.update_tensordict_priority(batch)
    if i % 20 == 0: print(i, loss.item(), len(buffer), flush=True)
torch.save(net.state_dict(), "net.pt")
