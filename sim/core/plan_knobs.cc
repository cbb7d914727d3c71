// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan_knobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/model.h"
#include "sim/core/parallel_knobs.h"
#include "sim/core/parse_number.h"
#include "sim/core/parse_value.h"

namespace shardwright {
namespace {

using Text = const std::string&;

constexpr CountRange kTokens{.least = 1, .most = 1 << 24, .binary_k = true};
constexpr CountRange kMany{1, 1 << 20};
constexpr CountRange kChunks{1, 4096};
constexpr CountRange kBuffers{1, std::numeric_limits<int>::max()};
constexpr CountRange kAhead{0, std::numeric_limits<int>::max()};

std::vector<Strategy> read_strategies(std::string_view name, Text text) {
  std::vector<Strategy> strategies;
  for (const std::string& word : split_commas(text)) {
    const std::optional<Strategy> strategy = strategy_from(word);
    if (!strategy) fail_word(name, word, strategy_names());
    if (std::find(strategies.begin(), strategies.end(), *strategy) != strategies.end()) {
      throw Error(fmt::format("{} is '{}', but it names {} twice.", name, text, word));
    }
    strategies.push_back(*strategy);
  }
  return strategies;
}

CheckpointedLayers read_checkpointed(std::string_view name, Text text) {
  if (text == "all") return {.all = true};
  const std::optional<std::int64_t> count = parse_int64(text);
  if (!count || *count < 0) {
    throw Error(fmt::format("{} is '{}', but it must be a whole number of at least 0, or all.",
                            name, text));
  }
  return {.count = *count};
}

Recomputation read_recompute(std::string_view name, Text text) {
  Plan plan;
  try {
    set_recompute(plan, text);
  } catch (const Error& error) {
    // "recompute is ...", told under the name that was used.
    const std::string sentence = error.what();
    throw Error(fmt::format("{}{}.", name, sentence.substr(sentence.find(' '))));
  }
  return {plan.recompute, plan.pieces};
}

DType read_dtype(std::string_view name, Text text) {
  const std::optional<DType> dtype = dtype_from(text);
  if (!dtype) fail_word(name, text, {"fp32", "bf16"});
  return *dtype;
}

AttentionKind read_attention(std::string_view name, Text text) {
  const std::optional<AttentionKind> attention = attention_from(text);
  if (!attention) fail_word(name, text, {"flash", "eager"});
  return *attention;
}

AllocatorKind read_allocator(std::string_view name, Text text) {
  const std::optional<AllocatorKind> allocator = allocator_from(text);
  if (!allocator) fail_word(name, text, {"native", "expandable"});
  return *allocator;
}

std::string written(std::int64_t count) {
  return fmt::format("{}", count);
}

std::string written(std::string_view word) {
  return std::string(word);
}

void take_recompute(const GivenKnobs& knobs, std::int64_t layers, Plan& plan) {
  if (knobs.recompute) {
    plan.recompute = knobs.recompute->recompute;
    plan.pieces = knobs.recompute->pieces;
    if (plan.recompute == Recompute::kNone) {
      plan.ckpt_layers = 0;
    } else if (plan.ckpt_layers == 0) {
      plan.ckpt_layers = layers;
    }
  }
  if (knobs.ckpt_layers) {
    plan.ckpt_stride = 1;
    plan.ckpt_layers = knobs.ckpt_layers->of(layers);
    if (plan.ckpt_layers > 0 && plan.recompute == Recompute::kNone && !knobs.recompute) {
      plan.recompute = Recompute::kFull;
    }
  }
  if (plan.ckpt_layers == 0) {
    plan.recompute = Recompute::kNone;
    plan.pieces = 0;
  }
}

}  // namespace

const std::vector<PlanKnob>& plan_knobs() {
  using Name = std::string_view;
  static const std::vector<PlanKnob> table = [] {
    std::vector<PlanKnob> knobs = {
        {"strategy", [](GivenKnobs& k, Name n, Text t) { k.strategies = read_strategies(n, t); },
         [](const Plan& p) { return written(name_of(p.strategy)); }},
        // 0 stands for all ranks, which the knob cannot say.
        {"shard-group",
         [](GivenKnobs& k, Name n, Text t) { k.shard_group = parse_count(n, t, kMany); },
         [](const Plan& p) { return p.shard_group > 0 ? written(p.shard_group) : std::string(); }},
        {"seq-len", [](GivenKnobs& k, Name n, Text t) { k.seq_len = parse_count(n, t, kTokens); },
         [](const Plan& p) { return written(p.seq_len); }},
        {"micro-batch",
         [](GivenKnobs& k, Name n, Text t) { k.micro_batch = parse_count(n, t, kMany); },
         [](const Plan& p) { return written(p.micro_batch); }},
        {"grad-accum",
         [](GivenKnobs& k, Name n, Text t) { k.grad_accum = parse_count(n, t, kMany); },
         [](const Plan& p) { return written(p.grad_accum); }},
        // A stride is the plan file's alone; the number of layers would undo it.
        {"ckpt-layers",
         [](GivenKnobs& k, Name n, Text t) { k.ckpt_layers = read_checkpointed(n, t); },
         [](const Plan& p) { return p.ckpt_stride == 1 ? written(p.ckpt_layers) : std::string(); }},
        {"recompute", [](GivenKnobs& k, Name n, Text t) { k.recompute = read_recompute(n, t); },
         [](const Plan& p) { return recompute_name(p); }},
        {"param-dtype", [](GivenKnobs& k, Name n, Text t) { k.param_dtype = read_dtype(n, t); },
         [](const Plan& p) { return written(name_of(p.param_dtype)); }},
        {"reduce-dtype", [](GivenKnobs& k, Name n, Text t) { k.reduce_dtype = read_dtype(n, t); },
         [](const Plan& p) { return written(name_of(p.reduce_dtype)); }},
        {"moment-dtype", [](GivenKnobs& k, Name n, Text t) { k.moment_dtype = read_dtype(n, t); },
         [](const Plan& p) { return written(name_of(p.moment_dtype)); }},
        {"buffers",
         [](GivenKnobs& k, Name n, Text t) {
           k.buffers = static_cast<int>(parse_count(n, t, kBuffers));
         },
         [](const Plan& p) { return written(p.buffers); }},
        {"prefetch",
         [](GivenKnobs& k, Name n, Text t) {
           k.prefetch = static_cast<int>(parse_count(n, t, kAhead));
         },
         [](const Plan& p) { return written(p.prefetch); }},
        {"attention", [](GivenKnobs& k, Name n, Text t) { k.attention = read_attention(n, t); },
         [](const Plan& p) { return written(name_of(p.attention)); }},
        {"deterministic",
         [](GivenKnobs& k, Name n, Text t) { k.deterministic = read_switch(n, t); },
         [](const Plan& p) { return written(p.deterministic ? "on" : "off"); }},
        // What is left to the stack cannot be said by these two.
        {"loss-chunks",
         [](GivenKnobs& k, Name n, Text t) { k.loss_chunks = parse_count(n, t, kChunks); },
         [](const Plan& p) { return p.loss_chunks > 0 ? written(p.loss_chunks) : std::string(); }},
        {"allocator", [](GivenKnobs& k, Name n, Text t) { k.allocator = read_allocator(n, t); },
         [](const Plan& p) {
           return p.allocator == AllocatorKind::kStack ? std::string()
                                                       : written(name_of(p.allocator));
         }},
    };
    for (PlanKnob& knob : parallel_knobs()) knobs.push_back(knob);
    return knobs;
  }();
  return table;
}

const PlanKnob& plan_knob(std::string_view name) {
  const std::vector<PlanKnob>& knobs = plan_knobs();
  const auto found = std::find_if(knobs.begin(), knobs.end(),
                                  [&](const PlanKnob& knob) { return knob.name == name; });
  SHARDWRIGHT_CHECK(found != knobs.end(), "there is no knob '{}'", name);
  return *found;
}

std::int64_t usual_seq_len(const Model& model) {
  return std::min(Plan{}.seq_len, model.max_positions);
}

Plan with_knobs(Plan plan, const GivenKnobs& knobs, std::int64_t layers) {
  take(knobs.seq_len, plan.seq_len);
  take(knobs.micro_batch, plan.micro_batch);
  take(knobs.grad_accum, plan.grad_accum);
  take(knobs.shard_group, plan.shard_group);
  if (knobs.buffers) {
    plan.buffers = *knobs.buffers;
    plan.prefetch = plan.buffers - 1;
  }
  take(knobs.prefetch, plan.prefetch);
  if (knobs.prefetch && plan.prefetch >= plan.buffers) {
    throw Error(fmt::format(
        "prefetch is {}, but {} {} at most {} ahead of the unit that computes, expected at most {}",
        plan.prefetch, plan.buffers, plan.buffers == 1 ? "buffer holds" : "buffers hold",
        plan.buffers - 1, plan.buffers - 1));
  }
  take(knobs.param_dtype, plan.param_dtype);
  take(knobs.reduce_dtype, plan.reduce_dtype);
  take(knobs.moment_dtype, plan.moment_dtype);
  take(knobs.attention, plan.attention);
  take(knobs.loss_chunks, plan.loss_chunks);
  take(knobs.allocator, plan.allocator);
  take(knobs.deterministic, plan.deterministic);
  take_recompute(knobs, layers, plan);
  take_parallelism(knobs.parallel, plan);
  if (knobs.offload) {
    plan.offload = knobs.offload->what;
    plan.offload_layers = knobs.offload->layers;
  }
  return plan;
}

}  // namespace shardwright
