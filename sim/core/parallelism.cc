// SPDX-License-Identifier: Apache-2.0
#include "sim/core/parallelism.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/units.h"

namespace shardwright {

// Which parallel layouts exist: every size must divide what it cuts.

namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

void check_divides(std::string_view knob, std::int64_t value, std::int64_t whole,
                   std::string_view what, std::string_view otherwise = "") {
  if (whole % value == 0) return;
  throw InvalidPlan(fmt::format("{} is {}, which does not divide {} {}, expected {}{}", knob, value,
                                whole, what, nearest_divisors(value, whole), otherwise));
}

void check_sizes(const Parallelism& p) {
  const std::array<std::pair<std::string_view, std::int64_t>, 6> sizes = {
      {{"tp", p.tp},
       {"pp", p.pp},
       {"virtual_stages", p.virtual_stages},
       {"cp", p.cp},
       {"ep", p.ep},
       {"etp", p.etp}}};
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value > kMostRanks) {
      throw InvalidPlan(fmt::format("{} is {}, expected 1 to {}", name, value, kMostRanks));
    }
  }
}

void check_order(const std::string& order) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= order.size();) {
    const std::size_t end = std::min(order.find('-', at), order.size());
    words.push_back(order.substr(at, end - at));
    at = end + 1;
  }
  std::sort(words.begin(), words.end());
  if (words != std::vector<std::string>{"cp", "dp", "ep", "pp", "tp"}) {
    throw InvalidPlan(fmt::format(
        "rank_order is '{}', expected tp, cp, ep, dp and pp joined by '-', the fastest first",
        order));
  }
}

/// Only where heads are independent do tensor and context ranks share them, the latter by
/// exchanging heads for tokens (Megatron-LM core/ssm/mamba_context_parallel.py).
void check_divided_recurrence(const Parallelism& p, const Recurrence& r) {
  if (r.value_heads == 0) return;
  if (!r.divides_heads() && p.tp * p.cp > 1) {
    throw InvalidPlan(fmt::format("{} is {}, but no framework divides {}, expected 1",
                                  p.tp > 1 ? "tp" : "cp", p.tp > 1 ? p.tp : p.cp, name_of(r.kind)));
  }
  check_divides("tp", p.tp, r.key_heads, "groups of a recurrence's heads");
  if (p.cp == 1) return;
  const std::int64_t groups = r.key_heads / p.tp;
  check_divides("cp", p.cp, r.value_heads / p.tp, "heads of a recurrence on each tensor rank");
  // Mamba-2's groups are copied to as many context ranks as share their heads.
  const bool copies = r.kind == RecurrenceKind::kMamba2 && p.cp % groups == 0;
  if (!copies) check_divides("cp", p.cp, groups, "groups of a recurrence's heads");
}

/// Of the heads of attention, or of those in some layers.
void check_heads(std::int64_t tp, std::int64_t heads, std::int64_t kv_heads) {
  check_divides("tp", tp, heads, "heads");
  if (tp > kv_heads && tp % kv_heads != 0) {
    throw InvalidPlan(
        fmt::format("tp is {}, which neither divides the {} key/value heads nor is a "
                    "multiple of them, expected {}",
                    tp, kv_heads, nearest_divisors(tp, kv_heads)));
  }
  if (tp <= kv_heads) check_divides("tp", tp, kv_heads, "key/value heads");
}

bool has_mlp(const Model& model) {
  if (model.kinds.empty()) return model.expert_layers() < model.layers;
  return std::any_of(model.kinds.begin(), model.kinds.end(),
                     [](LayerKind kind) { return kind.channels == Channels::kMlp; });
}

