"""Decisions: schedules, early stops, steps left out, parts of the model that change."""

from benchmarks.generated.part import Part

PARTS = (
    Part(
        name="plateau schedule on the evaluation",
        setup="$plateau = torch.optim.lr_scheduler.ReduceLROnPlateau($optimizer, patience=0, factor=0.7)",
        evaluation="$plateau.step($value)",
        alone="schedule",
    ),
    Part(
        name="plateau schedule on the epoch's mean",
        setup="""
            $plateau = torch.optim.lr_scheduler.ReduceLROnPlateau($optimizer, patience=0, factor=0.7)
            $summed, $count = 0.0, 0
        """,
        after="$summed += loss.item(); $count += 1",
        epoch="$plateau.step($summed / max(1, $count)); $summed, $count = 0.0, 0",
        alone="schedule",
    ),
    Part(
        name="one-cycle schedule",
        setup="$cycle = torch.optim.lr_scheduler.OneCycleLR($optimizer, 0.05, total_steps=200, cycle_momentum=False)",
        after="$cycle.step()",
        alone="schedule",
    ),
    Part(
        name="schedule of a closure",
        setup="""
            $warm = 6
            $lambda_schedule = torch.optim.lr_scheduler.LambdaLR($optimizer, lambda s: min(1.0, (s + 1) / 6))
        """,
        after="$lambda_schedule.step()",
        alone="schedule",
    ),
    Part(
        name="warm restarts",
        setup="$warmrestart = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts($optimizer, 7)",
        after="$warmrestart.step($step / 3)",
        alone="schedule",
    ),
    Part(
        name="rate by hand from the best value",
        setup="$best_value, $rate = math.inf, 0.02",
        evaluation="""
            if $value < $best_value: $best_value = $value
            else: $rate *= 0.8
            for group in $optimizer.param_groups: group["lr"] = $rate
        """,
        alone="schedule",
    ),
    Part(
        name="early stop that restores the best",
        setup="$best, $bad, $best_weights = math.inf, 0, None",
        evaluation="""
            if $value < $best - 1e-3:
                $best, $bad = $value, 0
                $best_weights = copy.deepcopy($model.state_dict())
            else:
                $bad += 1
                if $bad >= 3: $stop = True
        """,
        end="$model.load_state_dict($best_weights) if $best_weights is not None else None",
    ),
    Part(
        name="step left out by chance",
        batch="""
            if random.random() < 0.15:
                moment("left out")
                SKIP
        """,
    ),
    Part(
        name="step left out by its loss",
        setup="$left_out = 0; $threshold = 2.5",
        loss="""
            if loss.item() > $threshold:
                $left_out += 1; $threshold *= 1.1
                SKIP
        """,
        epoch="print('left out', $left_out)",
    ),
    Part(
        name="clipping by a norm that is kept",
        setup="$norms = []",
        gradient="""
            norm = nn.utils.clip_grad_norm_($model.parameters(), 1.0)
            $norms.append(norm.item())
            if len($norms) > 4 and norm > 4 * np.median($norms[-5:]): print("large norm", $step)
        """,
    ),
    Part(
        name="accumulation",
        setup="$micro = 0",
        loss="loss = loss / 2",
        gradient="""
            $micro += 1
            if $micro % 2:
                SKIP
        """,
        alone="zero",
    ),
    Part(
        name="layers unfrozen when the loss is low",
        setup="""
            $frozen = True
            for p in list($model.parameters())[:1]: p.requires_grad_(False)
        """,
        evaluation="""
            if $frozen and $value < 1.38:
                $frozen = False
                for p in $model.parameters(): p.requires_grad_(True)
                print("unfrozen", $step)
        """,
    ),
    Part(
        name="noise on the weights at a plateau",
        setup="$last_value = math.inf",
        evaluation="""
            if $value > $last_value * 0.999:
                for p in $model.parameters(): p.add_(0.01 * torch.randn_like(p))
                print("shaken", $step)
            $last_value = $value
        """,
    ),
    Part(
        name="another optimizer from a later epoch on",
        epoch="""
            if $epoch == 1:
                $optimizer = torch.optim.SGD($model.parameters(), lr=0.02, momentum=0.9)
        """,
        alone="schedule",
    ),
    Part(
        name="gradient noise",
        gradient="""
            for p in $model.parameters():
                if p.grad is not None: p.grad.add_(0.01 / ($step + 1) * torch.randn_like(p.grad))
        """,
    ),
    Part(
        name="search along a line",
        setup="$searched = 0",
        after="""
            if $step % 5 == 0:
                scale = 1.0
                with torch.no_grad():
                    while F.cross_entropy($model(x) * scale, y) > loss * 1.02 and scale > 0.2:
                        scale *= 0.7; $searched += 1
        """,
        epoch="print('searched', $searched)",
    ),
    Part(
        name="pruning by a mask",
        setup="$masks = {}",
        after="""
            if $step % 6 == 0:
                for n, p in $model.named_parameters():
                    if p.dim() > 1: $masks[n] = (p.detach().abs() > 0.02).float()
            with torch.no_grad():
                for n, p in $model.named_parameters():
                    if n in $masks: p.mul_($masks[n])
        """,
    ),
    Part(
        name="caught errors",
        setup="$errors = []",
        batch="""
            try:
                if $step % 4 == 3 and not $errors[-1:] == [$step]:
                    raise ValueError($step)
            except ValueError as error:
                $errors.append(error.args[0])
        """,
    ),
    Part(
        name="labels made by the model",
        setup="$pseudo = YV.clone(); $changed = 0",
        evaluation="""
            sure = logits.softmax(1).max(1)
            mask = sure.values > 0.5
            $changed += int((sure.indices[mask] != $pseudo[mask]).sum())
            $pseudo[mask] = sure.indices[mask]
        """,
        epoch="print('changed', $changed, $pseudo[:6].tolist())",
    ),
    Part(
        name="weights of the classes from the errors",
        setup="$class_weight = torch.ones(4)",
        loss="loss = F.cross_entropy(out, y, weight=$class_weight)",
        evaluation="""
            wrong = [(logits.argmax(1) != YV)[YV == k].float().mean().item() for k in range(4)]
            $class_weight = torch.tensor([0.5 + w for w in wrong])
            print("weights", [round(w, 4) for w in wrong])
        """,
    ),
    Part(
        name="temperature that is annealed",
        setup="$temperature = 2.0",
        loss="loss = F.cross_entropy(out / $temperature, y); $temperature = max(0.5, $temperature * 0.97)",
    ),
    Part(
        name="penalty of the second order",
        loss="""
            xr = x.clone().requires_grad_(True)
            slope, = torch.autograd.grad(F.cross_entropy($model(xr), y), xr, create_graph=True)
            loss = loss + 0.1 * slope.pow(2).sum()
        """,
        alone="second",
    ),
)
