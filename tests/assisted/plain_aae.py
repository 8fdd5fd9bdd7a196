"""Training of the autoencoder in plain torch: dense rows, a mask, autograd, `torch.optim.Adam`."""

import torch
from torch import nn

from coterie.assisted.aae.batches import spared
from coterie.assisted.aae.cells import Inputs, Pattern
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


def dense(columns, values, n_columns):
    table = torch.zeros(len(columns), n_columns, dtype=values.dtype)
    at = 0
    for row, of_row in enumerate(columns.tolists()):
        for column in of_row:
            table[row, column] = values[at]
            at += 1
    return table


class Task:
    """Random ratings of one of several organisations, and targets of all; some rows are empty."""

    def __init__(self, rows=23, own=7, every=19, sides=(), seed=0, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        mask = torch.rand(rows, every, generator=generator) < 0.3
        mask[3] = False
        mask[rows - 1, own:] = mask[rows - 1, :own] = False
        self.places = torch.randperm(every, generator=generator)[:own]
        self.mask, self.own_mask = mask, mask[:, self.places]
        self.table = torch.randn(rows, every, generator=generator, dtype=dtype)
        stars = torch.randint(1, 6, (rows, own), generator=generator).to(dtype)
        self.values = self.table[mask]
        self.pattern = Pattern(ragged(mask), every)
        self.sides = {
            name: torch.randn(rows, 2 + place, generator=generator, dtype=dtype)
            for place, name in enumerate(sides)
        }
        columns = ragged(self.own_mask)
        self.inputs = Inputs(columns, stars[self.own_mask], own, self.sides, self.places)


def ragged(mask):
    rows, columns = mask.nonzero(as_tuple=True)
    return Ragged.from_pairs(rows, columns, len(mask))


def plain_training(module, task, batches, steps, plan, loss=None):
    """Train on the rows, dropped codes and hidden inputs of the engine's batches."""
    loss = loss or (lambda output, target: (output - target) ** 2)
    own = dense(task.inputs.columns, task.inputs.values, task.inputs.n_columns)
    adam = torch.optim.Adam(module.parameters(), lr=plan.lr, weight_decay=plan.weight_decay)
    losses = []
    for number in range(steps):
        rows, batch = batches.rows(number), batches(number)
        shown = task.own_mask[rows].clone()
        ratings = own[rows].clone()
        if plan.input_masking:  # the draws, cell by cell in the order of the rows
            key = batches._key.fold("step", number).fold("masking")
            seen = spared(key, (len(batch.ratings),), plan.input_masking)
            shown[shown.clone()] = seen
            ratings = torch.where(shown, ratings, 0.0)
        counted = task.mask[rows].clone()
        if plan.leave_out_visible:
            counted[:, task.places] &= ~shown
        sides = {name: features[rows] for name, features in task.sides.items()}
        output = module({"ratings": ratings, **sides}, batch.keep)
        value = loss(output[counted], task.table[rows][counted]).mean()
        adam.zero_grad()
        value.backward()
        if plan.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), plan.clip)
        adam.step()
        losses.append(float(value.detach()))
    return losses


KEY = Key.from_seed(5)