void check_tensor(const Plan& plan, const Model& model) {
  const Parallelism& p = plan.parallel;
  check_heads(p.tp, model.heads, model.kv_heads);
  for (const LayerForm& form : model.forms) check_heads(p.tp, form.heads, form.kv_heads);
  check_divided_recurrence(p, model.recurrence);
  if (has_mlp(model)) check_divides("tp", p.tp, model.ffn, "channels of the MLP");
  if (p.sp.value_or(false) && p.tp == 1) {
    throw InvalidPlan("sp is on, but tp is 1, expected off or a larger tp");
  }
  if (p.tp_overlap.value_or(TensorOverlap::kNone) != TensorOverlap::kNone) {
    if (p.tp == 1) {
      throw InvalidPlan(fmt::format("tp_overlap is {}, but tp is 1, expected none or a larger tp",
                                    name_of(*p.tp_overlap)));
    }
    if (!p.sequence_parallel()) {
      throw InvalidPlan(fmt::format("tp_overlap is {}, but sp is off, expected none or sp on",
                                    name_of(*p.tp_overlap)));
    }
  }
  if (p.sequence_parallel()) {
    check_divides("tp", p.tp, plan.seq_len / p.cp, "tokens that sp divides", ", or sp off");
  }
}

/// Every leaf of a product that tensor ranks share is as large as the others, and a rank has whole
/// ones; of tokens and of the vocabulary, too, where ranks divide them.
void check_sum_shape(const Plan& plan, const Model& model) {
  const std::int64_t parts = plan.sum_features, tp = plan.parallel.tp;
  if (plan.sum_uses > 2) {
    throw InvalidPlan(fmt::format("sum_uses is {}, expected 1 or 2", plan.sum_uses));
  }
  if (plan.sum_uses == 1 && plan.parallel.pp > 1) {
    throw InvalidPlan(fmt::format("sum_uses is 1, but pp is {}, and stages sum apart, expected 2",
                                  plan.parallel.pp));
  }
  if (parts == 0 || parts == tp) return;
  std::vector<std::pair<std::int64_t, std::string_view>> wholes = {
      {model.heads, "heads"},
      {model.kv_heads, "key/value heads"},
      {model.ffn, "channels of the MLP"}};
  if (plan.parallel.sequence_parallel()) wholes.emplace_back(plan.seq_len, "tokens of a sequence");
  if (tp > 1) wholes.emplace_back(model.vocab, "tokens of the vocabulary");
  const auto divided = [&](std::int64_t count) {
    return std::all_of(wholes.begin(), wholes.end(),
                       [count](const auto& whole) { return whole.first % count == 0; });
  };
  // A tensor rank has one leaf or a power of two of them.
  std::vector<std::int64_t> expected = {tp};
  for (std::int64_t count = 1; count <= model.heads; count *= 2) {
    if (count != tp && count % tp == 0 && divided(count)) expected.push_back(count);
  }
  const auto refuse = [&](const std::string& why) {
    throw InvalidPlan(
        fmt::format("sum_features is {}, {} {}", parts, why, fmt::join(expected, " or ")));
  };
  if (parts % tp != 0 || !is_power_of_two(parts))
    refuse(fmt::format("but tp is {}, expected a power of two that tp divides,", tp));
  for (const auto& [whole, what] : wholes) {
    if (whole % parts != 0)
      refuse(fmt::format("which does not divide {} {}, expected", whole, what));
  }
}

void check_pipeline(const Plan& plan, const Model& model) {
  const Parallelism& p = plan.parallel;
  if (p.pp == 1) {
    if (p.virtual_stages > 1) {
      throw InvalidPlan(fmt::format("virtual_stages is {}, but pp is 1, expected 1 or a larger pp",
                                    p.virtual_stages));
    }
    return;
  }
  const PipelineInfo& schedule = info_of(p.schedule());
  if (schedule.takes_virtual_stages() && p.virtual_stages == 1) {
    throw InvalidPlan(fmt::format("pp_schedule is {}, but virtual_stages is 1, expected at least 2",
                                  schedule.name));
  }
  if (schedule.chunks == 1 && p.virtual_stages > 1) {
    throw InvalidPlan(fmt::format(
        "virtual_stages is {}, but pp_schedule is {}, expected 1 or the schedule {}",
        p.virtual_stages, schedule.name, pipeline_schedules_with([](const PipelineInfo& info) {
          return info.takes_virtual_stages();
        })));
  }
  if (schedule.chunks > 1 && p.virtual_stages > schedule.chunks) {
    throw InvalidPlan(fmt::format("virtual_stages is {}, but {} has {} chunks a stage, expected {}",
                                  p.virtual_stages, schedule.name, schedule.chunks,
                                  schedule.chunks));
  }
  const std::int64_t chunks =
      p.pp * (schedule.order == ChunkOrder::kV ? schedule.chunks : p.virtual_stages);
  // Embedding and head may count as a layer each.
  if (p.pp_layout.empty() && chunks > model.layers + 2) {
    throw InvalidPlan(
        fmt::format("pp times virtual_stages is {}, more than the {} layers, embedding and "
                    "head, expected fewer stages",
                    chunks, model.layers));
  }
}

