"""pytorch-metric-learning: triplet margin with a miner, a cross-batch memory, an accuracy calculator."""
import torch
from pytorch_metric_learning import distances, losses, miners, reducers

torch.manual_seed(0)
x = torch.randn(300, 10); y = (x[:, :3].argmax(1))
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
distance = distances.CosineSimilarity(); miner = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
criterion = losses.CrossBatchMemory(losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducers.ThresholdReducer(low=0)), embedding_size=8, memory_size=100, miner=miner)
proxies = losses.ProxyAnchorLoss(3, 8); opt = torch.optim.Adam([*net.parameters(), *proxies.parameters()], 1e-2)
for epoch in range(8):
    for k in torch.randperm(300).split(30):
        z = net(x[k]); loss = criterion(z, y[k]) + 0.1 * proxies(z, y[k]); opt.zero_grad(); loss.backward(); opt.step()
    print(epoch, loss.item(), flush=True)
torch.save({"net": net.state_dict(), "proxies": proxies.state_dict()}, "net.pt")
