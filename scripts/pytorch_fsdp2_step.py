#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times training steps of a Llama in PyTorch on the GPUs of torchrun's ranks, or on one: FSDP2 (fully_shard) with bf16
compute, fp32 master weights and reduction, fused AdamW, every layer compiled. Prints one JSON line. Not yet run on a
GPU.

  pytorch_fsdp2_step.py --config model/config.json [--seq-len 4096] [--micro-batch 1] [--steps 12]
      [--checkpoint-layers] [--all-bf16] [--no-compile]

The model is written out here, so that nothing but torch is needed and every layer is one compiled graph."""
import argparse
import json
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        size = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head = config.get("head_dim") or size // self.heads
        eps = config.get("rms_norm_eps", 1e-5)
        self.attention_norm, self.mlp_norm = Norm(size, eps), Norm(size, eps)
        self.qkv = nn.Linear(size, (self.heads + 2 * self.kv_heads) * self.head, bias=False)
        self.out = nn.Linear(self.heads * self.head, size, bias=False)
        self.gate_up = nn.Linear(size, 2 * config["intermediate_size"], bias=False)
        self.down = nn.Linear(config["intermediate_size"], size, bias=False)

    def forward(self, x, cosine, sine):
        batch, length, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, -1, self.head).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, config, length):
        super().__init__()
        self.embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = Norm(config["hidden_size"], config.get("rms_norm_eps", 1e-5))
        self.head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        if config.get("tie_word_embeddings"):
            self.head.weight = self.embedding.weight
        head = self.layers[0].head
        # The scaling of long contexts changes the angles, not the time.
        rates = 1.0 / config.get("rope_theta", 10000.0) ** (torch.arange(0, head, 2).float() / head)
        angles = torch.outer(torch.arange(length).float(), rates)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


def build(options, config, device):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtype = torch.bfloat16 if options.all_bf16 else torch.float32
    torch.manual_seed(1)
    with torch.device(device):
        model = Llama(config, options.seq_len).to(dtype)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    for index, layer in enumerate(model.layers):
        if options.checkpoint_layers:
            layer = checkpoint_wrapper(layer)
        if options.compile:
            layer = torch.compile(layer, fullgraph=True)
        model.layers[index] = layer
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a Hugging Face config.json of a Llama")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--checkpoint-layers", action="store_true", help="recompute every layer")
    parser.add_argument("--all-bf16", action="store_true", help="master weights and moments in bf16, too")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    options = parser.parse_args()
    with open(options.config) as file:
        config = json.load(file)

    for name, value in [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", "29655")]:
        os.environ.setdefault(name, value)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl")
    model = build(options, config, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = lambda logits, targets: F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    if options.compile:
        loss_of = torch.compile(loss_of)
    tokens = torch.randint(config["vocab_size"], (options.micro_batch, options.seq_len + 1), device=device)

    seconds, loss = [], None
    for _ in range(options.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    # The first steps compile.
    step_s = statistics.median(seconds[3:] or seconds)
    how = "FSDP2" + (" + compile" if options.compile else "") + (
        ", every layer recomputed" if options.checkpoint_layers else "") + (
        ", all states in bf16" if options.all_bf16 else "")
    ranks = torch.distributed.get_world_size()
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"torch": torch.__version__, "how": how, "step_s": step_s, "ranks": ranks,
                          "tokens_per_s": ranks * options.micro_batch * options.seq_len / step_s,
                          "peak_bytes": torch.cuda.max_memory_allocated(), "loss": float(loss),
                          "micro_batch": options.micro_batch}), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