void check_context(const Plan& plan, const Model& model) {
  const Parallelism& p = plan.parallel;
  if (p.cp == 1) return;
  // Causal balance cuts the sequence into twice as many parts.
  const bool all_to_all = p.cp_comm.value_or(ContextComm::kRing) == ContextComm::kAllToAll;
  const std::int64_t parts = all_to_all ? p.cp : 2 * p.cp;
  if (plan.seq_len % parts != 0) {
    throw InvalidPlan(
        fmt::format("cp is {}, which needs {} equal parts of a sequence of {} tokens, "
                    "expected a cp that divides it",
                    p.cp, parts, plan.seq_len));
  }
  if (all_to_all && (model.heads / p.tp) % p.cp != 0) {
    throw InvalidPlan(
        fmt::format("cp is {}, but cp_comm a2a divides the {} heads of a tensor rank, "
                    "expected {}",
                    p.cp, model.heads / p.tp, nearest_divisors(p.cp, model.heads / p.tp)));
  }
}

void check_measured(const ExpertLoad& load, const Model& model) {
  const auto refuse = [&](std::size_t measured, std::string_view of, const std::string& expected) {
    throw InvalidPlan(fmt::format("expert_load is {}, which gives the rows of {} {}, expected {}",
                                  load.file, measured, of, expected));
  };
  const std::size_t experts = load.layers->front().size(), layers = load.layers->size();
  if (experts != static_cast<std::size_t>(model.experts.count))
    refuse(experts, "experts", fmt::format("the {} of the model", model.experts.count));
  if (layers != 1 && layers != static_cast<std::size_t>(model.expert_layers()))
    refuse(layers, "layers", fmt::format("one or the {} of the model", model.expert_layers()));
}

void check_experts(const Plan& plan, const Model& model) {
  const Parallelism& p = plan.parallel;
  const Experts& e = model.experts;
  if (!model.is_moe()) {
    const auto refuse = [](std::string_view knob, std::string_view value,
                           std::string_view expected) {
      throw InvalidPlan(fmt::format("{} is {}, but the model has no experts, expected {}", knob,
                                    value, expected));
    };
    if (p.ep > 1) refuse("ep", fmt::format("{}", p.ep), "1");
    if (p.etp > 1) refuse("etp", fmt::format("{}", p.etp), "1");
    if (p.dispatcher) refuse("dispatcher", name_of(*p.dispatcher), "none");
    if (p.ep_overlap.value_or(false)) refuse("ep_overlap", "on", "off");
    if (p.expert_capacity) refuse("expert_capacity", fmt::format("{}", *p.expert_capacity), "none");
    if (p.expert_load) refuse("expert_load", to_text(*p.expert_load), "none");
    return;
  }
  check_divides("ep", p.ep, e.count, "experts");
  check_divides("etp", p.etp, e.ffn, "channels of an expert");
  if (e.shared_ffn > 0) check_divides("tp", p.tp, e.shared_ffn, "channels of the shared experts");
  if (p.expert_load && p.expert_load->layers) check_measured(*p.expert_load, model);
  if (p.tp > 1 && !p.sequence_parallel()) {
    throw InvalidPlan(
        "sp is off, but experts with tp need the tokens that sp divides, expected on");
  }
}

/// All-to-alls hide behind a micro-batch that waits for none of what they bring.
void check_expert_overlap(const Parallelism& p) {
  if (!p.ep_overlap.value_or(false)) return;
  if (p.ep == 1) throw InvalidPlan("ep_overlap is on, but ep is 1, expected off or a larger ep");
  const PipelineInfo& schedule = info_of(p.schedule());
  if (p.pp == 1 || schedule.pairs_passes) return;
  throw InvalidPlan(fmt::format(
      "ep_overlap is on, but with pp_schedule {} a stage's next micro-batch waits for the one "
      "before, expected off, pp 1 or the schedule {}",
      schedule.name,
      pipeline_schedules_with([](const PipelineInfo& info) { return info.pairs_passes; })));
}

