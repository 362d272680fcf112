"""Rules see through aliases, attributes of self and calls within a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.source_check.checking import expected, found_in, program

ALIASES = {
    "an import under another name, assigned to another": """
        from torch.nn.utils import clip_grad_norm_ as limit
        clip = limit
        for x, y in loader:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            clip(model.parameters(), 1.0)  # expect: clip-before-unscale
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "an optimizer under another name": """
        def train(self, loader):
            o = self.optimizer
            for x, y in loader:
                F.cross_entropy(self.model(x), y).backward()
                o.step()  # expect: missing-zero-grad
        """,
    "a function kept in an attribute": """
        class Trainer:
            def __init__(self):
                self.loss_fn = F.cross_entropy

            def loss(self, x, y):
                return self.loss_fn(torch.softmax(x, -1), y)  # expect: softmax-before-cross-entropy
        """,
    "a type kept in a name": """
        dtype = torch.float16
        def attend(x):
            return torch.softmax(x.to(dtype), -1)  # expect: softmax-without-dtype
        """,
    "a context made with partial": """
        from functools import partial
        half = partial(autocast, "cuda")
        def loss(x, y):
            with half():
                return F.binary_cross_entropy(x, y)  # expect: bce-under-autocast
        """,
    "what is unpacked from parts of one tensor": """
        def attend(self, x):
            q, k = self.both(x).half().chunk(2, -1)
            return torch.softmax(q @ k.transpose(-2, -1) / 8.0, -1)  # expect: softmax-without-dtype
        """,
    "a product with a tensor of another type": """
        def attend(self, x, scale):
            return torch.softmax(x.half() * scale, -1)
        """,
    "attributes that are made of each other": """
        class Net:
            def one(self, x):
                self.a = self.b.half() @ self.c
                return torch.softmax(self.a, -1).sum()  # expect: softmax-without-dtype

            def two(self, x):
                self.b = self.a.view(-1)
                self.c = self.two(self.b) + self.one(self.c)
                return self.c
        """,
}
CALLS = {
    "a clip in a function": """
        def limit(net):
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

        for x, y in loader:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            limit(model)  # expect: clip-before-unscale
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "a clip in a function that unscales first": """
        def limit(scaler, optimizer, net):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

        for x, y in loader:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            limit(scaler, optimizer, model)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "a mistake within a method is named there, once": """
        class Trainer:
            def apply(self, loss):
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)  # expect: clip-after-step

            def fit(self, loader):
                for x, y in loader:
                    self.apply(F.cross_entropy(self.net(x), y))
        """,
    "methods of a loop that never clears": """
        class Trainer:
            def backward(self, x, y):
                F.cross_entropy(self.net(x), y).backward()

            def update(self):
                self.opt.step()

            def fit(self, loader):
                for x, y in loader:
                    self.backward(x, y)
                    self.update()  # expect: missing-zero-grad
        """,
    "an argument that rules a branch out": """
        def backward(loss, step=True):
            loss.backward()
            if step:
                optimizer.step()

        for x, y in loader:
            optimizer.zero_grad()
            backward(F.cross_entropy(model(x), y), step=False)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            finish()
        """,
    "two optimizers given to one function": """
        def update(loss, optimizer):
            loss.backward()
            optimizer.step()

        for x in loader:
            a_optimizer.zero_grad()
            update(a_loss(x), a_optimizer)
            b_optimizer.zero_grad()
            update(b_loss(x), b_optimizer)
        """,
    "an accumulated loss that a function does not divide": """
        def backprop(loss):
            loss.backward()

        for i, (x, y) in enumerate(loader):
            backprop(F.cross_entropy(model(x), y))  # expect: accumulation-without-division
            is_last = (i + 1) % 4 == 0
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "a schedule that waits for the first epoch": """
        def epoch_of(loader):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

        for epoch in range(9):
            if epoch > 0:
                scheduler.step()
            epoch_of(loader)
        """,
    "an evaluation that leaves the model there": """
        def evaluate(net):
            net.eval()
            with torch.no_grad():
                return [net(x) for x in held_out]

        def train(net):
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
                evaluate(net)  # expect: eval-without-train
        """,
    "a handler that ends the loop": """
        for x, y in loader:
            try:
                F.cross_entropy(model(x), y).backward()
            except RuntimeError:
                optimizer.zero_grad()
                break
            optimizer.step()
            optimizer.zero_grad()
        """,
    "a scaler that another loop of the file updates": """
        def one(loader):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                scaler.step(optimizer)  # expect: scaler-without-update

        def two(loader):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(F.cross_entropy(model(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
}
VALUES = {
    "the last layer of a model": """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.main = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())

            def forward(self, x):
                return self.main(x).view(-1)

        net = Net().to("cuda")
        criterion = nn.BCEWithLogitsLoss()
        loss = criterion(net(x), y)  # expect: sigmoid-before-bce-with-logits
        """,
    "probabilities that were indexed": """
        class Policy:
            def pi(self, x):
                return F.softmax(self.head(x), dim=-1)

            def loss(self, x, a):
                return -torch.log(self.pi(x)[range(9), a]).mean()  # expect: log-without-epsilon
        """,
    "logarithms of probabilities that were indexed": """
        class Policy:
            def pi(self, x):
                return F.log_softmax(self.head(x), dim=-1)

            def loss(self, x, a):
                return -self.pi(x)[range(9), a].mean()
        """,
    "a part of a model cast in another function": """
        def build():
            model = make()
            model.decoder.attention.half()  # expect: half-model-trained
            return model

        def train(loader):
            model = build()
            optimizer = torch.optim.Adam(model.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        """,
    "a frozen part is cast, another is trained": """
        def train(loader):
            model = build()
            model.encoder.half()
            optimizer = torch.optim.Adam(model.head.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        """,
    "a function that softens for one caller only": """
        def head(x, soft=False):
            if soft:
                return torch.softmax(x, -1)
            return x

        loss = F.cross_entropy(head(x), y)
        """,
}
PROGRAMS = ALIASES | CALLS | VALUES


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_exactly_the_findings_it_announces(name: str, tmp_path: Path) -> None:
    text = program(PROGRAMS[name])

    found = found_in(tmp_path, text)

    assert found == expected(text)
