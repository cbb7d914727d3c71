# SPDX-License-Identifier: Apache-2.0
"""A plan on a real PyTorch: two processes over gloo train as one process does, with the planned layers checkpointed."""
import dataclasses
import json
import pathlib
import subprocess
import sys
import types

import pytest

import shardwright

torch = pytest.importorskip("torch")
import shardwright.torch  # noqa: E402

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 5,
          "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}
WORKER = pathlib.Path(__file__).with_name("train_two_ranks.py")


def test_a_plan_for_a_module():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = type("Config", (), {"to_dict": lambda self: CONFIG})()
    plan = shardwright.torch.plan_for(Module(), cluster="dgx-h100", gpus=8, seq_len=64)
    assert plan.strategy in shardwright.torch.STRATEGIES and plan.gpus == 8 and plan.micro_batch >= 1
    assert 0 <= plan.ckpt_layers <= 5
    best = plan.tuning.best.prediction.inputs.plan
    assert (plan.ckpt_layers, plan.strategy, plan.micro_batch) == (best.ckpt_layers, best.strategy, best.micro_batch)


def test_a_large_model_needs_checkpoints():
    config = json.loads((pathlib.Path(shardwright.__file__).parent / "data/models/llama-3-70b.json").read_text())
    plan = shardwright.torch.plan_for(config, cluster="dgx-h100", gpus=64, seq_len=8192)
    assert plan.ckpt_layers > 0 and plan.strategy.startswith(("fsdp2", "hsdp"))
    assert sum(plan.checkpointed(layer) for layer in range(80)) == plan.ckpt_layers


def test_what_cannot_be_put_on_a_model_is_refused():
    with pytest.raises(shardwright.InputError, match="zero3"):
        shardwright.torch.from_prediction(shardwright.predict(model="llama-3-8b", cluster="dgx-h100", strategy="zero3"))
    with pytest.raises(shardwright.InputError, match="carries no configuration"):
        shardwright.torch.plan_for(torch.nn.Linear(2, 2), cluster="dgx-h100")
    plan = shardwright.torch.from_prediction(shardwright.predict(model=CONFIG, cluster="dgx-h100", gpus=2, seq_len=64, strategy="fsdp2"))
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(5))
    with pytest.raises(shardwright.InputError, match="has 1 ranks, but the plan was made for 2"):
        shardwright.torch.apply(torch.nn.ModuleDict({"layers": layers}), plan)
    with pytest.raises(shardwright.InputError, match="has 4 layers, but the plan was made for 5"):
        shardwright.torch.apply(torch.nn.ModuleDict({"layers": layers[:4]}), plan)


class Ends(torch.nn.Module):
    """Embedding, layers and head, as models of Transformers tell them."""

    def __init__(self, tied):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256, bias=False)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(5))
        if tied:
            self.head.weight = self.embed.weight
        self.get_input_embeddings, self.get_output_embeddings = lambda: self.embed, lambda: self.head


def plan_of_yafsdp(strategy):
    return shardwright.torch.from_prediction(shardwright.predict(
        model=CONFIG, cluster="dgx-h100", gpus=1, seq_len=64, strategy=strategy, ckpt_layers=2, recompute="full"))


@pytest.mark.parametrize("strategy, tied, units", [("yafsdp", False, 8), ("yafsdp-zero2", True, 6)])
def test_what_yafsdp_is_told(monkeypatch, strategy, tied, units):
    """YaFSDP runs on CUDA alone: in its place stand the two names of its release 2 with their parameters."""
    told = []

    @dataclasses.dataclass(frozen=True)
    class MixedPrecisionPolicy:
        param_dtype: object = None
        reduce_dtype: object = None

    def fully_shard(module, *, mesh=None, reshard_after_forward=True, mp_policy=MixedPrecisionPolicy(), ignored_params=None):
        told.append((module, mesh, reshard_after_forward, mp_policy))
        return module

    monkeypatch.setitem(sys.modules, "ya_fsdp", types.SimpleNamespace(MixedPrecisionPolicy=MixedPrecisionPolicy, fully_shard=fully_shard))
    model = Ends(tied)
    assert shardwright.torch.apply(model, plan_of_yafsdp(strategy)) is model
    assert len(told) == units and told[-1][0] is model
    assert (told[0][0] is model.embed) == (not tied)
    assert {(mesh, reshard) for _, mesh, reshard, _ in told} == {(None, strategy == "yafsdp")}
    assert {policy.param_dtype for *_, policy in told} == {torch.bfloat16}
    assert sum("Checkpoint" in type(module).__name__ for module, *_ in told) == 2


def test_without_yafsdp_its_plans_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "ya_fsdp", None)
    with pytest.raises(shardwright.Missing, match="no release 2 of YaFSDP"):
        shardwright.torch.apply(Ends(False), plan_of_yafsdp("yafsdp"))


@pytest.mark.parametrize("strategy, checkpointed", [("fsdp2", 3), ("fsdp2-noreshard", 0), ("ddp", 5)])
def test_two_ranks_train_as_one(tmp_path, strategy, checkpointed):
    """Losses of three steps, equal to those of one process on both halves of each batch."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = subprocess.run([sys.executable, str(WORKER), str(tmp_path), strategy, str(checkpointed)], capture_output=True, text=True,
                          timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["checkpointed"] == checkpointed
    assert said["sharded"] == (strategy != "ddp")
    assert said["recomputed_forwards"] == checkpointed * said["steps"]
    for mine, theirs in zip(said["losses"], said["losses_of_one"]):
        assert abs(mine - theirs) < 1e-5
    assert said["losses"][-1] < said["losses"][0]
