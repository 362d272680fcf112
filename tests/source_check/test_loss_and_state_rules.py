"""Rules about losses, formulas, checkpoints, evaluation and what was left on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.source_check.checking import expected, found_in, program

PROGRAMS = {
    "accumulation without division": """
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            loss.backward()  # expect: accumulation-without-division
            if (i + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "accumulation with division": """
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            loss = loss / accumulation
            loss.backward()
            if (i + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "accumulation by a framework that divides": """
        for i, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if (i + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "a sum of losses with their graphs": """
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss * len(x)  # expect: loss-keeps-graph
        """,
    "sums of numbers, and of losses that are trained together": """
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
            with torch.no_grad():
                total += loss
        for x, y in loader:
            optimizer.zero_grad()
            joint = 0
            for head in heads:
                joint += F.cross_entropy(head(x), y)
            joint.backward()
            optimizer.step()
        """,
    "a softmax that the loss takes again": """
        class Trainer:
            def __init__(self):
                self.criterion = nn.CrossEntropyLoss()

            def loss(self, x, y):
                probabilities = self.model(x).softmax(dim=1)
                return self.criterion(probabilities, y)  # expect: softmax-before-cross-entropy
        """,
    "losses of what they ask for": """
        def losses(x, y):
            one = F.cross_entropy(x, F.softmax(y, dim=1))
            two = F.nll_loss(F.log_softmax(x, dim=1), y)
            three = F.binary_cross_entropy(torch.sigmoid(x), y)
            return one + two + three
        """,
    "a sigmoid that the loss takes again": """
        def loss(x, y):
            return nn.BCEWithLogitsLoss()(  # expect: sigmoid-before-bce-with-logits
                torch.sigmoid(x), y
            )
        """,
    "a likelihood of probabilities": """
        def loss(x, y):
            return F.nll_loss(F.softmax(x, dim=1), y)  # expect: nll-without-log
        """,
    "logarithms of probabilities": """
        def loss(x, y):
            p = F.softmax(x, dim=1)
            q = torch.sigmoid(y)
            return p.gather(1, y).log() + (1 - q).log()  # expect: log-without-epsilon
        """,
    "logarithms that are guarded": """
        def loss(x):
            p = F.softmax(x, dim=1)
            q = p.clamp(min=1e-6)
            return torch.log(p + 1e-8) + torch.log(q) + F.log_softmax(x, dim=1)
        """,
    "a logarithm of a sum of exponentials": """
        def loss(x):
            return torch.exp(x).sum(1).log()  # expect: logsumexp-by-hand
        """,
    "a logarithm of a shifted sum of exponentials": """
        def loss(x):
            shifted = x - x.max(dim=1, keepdim=True).values
            return shifted.exp().sum(1).log() + torch.logsumexp(x, 1)
        """,
    "a logarithm of a sum over nothing": """
        def loss(x):
            if x.numel() == 0:
                return torch.exp(x).sum(1).log()
            return torch.logsumexp(x, 1)
        """,
    "logarithms that tests compare with": """
        def module_inputs(make):
            return make(reference_fn=lambda m, i: i.sigmoid().log())

        def log_sigmoid_reference_fn(i):
            return i.sigmoid().log()
        """,
    "a direction whose length is a feature of its own": """
        def forward(self, between, centre, other):
            distance = torch.norm(between, dim=1, keepdim=True)
            direction = between / distance
            bonds = centre - other
            lengths = torch.norm(bonds, dim=1)
            bonds = bonds / lengths[:, None]
            return self.radial(distance), direction, bonds, self.basis(lengths)
        """,
    "a direction whose length is no feature": """
        def forward(self, between):
            length = torch.norm(between, dim=1, keepdim=True)
            return between / length  # expect: unguarded-normalisation
        """,
    "roots of what can be zero": """
        def loss(x, y):
            distance = torch.sqrt(((x - y) ** 2).sum(1))  # expect: sqrt-at-zero
            return distance.mean() + torch.sqrt(F.mse_loss(x, y))  # expect: sqrt-at-zero
        """,
    "roots that are guarded or read": """
        def loss(x, y):
            distance = torch.sqrt(((x - y) ** 2).sum(1) + 1e-12)
            print(torch.sqrt(F.mse_loss(x, y)).item())
            return distance.mean()

        @torch.no_grad()
        def rmse(x, y):
            return torch.sqrt(F.mse_loss(x, y))
        """,
    "unguarded normalisation": """
        def normalise(x):
            mean, std = x.mean(), x.std()
            first = (x - mean) / std  # expect: unguarded-normalisation
            second = (x - x.mean(0)) / torch.sqrt(x.var(0))  # expect: unguarded-normalisation
            return first + second + x / x.norm(dim=-1)  # expect: unguarded-normalisation
        """,
    "guarded normalisation": """
        def normalise(x, mean, std):
            first = (x - x.mean()) / (x.std() + 1e-6)
            second = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
            length = x.norm()
            third = x / length if length > 0 else x
            return first + second + third + (x - mean) / std
        """,
    "a checkpoint without the optimizer": """
        for epoch in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            state = {"epoch": epoch, "model": model.state_dict()}
            torch.save(state, "run.pt")  # expect: checkpoint-without-optimizer
        """,
    "bare weights called a checkpoint": """
        for epoch in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            path = f"checkpoint_{epoch}.pt"
            torch.save(model.state_dict(), path)  # expect: checkpoint-without-optimizer
        """,
    "weights with the options they were trained with": """
        opt = parser.parse_args()
        for epoch in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            torch.save({"epoch": epoch, "settings": opt, "model": model.state_dict()}, path)
        """,
    "a checkpoint without scaler, scheduler and random numbers": """
        for epoch in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(loss_of(x, y)).backward()
                scaler.step(optimizer)
                scaler.update()
            scheduler.step()
            # expect below: checkpoint-without-scaler, checkpoint-without-scheduler
            torch.save(  # expect: checkpoint-without-rng
                {
                    "epoch": epoch,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
                "run.pt",
            )
        """,
    "a whole checkpoint, and weights to use": """
        for epoch in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            scheduler.step()
            torch.save(
                {
                    "epoch": epoch,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(),
                    "rng": torch.get_rng_state(),
                },
                "run.pt",
            )
        torch.save(model.state_dict(), "model.pt")
        """,
    "a load that runs code": """
        unsafe = torch.load("run.pt", weights_only=False)  # expect: load-runs-code
        safe = torch.load("run.pt", weights_only=True)
        default = torch.load("run.pt")
        """,
    "a model that stays in evaluation mode": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for epoch in range(9):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            model.eval()  # expect: eval-without-train
            with torch.no_grad():
                for x, y in held_out:
                    score(model(x), y)
        """,
    "a model that is put back": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(9):
            model.train()
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, y in held_out:
                    score(model(x), y)
        """,
    "an evaluation with gradients": """
        def evaluate(model, loader):
            model.eval()  # expect: eval-with-gradients
            right = 0
            for x, y in loader:
                right += (model(x).argmax(1) == y).sum().item()
            return right
        """,
    "evaluations that record nothing or are over": """
        def pseudo_labels(model, loader):
            model.eval()
            for parameter in model.parameters():
                parameter.requires_grad = False
            return [model(x) for x in loader]

        def adapt(model, loader):
            for step in loader:
                model.eval()
                model.adapt(step)
                model.train()
                keep(model(step))
        """,
    "evaluations without gradients": """
        @torch.inference_mode()
        def evaluate(model, loader):
            model.eval()
            return [model(x) for x in loader]

        def validate(model, loader):
            model.eval()
            for x in loader:
                model(x)

        def main(model, loader):
            with torch.no_grad():
                validate(model, loader)
        """,
    "anomaly detection and a sampler without epochs": """
        from torch.utils.data.distributed import DistributedSampler

        torch.autograd.set_detect_anomaly(True)  # expect: anomaly-detection-on
        sampler = DistributedSampler(data)  # expect: sampler-without-set-epoch
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        """,
    "anomaly detection around a training, and a sampler given to a loader": """
        from torch.utils.data import DataLoader, DistributedSampler

        def load(data):
            sampler = DistributedSampler(data)  # expect: sampler-without-set-epoch
            return DataLoader(data, sampler=sampler)

        with torch.autograd.detect_anomaly():  # expect: anomaly-detection-on
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        """,
    "anomaly detection that checks nothing or trains nothing, and a sampler that is looked at": """
        from torch.utils.data import DistributedSampler

        def trace(f, x):
            with torch.autograd.detect_anomaly(check_nan=False):
                return f(x)

        def compare(f, g, x):
            with torch.autograd.set_detect_anomaly(True):
                look(f, g, x)

        def padding(data):
            sampler = DistributedSampler(data)
            return len(list(iter(sampler)))

        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        """,
    "anomaly detection by an option and a sampler with epochs": """
        from torch.utils.data.distributed import DistributedSampler

        if args.debug:
            torch.autograd.set_detect_anomaly(True)
        sampler = DistributedSampler(data)
        for epoch in range(9):
            sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                first, second = losses(x, y)
                first.backward(retain_graph=True)
                second.backward()
                optimizer.step()
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_exactly_the_findings_it_announces(name: str, tmp_path: Path) -> None:
    text = program(PROGRAMS[name])

    found = found_in(tmp_path, text)

    assert found == expected(text)
