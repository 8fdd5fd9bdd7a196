"""An independent federated continual recommender: one user at a time, plain autograd loops.

Written from the equations of the F³CRec paper (sections 3.2, 4.2, 4.3) and the published
descriptions of its baselines. It imports nothing of `coterie.continual`: a user holds a whole copy
of the item table, and torch differentiates the loss as it is printed.
"""

import math

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

Samples = list[tuple[int, float]]  # one batch: (item, label)


def score(model, params, table, items):
    """Logits of some items for one user."""
    rows = table[items]
    if model.name == "fedmf":
        return rows @ params["user"]
    if model.name == "pfedrec":
        return rows @ params["weight"] + params["bias"]
    both = torch.cat([params["user"].expand(rows.shape[0], -1), rows], 1)
    weight = torch.cat([params["w_user"], params["w_item"]])
    return both @ weight + params["bias"]


def learning_rates(model, n_items):
    """Learning rate of each private parameter, and of the items, as the public code has them."""
    scale = n_items if model.item_lr_scale == "num_items" else 1
    if model.name == "fedmf":
        return {"user": model.lr}, model.lr * scale
    large = model.lr * model.lr_eta
    if model.name == "pfedrec":
        return {"weight": model.lr, "bias": model.lr}, large * scale
    head = {"w_user": model.lr, "w_item": model.lr, "bias": model.lr}
    return head | {"user": large}, large * scale


def expand(batches, n_users):
    """Explicit batches of every user, in their order."""
    users = [[] for _ in range(n_users)]
    bounds = batches.offsets.tolist()
    for owner, first, last in zip(batches.owner.tolist(), bounds, bounds[1:], strict=False):
        items, labels = batches.item[first:last].tolist(), batches.label[first:last].tolist()
        samples: Samples = list(zip(items, labels, strict=True))
        users[owner].append(samples)
    return users


def train_user(model, params, table, batches, soft=None, penalty=None):
    """ClientUpdate of Algorithm 1 for one user.

    Args:
        model: settings of the backbone.
        params: private parameters of the user.
        table: ``(n, d)`` item table received.
        batches: samples of each batch.
        soft: (step, scores of all items) -> list of (item, target, weight), cross entropies that
            are added to the loss of this step.
        penalty: (params, table) -> a term of the loss.

    Returns:
        change of the table, new parameters, mean BCE and mean number of soft terms of the batches.
    """
    rates, item_lr = learning_rates(model, table.shape[0])
    q = table.clone()
    params = {name: value.clone() for name, value in params.items()}
    everything = torch.arange(table.shape[0])
    losses, counts = [], []
    for number, samples in enumerate(batches):
        items = torch.tensor([item for item, _ in samples])
        labels = torch.tensor([label for _, label in samples], dtype=table.dtype)
        terms = soft(number, score(model, params, q, everything)) if soft else []

        def loss(phi, local, items=items, labels=labels, terms=terms):
            total = bce(score(model, phi, local, items), labels)
            for item, target, weight in terms:
                s = score(model, phi, local, torch.tensor([item]))
                total = total + weight * bce(s, s.new_tensor([target]), reduction="sum")
            return total if penalty is None else total + penalty(phi, local)

        losses.append(bce(score(model, params, q, items), labels))
        counts.append(len(terms))
        if model.name == "pfedrec":  # the head first, then items by a fresh forward
            params = _descend_params(loss, params, q, rates)
            q = _descend_items(loss, params, q, item_lr)
        else:
            stepped = _descend_params(loss, params, q, rates)
            q = _descend_items(loss, params, q, item_lr)
            params = stepped
    n = max(len(batches), 1)
    return q - table, params, float(sum(losses)) / n, sum(counts) / n


def _descend_params(loss, params, q, rates):
    leaf = {name: value.clone().requires_grad_() for name, value in params.items()}
    gradients = torch.autograd.grad(loss(leaf, q), list(leaf.values()), allow_unused=True)
    return {
        name: value if g is None else value - rates[name] * g
        for (name, value), g in zip(params.items(), gradients, strict=True)
    }


def _descend_items(loss, params, q, item_lr):
    leaf = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(params, leaf), [leaf])
    return q - item_lr * gradient


def rank(scores, item):
    """1 = the best: one more than the number of items that score higher."""
    return 1 + sum(s > scores[item] for s in scores)


def adaptive_size(scores, listed, epsilon):
    """Eq. 2 to 4: Δ, δ = exp(-ε Δ), and m = ⌊δ N⌋."""
    shift = sum(abs(rank(scores, item) - k) for k, item in enumerate(listed, 1))
    return shift, math.floor(math.exp(-epsilon * shift) * len(listed))


def distillation(replay, listed, taught, draw=None):
    """The soft terms of one user: λ_KD times Eq. 5, its mean or sum, with or without the minus.

    Args:
        replay: settings.
        listed: S_u in the order of the old ranking.
        taught: the teacher's probabilities.
        draw: step -> N uniform numbers; the m smallest are the draw without replacement. None
            replays the whole list.
    """

    def terms(step, scores):
        places = range(len(listed))
        if draw is not None:
            _, m = adaptive_size(scores.tolist(), listed, replay.epsilon)
            uniform = draw(step)
            places = sorted(places, key=lambda k: uniform[k])[:m]
        weight = replay.lambda_kd if replay.sign == "minus" else -replay.lambda_kd
        if replay.reduction == "mean" and len(places):
            weight /= len(places)
        return [(listed[k], taught[k], weight) for k in places]

    return terms


def proxy_draw(spp, student, proxies, own):
    """What SPP replays for one user, {item: label}, from full rankings of the old items.

    Args:
        spp: settings.
        student: the student's scores of the old items.
        proxies: of each proxy, its scores of them, how many it draws, and a uniform number for
            each place of its ranking.
        own: the user's train items of the block, ranked last and never drawn.
    """

    def ranks(scores):
        order = sorted(range(len(scores)), key=lambda i: (i in own, -scores[i], i))
        return {item: place for place, item in enumerate(order)}

    drawn, of_student = {}, ranks(student)
    for scores, size, uniform in proxies:
        noisy = {
            item: spp.epsilon * (of_student[item] - place) - math.log(-math.log(uniform[place]))
            for item, place in ranks(scores).items()
            if place < spp.horizon and item not in own
        }
        for item in sorted(noisy, key=lambda i: -noisy[i])[:size]:
            label = 1 / (1 + math.exp(-scores[item]))
            drawn[item] = max(label, drawn.get(item, 0.0))
    return drawn


def pull(reg, old_table, start, old_user):
    """Reg's term: λ (1[u is old] R(Φ - Φ_old) + R(Q[old items] - Q_old))."""

    def squared(difference):
        total = difference.square().sum()
        return total / difference.numel() if reg.reduction == "mean" else total

    def penalty(params, table):
        total = squared(table[: old_table.shape[0]] - old_table)
        if old_user:
            total = total + sum(squared(params[name] - start[name]) for name in params)
        return reg.strength * total

    return penalty


def blend(table, old, beta, item_wise=True):
    """Eq. 8 to 10, row by row; items without a row in ``old`` stay."""
    rows = [row.clone() for row in table]
    for i in range(len(old)):
        phi = float(((old[i] - table[i]) ** 2).sum()) / math.sqrt(table.shape[1])
        gamma = beta / (1 + phi) if item_wise else beta
        rows[i] = (1 - gamma) * table[i] + gamma * old[i]
    return torch.stack(rows)
