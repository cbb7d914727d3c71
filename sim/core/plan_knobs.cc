// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan_knobs.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/model.h"

namespace shardwright {

namespace {

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

const PlanKnob& plan_knob(std::string_view name) {
  const std::vector<PlanKnob>& knobs = plan_knobs();
  const auto found = std::find_if(knobs.begin(), knobs.end(),
                                  [&](const PlanKnob& knob) { return knob.name == name; });
  SHARDWRIGHT_CHECK(found != knobs.end(), "there is no knob '{}'", name);
  return *found;
}

std::int64_t usual_seq_len(const Model& model, bool fine_tunes) {
  constexpr std::int64_t kMostToTrain = 8192, kMostToFineTune = 2048;
  return std::min(model.max_positions, fine_tunes ? kMostToFineTune : kMostToTrain);
}

Plan with_knobs(Plan plan, const GivenKnobs& knobs, std::int64_t layers) {
  if (knobs.buffers) plan.prefetch = *knobs.buffers - 1;
  for (const PlanKnob& knob : plan_knobs()) {
    if (knob.take) knob.take(knobs, plan);
  }
  if (knobs.prefetch && plan.prefetch >= plan.buffers) {
    throw Error(fmt::format(
        "prefetch is {}, but {} {} at most {} ahead of the unit that computes, expected at most {}",
        plan.prefetch, plan.buffers, plan.buffers == 1 ? "buffer holds" : "buffers hold",
        plan.buffers - 1, plan.buffers - 1));
  }
  take_recompute(knobs, layers, plan);
  return plan;
}

void take_parallelism(const GivenParallelism& given, Plan& plan) {
  GivenKnobs knobs;
  knobs.parallel = given;
  for (const PlanKnob& knob : plan_knobs()) {
    if (knob.divides && knob.take) knob.take(knobs, plan);
  }
}

// The table of knobs: name, column of ledgers, what --help says, what it calls the default, traits,
// range, and, where they do not follow from the type, the words that --help shows for the value.
// Rows that are read or written in a way of their own stand before it.

void knob_forms::put(nlohmann::ordered_json& object, const std::string& key,
                     const JsonValue& value) {
  std::visit([&](const auto& one) { object[key] = one; }, value);
}

namespace {

using knob_forms::make_knob;
using G = GivenKnobs;
using P = GivenParallelism;
using Q = Parallelism;
using N = Numerics;
using Given = std::string_view;  // the name by which a value was given
using Text = const std::string&;

constexpr CountRange kKnobTokens{.least = 1, .most = 1 << 24, .binary_k = true};
constexpr CountRange kKnobMany{1, 1 << 20};
constexpr CountRange kKnobBuffers{1, std::numeric_limits<int>::max()};
constexpr CountRange kKnobAhead{0, std::numeric_limits<int>::max()};
constexpr unsigned kSays = kTextSays | kFileSays;

PlanKnob strategy_knob() {
  PlanKnob knob = make_knob<&Plan::strategy>(
      {.name = "strategy",
       .otherwise = "yafsdp, distributed-optimizer on Megatron's frameworks",
       .traits = kSearched | kFileSays,
       .type = "NAME[,NAME]"});
  knob.what += "; several, joined by commas, are compared";
  knob.read = [](G& knobs, Given name, Text text) {
    knobs.strategies.clear();
    for (const std::string& word : split_commas(text)) {
      const std::optional<Strategy> strategy = strategy_from(word);
      if (!strategy) fail_word(name, word, strategy_names());
      if (std::count(knobs.strategies.begin(), knobs.strategies.end(), *strategy) > 0) {
        throw Error(fmt::format("{} is '{}', but it names {} twice.", name, text, word));
      }
      knobs.strategies.push_back(*strategy);
    }
  };
  knob.write = [](const Plan& plan) { return std::string(name_of(plan.strategy)); };
  return knob;
}

PlanKnob checkpointing_knob() {
  PlanKnob knob = make_knob<&Plan::ckpt_layers>(
      {.name = "ckpt-layers",
       .what = "checkpoint the first K layers, or all; 0 recomputes nothing",
       .otherwise = "0, all with --recompute",
       .traits = kSearched | kFileSays | kZeroInFile,
       .type = "K|all"});
  knob.read = [](G& knobs, Given name, Text text) {
    const std::optional<std::int64_t> count = parse_int64(text);
    if (text != "all" && (!count || *count < 0)) {
      throw Error(fmt::format("{} is '{}', but it must be a whole number of at least 0, or all.",
                              name, text));
    }
    knobs.ckpt_layers = CheckpointedLayers{text == "all", count.value_or(0)};
  };
  // A stride is the plan file's alone; the number of layers would undo it.
  knob.write = [](const Plan& plan) {
    return plan.ckpt_stride == 1 ? fmt::format("{}", plan.ckpt_layers) : std::string();
  };
  return knob;
}

/// A knob of several fields that is said in words. `set` is false for words that mean nothing.
PlanKnob worded_knob(const KnobFacts& facts, bool (*set)(Plan&, std::string_view),
                     std::string (*words)(const Plan&), std::string_view accepted) {
  PlanKnob knob{facts};
  knob.write = words;
  knob.from_file = [=](const JsonReader& object, Plan& plan) {
    if (object.has(facts.name) && !set(plan, object.require<std::string>(facts.name))) {
      object.fail(facts.name, accepted);
    }
  };
  knob.to_file = [=](const Plan& plan, nlohmann::ordered_json& object) {
    object[std::string(facts.name)] = words(plan);
  };
  return knob;
}

PlanKnob recompute_knob() {
  const auto set = [](Plan& plan, std::string_view words) {
    try {
      set_recompute(plan, words);
    } catch (const InvalidPlan&) {
      return false;
    }
    return true;
  };
  PlanKnob knob = worded_knob(
      {.name = "recompute",
       .what =
           "what checkpointed layers recompute: none, full, selective-op, or some of norm, swiglu, "
           "ffn, attention, block joined by commas",
       .otherwise = "none, full with --ckpt-layers",
       .traits = kSearched,
       .type = "WHAT"},
      set, recompute_name,
      "none, full, selective-op, or a list of norm, swiglu, ffn, attention, block");
  knob.read = [](G& knobs, Given name, Text text) {
    Plan plan;
    try {
      set_recompute(plan, text);
    } catch (const Error& error) {
      // "recompute is ...", told under the name that was used.
      const std::string sentence = error.what();
      throw Error(fmt::format("{}{}.", name, sentence.substr(sentence.find(' '))));
    }
    knobs.recompute = Recomputation{plan.recompute, plan.pieces};
  };
  return knob;
}

PlanKnob offload_knob() {
  PlanKnob knob = worded_knob({.name = "offload",
                               .column = "offload",
                               .what = "what the host's memory holds",
                               .otherwise = "none",
                               .type = "none|optimizer|activations:N"},
                              set_offload, offload_name,
                              "none, optimizer or activations:N, N a number of layers");
  knob.read = [](G& knobs, Given name, Text text) {
    Plan plan;
    if (!set_offload(plan, text)) fail_word(name, text, {"none", "optimizer", "activations:N"});
    knobs.offload = Offloading{plan.offload, plan.offload_layers};
  };
  knob.write = [](const Plan& plan) {
    return plan.offload == Offload::kNone ? std::string() : offload_name(plan);
  };
  knob.take = [](const G& knobs, Plan& plan) {
    if (!knobs.offload) return;
    plan.offload = knobs.offload->what;
    plan.offload_layers = knobs.offload->layers;
  };
  knob.from_row = [](const CsvRow& row, Plan& plan) {
    if (!set_offload(plan, row.text("offload"))) {
      row.fail("offload", "one of none, optimizer, activations:N");
    }
  };
  return knob;
}

/// "F,C,D,U": of features, tokens, the batch and the uses of a tied embedding; F alone is enough,
/// and the others follow the layout.
PlanKnob sum_shape_knob() {
  PlanKnob knob{
      KnobFacts{.name = "sum-shape",
                .what = "parts of sums over features, tokens and batch that give equal bits for "
                        "every tp which divides F; U is 2: the gradients of a tied embedding's "
                        "uses are summed apart, as between stages",
                .otherwise = "the layout's",
                .type = "F[,1,1[,U]]"}};
  knob.read = [](G& knobs, Given name, Text text) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string rest = text.substr(comma);
    const bool has_uses = rest == ",1,1,1" || rest == ",1,1,2";
    if (!rest.empty() && rest != ",1,1" && !has_uses) {
      throw Error(
          fmt::format("{} is {}, expected F or F,1,1 or F,1,1,U with U 1 or 2: sums over tokens "
                      "and the batch follow the layout",
                      name, text));
    }
    knobs.sum_features = parse_count(name, text.substr(0, comma), CountRange{1, 1024});
    if (has_uses) knobs.sum_uses = rest.back() == '2' ? 2 : 1;
  };
  knob.take = [](const G& knobs, Plan& plan) {
    if (knobs.sum_features) plan.sum_features = *knobs.sum_features;
    if (knobs.sum_uses) plan.sum_uses = *knobs.sum_uses;
  };
  knob.write = [](const Plan& plan) {
    if (plan.sum_uses > 0) return fmt::format("{},1,1,{}", plan.feature_parts(), plan.sum_uses);
    return plan.sum_features > 0 ? fmt::format("{}", plan.sum_features) : std::string();
  };
  knob.from_file = [](const JsonReader& object, Plan& plan) {
    if (object.has("sum_features"))
      plan.sum_features = object.require<std::int64_t>("sum_features", at_least<std::int64_t>(1));
    if (object.has("sum_uses"))
      plan.sum_uses = object.require<std::int64_t>("sum_uses", at_least<std::int64_t>(1));
  };
  knob.to_file = [](const Plan& plan, nlohmann::ordered_json& object) {
    if (plan.sum_features > 0) object["sum_features"] = plan.sum_features;
    if (plan.sum_uses > 0) object["sum_uses"] = plan.sum_uses;
  };
  return knob;
}

// Plan files say of the next two what holds, not what was given.
PlanKnob sequence_parallel_knob() {
  PlanKnob knob = make_knob<&Q::sp, &P::sp>(
      {"sp", "sp", "sequence parallel between the matrices", "on where tp > 1"});
  knob.to_file = [](const Plan& plan, nlohmann::ordered_json& object) {
    object["sp"] = plan.parallel.sequence_parallel();
  };
  return knob;
}

PlanKnob expert_load_knob() {
  PlanKnob knob{KnobFacts{.name = "expert-load",
                          .column = "routing",
                          .what =
                              "rows that experts get: balanced (forced), real (as trained routers "
                              "choose), no-aux-loss, or a file of measured loads",
                          .otherwise = "real",
                          .type = "NAME|PATH"}};
  knob.divides = true;
  knob.read = [](G& knobs, Given name, Text text) {
    knobs.parallel.expert_load = expert_load(name, text);
  };
  knob.take = [](const G& knobs, Plan& plan) {
    if (knobs.parallel.expert_load) plan.parallel.expert_load = knobs.parallel.expert_load;
  };
  knob.write = [](const Plan& plan) {
    return plan.parallel.expert_load ? to_text(*plan.parallel.expert_load) : std::string();
  };
  knob.from_file = [](const JsonReader& object, Plan& plan) {
    if (!object.has("expert_load")) return;
    try {
      plan.parallel.expert_load =
          expert_load("expert_load", object.require<std::string>("expert_load"));
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", object.file(), error.what()));
    }
  };
  knob.to_file = [](const Plan& plan, nlohmann::ordered_json& object) {
    if (plan.parallel.expert_load) object["expert_load"] = to_text(*plan.parallel.expert_load);
  };
  // Token-drop recipes pad every expert to its balanced rows.
  knob.from_row = [](const CsvRow& row, Plan& plan) {
    const std::string_view text = row.text("routing");
    if (text.empty() || text == "token-drop") return;
    if (text != "balanced" && text != "real") row.fail("routing", "balanced, real or token-drop");
    plan.parallel.expert_load = expert_load("routing", std::string(text));
  };
  return knob;
}

PlanKnob schedule_knob() {
  PlanKnob knob = make_knob<&Q::pp_schedule, &P::pp_schedule>(
      {"pp-schedule", "pp_schedule", {}, "1f1b, interleaved with virtual stages"});
  knob.to_file = [](const Plan& plan, nlohmann::ordered_json& object) {
    object["pp_schedule"] = name_of(plan.parallel.schedule());
  };
  return knob;
}

template <auto InPlan, auto InGiven>
PlanKnob size_knob(std::string_view name, std::string_view column, std::string what) {
  return make_knob<InPlan, InGiven>(
      {name, column, std::move(what), "1", kSearched | kFileSays, kKnobMany});
}

std::vector<PlanKnob> knobs_of_plans() {
  return {
      strategy_knob(), make_knob<&Plan::gpus>({"gpus", "gpus", {}, {}, kFilled | kFileSays}),
      // 0 stands for all ranks, which a flag cannot say.
      make_knob<&Plan::shard_group, &G::shard_group>(
          {.name = "shard-group",
           .what = "GPUs that share one copy of the parameters",
           .traits = kFileSays | kZeroInFile,
           .range = kKnobMany}),
      make_knob<&Plan::seq_len, &G::seq_len>(
          {"seq-len", "seq_len", "tokens of a sequence, as 4096 or 4k",
           "the model's, at most 8192; 2048 to fine-tune", kFilled | kSays, kKnobTokens}),
      make_knob<&Plan::packed_length, &G::packed_length>(
          {"packed-length", "packed_length", "mean length of documents that a sequence packs",
           "one document a sequence", 0, kKnobTokens}),
      make_knob<&Plan::micro_batch, &G::micro_batch>({"micro-batch", "micro_batch",
                                                      "sequences per GPU at a time", "1",
                                                      kSearched | kFilled | kSays, kKnobMany}),
      make_knob<&Plan::grad_accum, &G::grad_accum>({"grad-accum", "grad_accum",
                                                    "micro-batches per optimizer step", "1",
                                                    kSearched | kFilled | kSays, kKnobMany}),
      checkpointing_knob(), make_knob<&Plan::ckpt_stride>({"ckpt-stride", {}, {}, {}, kFileSays}),
      recompute_knob(),
      make_knob<&Plan::param_dtype, &G::param_dtype>(
          {"param-dtype", {}, "compute and gather", "bf16", kSays}),
      make_knob<&Plan::reduce_dtype, &G::reduce_dtype>(
          {"reduce-dtype", "reduce_dtype", "gradient reduction", "fp32", kSays}),
      make_knob<&Plan::master_dtype, &G::master_dtype>(
          {.name = "master-dtype",
           .what = "parameters that the optimizer updates, bf16 by stochastic rounding",
           .otherwise = "fp32",
           .traits = kSays}),
      make_knob<&Plan::moment_dtype, &G::moment_dtype>(
          {"moment-dtype", "optimizer_state", "Adam's moments", "fp32", kFilled | kSays}),
      make_knob<&Plan::buffers, &G::buffers>({.name = "buffers",
                                              .what = "rotating gather buffers of yafsdp",
                                              .otherwise = "2",
                                              .traits = kSearched | kSays,
                                              .range = kKnobBuffers}),
      make_knob<&Plan::prefetch, &G::prefetch>({.name = "prefetch",
                                                .what = "units gathered ahead, at most buffers - 1",
                                                .otherwise = "all",
                                                .traits = kSays | kZeroInFile,
                                                .range = kKnobAhead}),
      make_knob<&Plan::attention, &G::attention>(
          {"attention", "attention", "attention kernel", "flash", kSearched | kFilled | kSays}),
      offload_knob(), make_knob<&Plan::stack>({"stack", {}, {}, {}, kFileSays}),
      make_knob<&Plan::deterministic, &G::deterministic>(
          {"deterministic",
           {},
           "on: equal bits every time on GPUs, too; attention adds in one order",
           "off",
           kTextSays}),
      sum_shape_knob(),
      // What is left to the stack cannot be said by these two.
      make_knob<&Plan::loss_chunks, &G::loss_chunks>(
          {"loss-chunks", "loss_chunks", "pieces in which logits and loss are computed",
           "as the framework does", 0, CountRange{1, 4096}}),
      make_knob<&Plan::allocator, &G::allocator>(
          {"allocator", "allocator", "PyTorch's allocator, or with expandable segments",
           "as the framework sets it"})};
}

std::vector<PlanKnob> knobs_of_layout() {
  return {
      size_knob<&Q::tp, &P::tp>("tp", "tp", "tensor parallel: ranks that share every matrix"),
      sequence_parallel_knob(),
      size_knob<&Q::pp, &P::pp>("pp", "pp", "pipeline stages"),
      size_knob<&Q::virtual_stages, &P::virtual_stages>("virtual-stages", "vpp",
                                                        "chunks of a stage"),
      schedule_knob(),
      make_knob<&Q::pp_layout, &P::pp_layout>(
          {.name = "pp-layout",
           .column = "pp_layout",
           .what = "what each stage holds, as Megatron writes it: \"Et*3|(tt|)*29m|L\"",
           .otherwise = "equal stages",
           .type = "TEXT"}),
      size_knob<&Q::cp, &P::cp>("cp", "cp", "context parallel: ranks that share every sequence"),
      make_knob<&Q::cp_comm, &P::cp_comm>({"cp-comm", "cp_comm", {}, "the stack's"}),
      size_knob<&Q::ep, &P::ep>("ep", "ep", "expert parallel: ranks that share the experts"),
      size_knob<&Q::etp, &P::etp>("etp", "etp", "tensor parallel of the experts"),
      make_knob<&Q::dispatcher, &P::dispatcher>({"dispatcher", "dispatcher", {}, "the stack's"}),
      make_knob<&Q::ep_overlap, &P::ep_overlap>(
          {"ep-overlap", "ep_overlap", "all-to-alls hide behind another micro-batch", "off"}),
      make_knob<&Q::expert_capacity, &P::expert_capacity>(
          {.name = "expert-capacity",
           .what =
               "rows an expert takes at most, of the balanced number; further tokens pass it by",
           .otherwise = "all that come"}),
      expert_load_knob(),
      make_knob<&Q::tp_overlap, &P::tp_overlap>({"tp-overlap", "tp_overlap", {}, "the stack's"}),
      make_knob<&Q::overlap_grad_reduce>({"overlap-grad-reduce", "overlap_grad_reduce"}),
      make_knob<&Q::overlap_param_gather>({"overlap-param-gather", "overlap_param_gather"}),
      make_knob<&Q::cuda_graphs, &P::cuda_graphs>(
          {"cuda-graphs", {}, "what CUDA graphs hold, the rest being launched", "the stack's"}),
      make_knob<&Q::rank_order, &P::rank_order>({.name = "rank-order",
                                                 .what = "order of the ranks, the fastest first",
                                                 .otherwise = Q::kUsualOrder,
                                                 .traits = kFileSays,
                                                 .type = "A-B-C-D-E"}),
      make_knob<&N::precision, &P::precision>(
          {"precision", "precision", "what layers multiply in", "bf16", kFileSays}),
      make_knob<&N::fp8_recipe, &P::fp8_recipe>(
          {"fp8-recipe", "fp8_recipe", {}, "tensorwise in fp8"}),
      make_knob<&N::fp8_params, &P::fp8_params>(
          {"fp8-params", "fp8_params", "parameters are kept and gathered in fp8", "off"}),
      make_knob<&N::optimizer, &P::optimizer>({"optimizer", {}, {}, "adamw", kFileSays}),
      make_knob<&N::lora, &P::lora>({.name = "lora",
                                     .what = "train adapters of this rank only",
                                     .otherwise = "the model itself",
                                     .traits = kZeroInFile,
                                     .range = kKnobMany,
                                     .type = "RANK"}),
      make_knob<&N::quantize, &P::quantize>(
          {"quantize", {}, "keep the weights that adapters leave frozen in fewer bits", "none"})};
}

}  // namespace

const std::vector<PlanKnob>& plan_knobs() {
  static const std::vector<PlanKnob> table = [] {
    std::vector<PlanKnob> knobs = knobs_of_plans();
    const std::vector<PlanKnob> more = knobs_of_layout();
    knobs.insert(knobs.end(), more.begin(), more.end());
    return knobs;
  }();
  return table;
}

}  // namespace shardwright
