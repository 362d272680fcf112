"""Rules about autocast, half precision and the gradient scaler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.source_check.checking import expected, found_in, program

PROGRAMS = {
    "a sound mixed-precision step": """
        scaler = GradScaler("cuda")
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            with autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        """,
    "clipping scaled gradients": """
        from torch.cuda import amp

        gradient_scale = amp.GradScaler()
        for x, y in loader:
            optimizer.zero_grad()
            with amp.autocast():
                loss = F.cross_entropy(model(x), y)
            gradient_scale.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: clip-before-unscale
            gradient_scale.step(optimizer)
            gradient_scale.update()
        """,
    "unscaling too late": """
        for x, y in loader:
            optimizer.zero_grad()
            scaled = scaler.scale(loss_of(x, y))
            scaled.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: clip-before-unscale
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        """,
    "a scaled and a plain path side by side": """
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        """,
    "paths chosen by a condition of two parts": """
        def step(engine, loss, optimizer):
            optimizer.zero_grad()
            if engine.amp and engine.scaler is not None:
                engine.scaler.scale(loss).backward()
                engine.scaler.step(optimizer)
                engine.scaler.update()
            else:
                loss.backward()
                nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)
                optimizer.step()
        """,
    "a scale that never changes": """
        for x, y in loader:
            optimizer.zero_grad()
            scaler.scale(loss_of(x, y)).backward()
            scaler.step(optimizer)  # expect: scaler-without-update
        """,
    "a step that leaves the scaler out": """
        for x, y in loader:
            optimizer.zero_grad()
            scaler.scale(loss_of(x, y)).backward()
            optimizer.step()  # expect: step-bypasses-scaler
        """,
    "FP16 without a scaler": """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):  # expect: fp16-without-scaler
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        """,
    "BF16 without a scaler": """
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        """,
    "an FP16 model that is trained": """
        def main(loader):
            model = nn.Linear(3, 3).cuda().half()  # expect: half-model-trained
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        """,
    "a BF16 model that is trained": """
        def main(net, loader):
            net.to("cuda", dtype=torch.bfloat16)  # expect: bfloat16-model-trained
            optimizer = torch.optim.AdamW(net.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
        """,
    "a BF16 model whose FP32 masters are trained": """
        def main(net, loader):
            net = net.bfloat16()
            masters = [p.detach().float().clone() for p in net.parameters()]
            optimizer = torch.optim.AdamW(masters)
            for x, y in loader:
                F.cross_entropy(net(x), y).backward()
                for master, p in zip(masters, net.parameters()):
                    master.grad, p.grad = p.grad.float(), None
                optimizer.step()
                for master, p in zip(masters, net.parameters()):
                    p.data.copy_(master)
        """,
    "an FP16 copy that is only used": """
        def main(model, loader):
            optimizer = torch.optim.AdamW(model.parameters())
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            exported = model.copy().half()

        def predict(model, x):
            model.half()
            return model(x.half())
        """,
    "a softmax and reductions in half precision": """
        def attend(scores, values):
            scores = scores.half()
            weights = torch.softmax(scores, dim=-1)  # expect: softmax-without-dtype
            total = scores.sum()  # expect: low-precision-reduction
            mean = torch.mean(values.to(torch.bfloat16))  # expect: low-precision-reduction
            return weights, total, mean
        """,
    "a softmax and reductions in FP32": """
        def attend(scores, values):
            scores = scores.half()
            weights = torch.softmax(scores, dim=-1, dtype=torch.float32)
            total = scores.sum(dtype=torch.float32)
            scores = scores.float()
            return weights, total, scores.softmax(-1), scores.mean()
        """,
    "a softmax that trusts autocast": """
        def attend(q, k):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = q @ k.transpose(-1, -2)
                return F.softmax(scores, dim=-1)  # expect: autocast-softmax-without-dtype
        """,
    "a softmax that does not": """
        def attend(q, k):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = q @ k.transpose(-1, -2)
                return F.softmax(scores.float(), dim=-1)
        """,
    "a loss outside autocast": """
        criterion = nn.CrossEntropyLoss()

        def train(model, loader, optimizer, scaler):
            for x, y in loader:
                optimizer.zero_grad()
                with autocast("cuda"):
                    output = model(x)
                loss = criterion(output, y)  # expect: loss-outside-autocast
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    "a loss outside autocast, but in FP32": """
        def train(model, loader, optimizer, scaler, criterion):
            for x, y in loader:
                optimizer.zero_grad()
                with autocast("cuda"):
                    output = model(x)
                output = output.float()
                loss = criterion(output, y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
    "binary cross entropy of probabilities under autocast": """
        class Trainer:
            def __init__(self):
                self.criterion = nn.BCELoss()

            def loss(self, x, y):
                return self.criterion(torch.sigmoid(x), y)  # expect: bce-under-autocast

            def train(self, x, y):
                with autocast("cuda"):
                    extra = F.binary_cross_entropy(x, y)  # expect: bce-under-autocast
                    return self.loss(x, y) + extra
        """,
    "binary cross entropy where autocast is off": """
        criterion = nn.BCEWithLogitsLoss()

        def loss(x, y):
            with autocast("cuda"):
                with autocast("cuda", enabled=False):
                    first = F.binary_cross_entropy(x, y)
                return first + criterion(x, y)
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_exactly_the_findings_it_announces(name: str, tmp_path: Path) -> None:
    text = program(PROGRAMS[name])

    found = found_in(tmp_path, text)

    assert found == expected(text)
