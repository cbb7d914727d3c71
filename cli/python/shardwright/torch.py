# SPDX-License-Identifier: Apache-2.0
"""Plans for PyTorch: ask for one with plan_for(), put it on a model with apply().

    plan = shardwright.torch.plan_for(model, cluster="dgx-h100", gpus=64, seq_len=4096)
    plan.ckpt_layers, plan.strategy, plan.micro_batch
    model = shardwright.torch.apply(model, plan)        # torch.distributed is up, one process a GPU
"""
from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Mapping, Optional

from ._errors import InputError, Missing
from ._results import Prediction, Tuning
from ._verbs import tune

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

#: What apply() can put on a model with PyTorch alone.
STRATEGIES = ("single", "ddp", "fsdp2", "fsdp2-noreshard", "hsdp")
#: What it can with release 2 of YaFSDP (package ya_fsdp of yandex/YaFSDP, on CUDA).
OF_YAFSDP = ("yafsdp", "yafsdp-zero2")


def _strategies() -> "tuple[str, ...]":
    """What plan_for() searches unless told otherwise: all that can be applied here."""
    import importlib.util
    return STRATEGIES + (OF_YAFSDP if importlib.util.find_spec("ya_fsdp") else ())


@dataclasses.dataclass(frozen=True)
class TorchPlan:
    """A plan in PyTorch's terms.

    strategy: one of STRATEGIES or OF_YAFSDP; gpus: ranks it was made for; shard_group: ranks that share one copy of the parameters
    (0: all); micro_batch: sequences a rank takes at a time; grad_accum: micro-batches of an optimizer step; ckpt_layers:
    layers that recompute everything, every ckpt_stride-th from the first on; param_dtype and reduce_dtype: "bf16" or
    "fp32"; prediction: its time and memory; tuning: the search that found it.
    """

    strategy: str
    gpus: int
    shard_group: int
    micro_batch: int
    grad_accum: int
    ckpt_layers: int
    ckpt_stride: int
    param_dtype: str
    reduce_dtype: str
    prediction: Prediction
    tuning: Optional[Tuning] = None

    def checkpointed(self, layer: int) -> bool:
        """Whether this layer, counted from 0, recomputes."""
        return layer % self.ckpt_stride == 0 and layer // self.ckpt_stride < self.ckpt_layers


def config_of(model: Any) -> Mapping[str, Any]:
    """The Hugging Face configuration of a module of Transformers, of a configuration, or of its dictionary."""
    if isinstance(model, Mapping):
        return model
    config = getattr(model, "config", model)
    if isinstance(config, Mapping):
        return config
    if hasattr(config, "to_dict"):
        found = config.to_dict()
        return {**found, "_name_or_path": getattr(config, "_name_or_path", None) or found.get("model_type", "model")}
    raise InputError(f"{type(model).__name__} carries no configuration; give the model's config.json, its dictionary, or a "
                     "configuration of Transformers as config")


def plan_for(model: Any, *, cluster: Any, gpus: Optional[int] = None, config: Any = None, **flags: Any) -> TorchPlan:
    """The best plan for `model` on `cluster` that apply() can put on it.

    model: a torch.nn.Module with a Transformers configuration (`.config`), such a configuration, its dictionary, a
    shipped name or the path of a config.json; config: the same, for a module that carries none. gpus: ranks (default:
    one node). flags: as of tune(): seq_len, global_batch, micro_batch, stack ("torch-eager" unless given), ...
    Raises Infeasible when nothing fits, with what would.
    """
    asked = model if config is None else config
    if not isinstance(asked, str) and not hasattr(asked, "__fspath__"):
        asked = config_of(asked)
    settings: dict[str, Any] = {"strategy": ",".join(_strategies()), "stack": "torch-eager", "recompute": "full", **flags}
    if gpus == 1 and "strategy" not in flags:
        settings["strategy"] = "single"
    tuning = tune(model=asked, cluster=cluster, gpus=gpus, **settings)
    return from_prediction(tuning.best.prediction, tuning)


def from_prediction(prediction: Prediction, tuning: Optional[Tuning] = None) -> TorchPlan:
    """The plan that was predicted, for apply(). Raises InputError for one that apply() cannot put on a model."""
    plan = prediction.inputs.plan
    if plan.strategy not in STRATEGIES + OF_YAFSDP:
        raise InputError(f"strategy is '{plan.strategy}', but apply() can put only {', '.join(STRATEGIES + OF_YAFSDP)} on a model")
    for knob in ("tp", "pp", "cp", "ep"):
        if plan.get(knob, 1) > 1:
            raise InputError(f"{knob} is {plan[knob]}, but apply() divides parameters over ranks, not the model itself")
    if plan.ckpt_layers > 0 and plan.recompute != "full":
        raise InputError(f"recompute is '{plan.recompute}', but apply() checkpoints whole layers (recompute='full')")
    return TorchPlan(**{field: plan[field] for field in (
        "strategy", "gpus", "shard_group", "micro_batch", "grad_accum", "ckpt_layers", "ckpt_stride", "param_dtype",
        "reduce_dtype")}, prediction=prediction, tuning=tuning)