/// What runs again or leaves the device is a part of the model.
void check_kept(const Plan& plan, const Model& model) {
  const auto pieces = [&](int set) {
    return plan.recompute == Recompute::kPieces && (plan.pieces & set) != 0;
  };
  const auto refuse = [&](std::string_view lack) {
    throw InvalidPlan(
        fmt::format("recompute is {}, but the model has no {}, expected norm, ffn or full",
                    recompute_name(plan), lack));
  };
  if (pieces(kPieceMoe | kPieceMoeActivation) && !model.is_moe()) refuse("experts");
  if (pieces(kPieceMlaUpProjection) && model.latent.kv_rank == 0) refuse("latent attention");
  if (plan.offload == Offload::kActivations && plan.recompute == Recompute::kFull &&
      plan.ckpt_layers > 0) {
    // Megatron-LM core/transformer/transformer_config.py refuses it; others keep nothing to
    // offload.
    throw InvalidPlan(
        fmt::format("offload is activations:{}, but ckpt_layers is {}, whose activations are "
                    "recomputed, expected offload none or ckpt_layers 0",
                    plan.offload_layers, plan.ckpt_layers));
  }
  if (plan.offload == Offload::kActivations && plan.offload_layers > model.layers) {
    throw InvalidPlan(
        fmt::format("offload is activations:{}, more than the {} layers, expected at most {}",
                    plan.offload_layers, model.layers, model.layers));
  }
}

void check_numerics(const Plan& plan) {
  const Numerics& n = plan.numerics;
  if (n.fp8_recipe && n.precision != Precision::kFp8) {
    throw InvalidPlan(fmt::format("fp8_recipe is {}, but precision is {}, expected precision fp8",
                                  name_of(*n.fp8_recipe), name_of(n.precision)));
  }
  if (n.fp8_params && n.precision != Precision::kFp8) {
    throw InvalidPlan(fmt::format("fp8_params is on, but precision is {}, expected precision fp8",
                                  name_of(n.precision)));
  }
  if (n.lora < 0) throw InvalidPlan(fmt::format("lora is {}, expected 0 or a rank", n.lora));
  if (n.quantize == Quantize::kNone) return;
  if (n.lora == 0) {
    throw InvalidPlan(
        fmt::format("quantize is {}, but the model itself is trained, expected lora with a "
                    "rank",
                    name_of(n.quantize)));
  }
  if (n.precision == Precision::kFp8 || n.precision == Precision::kNvfp4) {
    throw InvalidPlan(
        fmt::format("quantize is {}, but precision is {}, expected precision bf16 or fp16",
                    name_of(n.quantize), name_of(n.precision)));
  }
}

}  // namespace

void check_parallelism(const Plan& plan, const Model& model) {
  const Parallelism& p = plan.parallel;
  check_sizes(p);
  check_order(p.rank_order);
  check_numerics(plan);
  if (plan.gpus % p.replica() != 0) {
    throw InvalidPlan(
        fmt::format("gpus is {}, which tp {} times pp {} times cp {} does not divide, "
                    "expected a multiple of {}",
                    plan.gpus, p.tp, p.pp, p.cp, p.replica()));
  }
  check_tensor(plan, model);
  check_sum_shape(plan, model);
  check_pipeline(plan, model);
  check_context(plan, model);
  check_experts(plan, model);
  check_expert_overlap(plan.parallel);
  check_kept(plan, model);
  const std::int64_t dp = plan.gpus / p.replica();
  // Ranks of a context group may hold replicas of the shards.
  check_shard_group(plan, plan.shard_group == dp ? dp : dp * p.cp);
  if (plan.shard_group > 0 && (dp * p.cp) % plan.shard_group != 0) {
    throw InvalidPlan(
        fmt::format("shard_group is {}, expected a divisor of the {} ranks that hold the "
                    "same part of the model",
                    plan.shard_group, dp * p.cp));
  }
  if (p.ep > 1 || p.etp > 1) {
    check_divides("ep times etp", p.ep * p.etp, p.tp * p.cp * dp, "ranks of a stage");
  }
}

}  // namespace shardwright
