# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer on two processes over gloo with a plan applied, and beside it in one process without.

    train_two_ranks.py FOLDER STRATEGY CHECKPOINTED     prints one JSON line; FOLDER has config.json
"""
import copy
import json
import os
import pathlib
import sys

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional

import shardwright
import shardwright.torch

STEPS, TOKENS = 3, 32


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.forwards = 0

    def forward(self, x):
        self.forwards += 1
        return x + self.down(functional.silu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config["hidden_size"]) for _ in range(config["num_hidden_layers"]))
        self.head = nn.Linear(config["hidden_size"], config["vocab_size"])

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(model, parameters, halves):
    """Losses of STEPS steps; each step takes `halves` of the ranks' sequences."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for rank in halves:
            generator = torch.Generator().manual_seed(7 * rank)  # the same every step, so that the loss falls
            tokens = torch.randint(0, 256, (1, TOKENS + 1), generator=generator)
            loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()) / len(halves)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def rank_main(rank, folder, strategy, checkpointed):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.set_num_threads(1)
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    torch.manual_seed(1)
    alone = Model(config)
    model = copy.deepcopy(alone)
    layers = list(model.layers)
    plan = shardwright.torch.from_prediction(shardwright.predict(
        model=config, cluster="dgx-h100", gpus=2, seq_len=TOKENS, strategy=strategy, ckpt_layers=checkpointed,
        stack="torch-eager", param_dtype="fp32"))
    wrapped = shardwright.torch.apply(model, plan)
    losses = torch.tensor(train(wrapped, wrapped.parameters(), [rank]))
    distributed.all_reduce(losses)
    if rank == 0:
        print(json.dumps({
            "steps": STEPS, "losses": (losses / 2).tolist(), "losses_of_one": train(alone, alone.parameters(), [0, 1]),
            "checkpointed": sum("Checkpoint" in type(layer).__name__ for layer in model.layers),
            "recomputed_forwards": sum(layer.forwards for layer in layers) - STEPS * len(layers),
            "sharded": all(type(parameter).__name__ == "DTensor" for parameter in wrapped.parameters())}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    arguments = (sys.argv[1], sys.argv[2], int(sys.argv[3]))
    multiprocessing.spawn(rank_main, arguments, nprocs=2)