def load(path: Any) -> TorchPlan:
    """The plan of a file that `shardwright tune --out` wrote."""
    from ._verbs import predict
    return from_prediction(predict(plan=path))


def layers_of(model: "nn.Module") -> "nn.ModuleList":
    """The transformer's layers: the longest list of modules of one kind."""
    from torch import nn
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len({type(one) for one in module}) == 1]
    if not lists:
        raise InputError(f"{type(model).__name__} has no torch.nn.ModuleList of equal layers, expected one as in models of "
                         "Transformers")
    return max(lists, key=len)


def _mesh(plan: TorchPlan, ranks: int, device: str) -> "DeviceMesh":
    from torch.distributed.device_mesh import init_device_mesh
    group = plan.shard_group or ranks
    if plan.strategy != "hsdp" or group >= ranks:
        return init_device_mesh(device, (ranks,), mesh_dim_names=("shard",))
    return init_device_mesh(device, (ranks // group, group), mesh_dim_names=("replicate", "shard"))


def _units(model: "nn.Module", layers: "nn.ModuleList") -> "list[nn.Module]":
    """What YaFSDP gathers one after the other: embedding, layers, head; without the first and last where they share a
    weight or the model does not tell them."""
    ends = [getattr(model, f"get_{end}_embeddings", lambda: None)() for end in ("input", "output")]
    if None in ends or ends[0].weight is ends[1].weight:
        return list(layers)
    return [ends[0], *layers, ends[1]]


def _fully_shard_yafsdp(units: "list[nn.Module]", plan: TorchPlan, types: "Mapping[str, Any]", mesh: Optional["DeviceMesh"]) -> None:
    if plan.shard_group not in (0, plan.gpus):
        raise InputError(f"shard_group is {plan.shard_group} of {plan.gpus} GPUs, but YaFSDP shards over all of them")
    try:
        from ya_fsdp import MixedPrecisionPolicy, fully_shard  # type: ignore[import-not-found]
    except ImportError as error:
        raise Missing(f"strategy is '{plan.strategy}', but there is no release 2 of YaFSDP here ({error}); install yandex/YaFSDP, "
                      "or plan with strategy='fsdp2'") from error
    options = {"mesh": mesh, "reshard_after_forward": plan.strategy == "yafsdp",
               "mp_policy": MixedPrecisionPolicy(param_dtype=types[plan.param_dtype], reduce_dtype=types[plan.reduce_dtype])}
    for unit in units:
        fully_shard(unit, **options)


def apply(model: "nn.Module", plan: TorchPlan, *, mesh: Optional["DeviceMesh"] = None) -> "nn.Module":
    """`model` with the plan on it: its layers checkpointed, then wrapped with FSDP2 (fully_shard), YaFSDP or DDP.

    Changes `model` in place and returns what to call (for ddp a wrapper). torch.distributed must be up with as many
    ranks as the plan has GPUs, unless the strategy is "single"; mesh: another mesh of these ranks. Raises InputError
    for another number of ranks or layers, Missing for a plan of YaFSDP without its package.
    """
    import torch
    from torch import distributed
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    layers = layers_of(model)
    if len(layers) != plan.prediction.inputs.layers:
        raise InputError(f"the model has {len(layers)} layers, but the plan was made for {plan.prediction.inputs.layers}")
    ranks = distributed.get_world_size() if distributed.is_initialized() else 1
    if ranks != plan.gpus:
        raise InputError(f"torch.distributed has {ranks} ranks, but the plan was made for {plan.gpus}")
    for index, layer in enumerate(layers):
        if plan.checkpointed(index):
            layers[index] = checkpoint_wrapper(layer)
    if plan.strategy == "single":
        return model
    device = next(model.parameters()).device.type
    if plan.strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel
        return DistributedDataParallel(model)

    types = {"bf16": torch.bfloat16, "fp32": torch.float32}
    if plan.strategy in OF_YAFSDP:
        _fully_shard_yafsdp([*_units(model, layers), model], plan, types, mesh)
        return model
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    policy = MixedPrecisionPolicy(param_dtype=types[plan.param_dtype], reduce_dtype=types[plan.reduce_dtype])
    options: dict[str, Any] = {"mesh": mesh if mesh is not None else _mesh(plan, ranks, device), "mp_policy": policy,
                               "reshard_after_forward": plan.strategy != "fsdp2-noreshard"}
    for layer in layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def describe(plan: TorchPlan) -> str:
    """The plan in a line of JSON, for logs."""
    fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name not in ("prediction", "tuning")}
    return json.dumps({**fields, "iteration_time_s": plan.prediction.iteration_time_s})
