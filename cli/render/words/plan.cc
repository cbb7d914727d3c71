// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/why.h"
#include "cli/streams.h"
#include "cli/text.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/layout.h"
#include "sim/cost/cost.h"
#include "sim/uncertainty/intervals.h"

#ifndef SHARDWRIGHT_PLANNER_ONLY
#include "cli/machine/execution.h"
#endif
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/plan_knobs.h"
#include "sim/pipeline/places_free.h"
#include "sim/program/stages.h"

namespace shardwright::cli {

std::string checkpoint_words(const Plan& plan) {
  if (plan.recompute == Recompute::kNone || plan.ckpt_layers == 0) return "nothing recomputed";
  return counted(plan.ckpt_layers, "layer") + " " + recompute_name(plan);
}

std::string plan_words(const Plan& plan) {
  const Plan usual;
  // Model-parallel frameworks has one usual strategy.
  const std::string layout = model_parallel_words(plan);
  const bool named = layout.empty() || plan.strategy != Strategy::kDistributedOptimizer;
  std::string text = named ? std::string(name_of(plan.strategy)) : "";
  if (!layout.empty()) text += (named ? ", " : "") + layout;
  if (info_of(plan.strategy).hybrid && plan.shard_group > 0)
    text += fmt::format(" of {}", plan.shard_group);
  text += fmt::format(", {} x {}, {}", plan.micro_batch, plan.grad_accum, checkpoint_words(plan));
  if (plan.document_length() < plan.seq_len)
    text += fmt::format(", documents of {}", plan.packed_length);
  if (plan.buffers != usual.buffers) text += ", " + counted(plan.buffers, "buffer");
  const auto say = [&text](const auto value, const auto usually, std::string_view what) {
    if (value != usually) text += fmt::format(", {} {}", name_of(value), what);
  };
  say(plan.attention, usual.attention, "attention");
  if (plan.deterministic) text += ", deterministic";
  if (plan.loss_chunks > 1) text += fmt::format(", loss in {} pieces", plan.loss_chunks);
  say(plan.allocator, usual.allocator, "allocator");
  say(plan.param_dtype, usual.param_dtype, "parameters");
  say(plan.reduce_dtype, usual.reduce_dtype, "reduction");
  say(plan.master_dtype, usual.master_dtype, "master weights");
  say(plan.moment_dtype, usual.moment_dtype, "moments");
  return text;
}

std::string part_of_node_words(const Cluster& cluster, std::int64_t gpus) {
  const std::int64_t node = cluster.gpus_per_node;
  if (gpus <= 1 || gpus >= node || is_rack(node) || cluster.gpu.is_processor()) return "";
  return fmt::format("a part of one node: {} of its {} GPUs, with nothing beside them", gpus, node);
}

std::string needed_words(const sim::MemoryPrediction& memory) {
  return fmt::format("{:.1f} of {:.1f} GiB", gib(memory.total_bytes), gib(memory.usable_bytes));
}

std::string peak_type_words(const Gpu& gpu, const Plan& plan) {
  if (gpu.is_processor()) return "fp32";
  return fmt::format("dense {}", name_of(plan.numerics.precision));
}

std::vector<std::string> model_notes(const Model& model, std::int64_t longest) {
  std::vector<std::string> notes;
  if (!model.ignored_keys.empty()) {
    notes.push_back(fmt::format("{}: its configuration has keys that are ignored: {}", model.name,
                                fmt::join(model.ignored_keys, ", ")));
  }
  if (!model.dropout.empty()) {
    notes.push_back(
        fmt::format("{}: {}; dropout is not modelled, so its masks and their time are "
                    "not in the answer; run trains without it, by --dropout none",
                    model.name, model.dropout));
  }
  if (model.max_positions > 0 && longest > model.max_positions) {
    notes.push_back(fmt::format("{}: a sequence has {} tokens, but the model was made for {}",
                                model.name, longest, model.max_positions));
  }
  return notes;
}

void tell_notes(const Terminal& err, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) {
    fmt::print(messages(), "{} {}\n", paint(err, Style::kYellow, "note:"),
               printable(note, err.utf8));
  }
}

namespace {

/// GPUs on which runs of this stack were published.
std::vector<std::string> gpus_of(const profiles::Uncertainty& uncertainty,
                                 const std::string& stack) {
  std::vector<std::string> gpus;
  const auto seen = uncertainty.seen.find("stack on gpu");
  if (seen == uncertainty.seen.end()) return gpus;
  const std::string start = stack + " on ";
  for (const std::string& entry : seen->second) {
    if (entry.starts_with(start)) gpus.push_back(entry.substr(start.size()));
  }
  return gpus;
}

/// What one source published of a model on a GPU, with this stack, is one series.
std::int64_t series_of(const profiles::Uncertainty& uncertainty, const std::string& stack) {
  const auto cells = uncertainty.seen.find("cell");
  if (cells == uncertainty.seen.end()) return 0;
  return std::count_if(cells->second.begin(), cells->second.end(),
                       [&](const std::string& cell) { return cell.ends_with(" | " + stack); });
}

bool has_estimated_rates(const profiles::GpuCost& cost) {
  return cost.gemm.provenance.confidence == "estimate";
}

}  // namespace

std::string software_sentence(const profiles::Profile& profile) {
  // An preset is checked by its family's runs, what is only built on another stack is not.
  const bool preset = profile.stack.id.starts_with(profile.stack.family);
  const std::string& stack = preset ? profile.stack.family : profile.stack.id;
  const std::string& gpu = profile.cluster.gpu.id;
  if (profile.cluster.gpu.is_processor())
    return fmt::format("The steps are those of {} on a processor.", stack);
  std::int64_t series = series_of(profile.uncertainty, stack);
  std::vector<std::string> gpus = gpus_of(profile.uncertainty, stack);
  const profiles::ModelParallelRuns* model_parallel =
      profiles::model_parallel_uncertainty().runs_of(stack);
  if (series == 0 && model_parallel != nullptr) {
    series = model_parallel->series;
    gpus = model_parallel->gpus;
  }
  std::string text = fmt::format("The steps are those of the framework {}", stack);
  if (stack == "native") {
    text += ", this project's executor, which has never run on a GPU";
    if (series > 0) {
      text += fmt::format(
          "; {} series of published runs of a trainer like it, on {}, are all that it was "
          "checked against",
          series, fmt::join(gpus, ", "));
    }
  } else if (series > 0) {
    text += fmt::format(", checked against {} series of published runs of it on {}", series,
                        fmt::join(gpus, ", "));
  } else if (!preset && divides_models(profile.stack.parallel.features())) {
    text +=
        ", whose published runs `validate --ledger profiles/data/published/parallel.csv` scores";
  } else {
    text += ", of which no published run was predicted";
  }
  const bool has_runs = std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
  if (stack != "native" && series > 0 && !has_runs)
    text += fmt::format("; on {} it was never measured", gpu);
  if (has_estimated_rates(profile.cost)) {
    text += has_runs
                ? fmt::format("; the rates of single operations on {} are estimates", gpu)
                : fmt::format("; the rates of {} are estimates, nothing was measured on it", gpu);
  }
  return text + ".";
}

std::string strategy_software(const Plan& plan, const Stack& stack) {
  if (stack.optimizer.bucketed) return stack.id;
  return fmt::format("{} on {}", name_of(info_of(plan.strategy).software), stack.id);
}

std::string foreign_strategy_sentence(const std::vector<sim::Prediction>& predictions,
                                      const Stack& stack) {
  if (stack.optimizer.bucketed) return "";
  for (const sim::Prediction& prediction : predictions) {
    const StrategyInfo& strategy = info_of(prediction.plan.strategy);
    if (!strategy.bucketed) continue;
    return fmt::format(
        "{} is Megatron's, and is priced here with the kernels of {}, so that strategies alone are "
        "compared; --stack megatron-core prices Megatron itself.",
        strategy.name, stack.id);
  }
  return "";
}

namespace {

struct Dimension {
  std::string_view knob;
  std::string_view model_parallel, whole;  // what it does, and that it does not
  CommGroup group;
  bool communicates;
};
constexpr std::array<Dimension, 7> kDimensions = {{
    {"tp", "cuts every matrix", "Matrices stay whole", CommGroup::kTensor, true},
    {"pp", "cuts the layers into stages", "There is one stage", CommGroup::kPipeline, true},
    {"virtual-stages", "lets stages take turns in smaller chunks", "A stage is one run of layers",
     CommGroup::kPipeline, false},
    {"cp", "cuts every sequence", "Sequences stay whole", CommGroup::kContext, true},
    {"ep", "spreads the experts", "Every rank holds all experts", CommGroup::kExpert, true},
    {"etp", "cuts the experts' matrices", "Matrices of experts stay whole", CommGroup::kTensor,
     false},
    {"micro-batch", "sequences run at a time", "One sequence runs at a time", CommGroup::kTensor,
     false},
}};

std::int64_t size_of(const Plan& plan, std::string_view knob) {
  const Parallelism& p = plan.parallel;
  if (knob == "tp") return p.tp;
  if (knob == "pp") return p.pp;
  if (knob == "virtual-stages") return p.virtual_stages;
  if (knob == "cp") return p.cp;
  if (knob == "ep") return p.ep;
  if (knob == "etp") return p.etp;
  return plan.micro_batch;
}

/// "the step waits 554 ms for its messages"; of pipelines the bubble as well.
std::string price_words(const sim::Prediction& best, const Dimension& dimension) {
  std::vector<std::string> words;
  const double exposed = best.exposed_s[static_cast<std::size_t>(dimension.group)];
  if (dimension.communicates && exposed > 0)
    words.push_back(fmt::format("the step waits {} for its messages", quantity(exposed, "s")));
  if (dimension.knob == "pp" && best.pipeline.bubble > 0)
    words.push_back(
        fmt::format("its bubble is {} of the stages' time", percent(best.pipeline.bubble)));
  return fmt::format("{}", fmt::join(words, " and "));
}

/// "with 4 3.1 % slower (20 layers full)".
std::string neighbour_words(const tuner::KnobStep& step, const Plan& choice,
                            tuner::Objective objective) {
  const Plan& plan = step.judgement.prediction.plan;
  const bool recomputes = plan.recompute != choice.recompute || plan.pieces != choice.pieces ||
                          plan.ckpt_layers != choice.ckpt_layers;
  std::string words = fmt::format("with {} {}", step.to, step_words(step, objective));
  if (step.judgement.fits && recomputes) words += fmt::format(" ({})", checkpoint_words(plan));
  return words;
}

std::string dimension_sentence(const Dimension& dimension, const tuner::Tuning& tuning,
                               tuner::Objective objective) {
  const sim::Prediction& best = tuning.top.front().prediction;
  std::vector<std::string> neighbours;
  for (const tuner::KnobStep& step : tuning.steps) {
    if (step.knob == dimension.knob)
      neighbours.push_back(neighbour_words(step, best.plan, objective));
  }
  const std::int64_t size = size_of(best.plan, dimension.knob);
  if (neighbours.empty() && size == 1) return "";
  std::string text = size == 1
                         ? fmt::format("{} ({} 1)", dimension.whole, dimension.knob)
                         : fmt::format("{} {} {}", dimension.knob, size, dimension.model_parallel);
  const std::string price = size == 1 ? "" : price_words(best, dimension);
  if (!price.empty()) text += ", and " + price;
  if (!neighbours.empty()) text += fmt::format(": {}", fmt::join(neighbours, "; "));
  return text + ".";
}

}  // namespace

std::vector<std::string> model_parallel_sentences(const TuningQuestion& question,
                                                  const tuner::Tuning& tuning) {
  const tuner::Objective objective = question.criteria.objective;
  std::vector<std::string> sentences;
  for (const Dimension& dimension : kDimensions) {
    std::string sentence = dimension_sentence(dimension, tuning, objective);
    if (!sentence.empty()) sentences.push_back(std::move(sentence));
  }
  for (const tuner::KnobStep& step : tuning.steps) {
    const auto* known =
        std::find_if(kDimensions.begin(), kDimensions.end(),
                     [&](const Dimension& dimension) { return dimension.knob == step.knob; });
    if (known != kDimensions.end()) continue;
    sentences.push_back(fmt::format("Moving {} from {} to {}: {}.", step.knob, step.from, step.to,
                                    step_words(step, objective)));
  }
  return sentences;
}

std::string other_sentence(const TuningQuestion& question, const tuner::Tuning& tuning) {
  if (!tuning.other) return "";
  const tuner::OtherFramework& other = *tuning.other;
  const tuner::Objective objective = question.criteria.objective;
  if (!tuning.model_parallel)
    return fmt::format("No model-parallel plan of {} is predicted to be better.", other.stack);
  const std::string plainly = "Why not data parallelism alone: ";
  if (!other.refusal.empty()) return plainly + other.refusal + ".";
  if (other.best) {
    return plainly +
           fmt::format("its best plan on {} ({}) is {}{}.", other.stack,
                       plan_words(other.best->plan()), cost_words(objective, other.cost),
                       other.within_uncertainty
                           ? fmt::format(", less than both predictions are uncertain: whoever "
                                         "runs {} already may stay there (--stack {})",
                                         other.stack, other.stack)
                           : "");
  }
  if (!other.closest) return plainly + "nothing fits.";
  return plainly + fmt::format("nothing fits; the closest plan on {} ({}) {}.", other.stack,
                               plan_words(other.closest->prediction.plan),
                               excess_words(other.closest->excess_bytes, other.closest->thrashes));
}

std::string native_sentence(const TuningQuestion& question, const tuner::Tuning& tuning) {
  if (!tuning.native) return "";
  const tuner::NativePlan& native = *tuning.native;
  return fmt::format(
      "This program runs {} itself{}, predicted {} than the best, inside its interval: {}",
      plan_words(native.best.plan()),
      question.job.profile.cluster.gpu.is_processor() ? "" : " (not yet run on a GPU)",
      cost_words(question.criteria.objective, native.cost),
      runs_here(question.job, native.best.plan()).command);
}

std::vector<std::string> uncertainty_sentences(const tuner::Tuning& tuning) {
  std::vector<std::string> sentences;
  const sim::Prediction& best = tuning.top.front().prediction;
  sentences.push_back(fmt::format(
      "It needs the framework {}; published runs leave its step within {} to {} ({} interval).",
      best.plan.stack, quantity(best.time.interval_s[0], "s"),
      quantity(best.time.interval_s[1], "s"), percent(best.time.interval_level, 0)));
  if (tuning.usual_global_batch > 0) {
    sentences.push_back(fmt::format(
        "Nobody said how many sequences a step takes: {} were assumed, below the critical batch "
        "of a training on 20 tokens a parameter; --global-batch says another number.",
        thousands(tuning.usual_global_batch)));
  }
  return sentences;
}

std::string model_parallel_words(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  std::vector<std::string> words;
  const auto add = [&](std::string_view name, std::int64_t size) {
    if (size > 1) words.push_back(fmt::format("{} {}", name, size));
  };
  add("tp", p.tp);
  add("pp", p.pp);
  if (p.virtual_stages > 1) words.back() += fmt::format(" x {}", p.virtual_stages);
  if (p.pp_schedule) words.emplace_back(name_of(*p.pp_schedule));
  add("cp", p.cp);
  add("ep", p.ep);
  add("etp", p.etp);
  if (p.ep > 1 && p.dispatcher) words.emplace_back(name_of(*p.dispatcher));
  if (p.ep > 1 && p.ep_overlap.value_or(false)) words.emplace_back("ep overlap");
  if (p.sequence_parallel() && p.tp_overlap && *p.tp_overlap != TensorOverlap::kNone)
    words.push_back(fmt::format("{} overlap", name_of(*p.tp_overlap)));
  if (plan.numerics.precision != Precision::kBf16)
    words.emplace_back(name_of(plan.numerics.precision));
  if (plan.numerics.optimizer != Optimizer::kAdamw)
    words.emplace_back(name_of(plan.numerics.optimizer));
  const Numerics& numerics = plan.numerics;
  if (numerics.lora > 0) {
    words.push_back(
        numerics.quantize == Quantize::kNone
            ? fmt::format("lora {}", numerics.lora)
            : fmt::format("lora {} over {}", numerics.lora, name_of(numerics.quantize)));
  }
  if (words.empty()) return "";
  if (p.replica() < plan.gpus) add("dp", plan.gpus / p.replica());
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string short_layout(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  std::string text;
  const auto add = [&](std::string_view name, std::int64_t size) {
    if (size > 1) text += fmt::format("{}{}{}", text.empty() ? "" : " ", name, size);
  };
  add("tp", p.tp);
  add("pp", p.pp);
  if (p.virtual_stages > 1) text += fmt::format("x{}", p.virtual_stages);
  add("cp", p.cp);
  add("ep", p.ep);
  add("etp", p.etp);
  return text;
}

namespace {

using profiles::Provenance;

/// Of the factor of an interval, what a measurement has to take away to be named.
constexpr double kWorthMeasuring = 0.02;

/// "fitted, median error 2.9 % held out", "published", "those of h200", "an estimate".
std::string how_known(const Provenance& from) {
  if (from.confidence == "fitted" && from.held_out.n > 0)
    return fmt::format("fitted, median error {} held out", percent(from.held_out.median));
  if (from.confidence == "analogue") {
    return from.analogue_of.empty() ? "those of a related GPU" : "those of " + from.analogue_of;
  }
  return from.confidence == "estimate" ? "an estimate" : from.confidence;
}

std::string kernels_words(const profiles::Profile& profile) {
  const profiles::GpuCost& cost = profile.cost;
  std::vector<std::string> parts = {"GEMMs " + how_known(cost.gemm.provenance)};
  const std::string& kernel = profile.stack.attention_kernel;
  const auto own = cost.attention.find(kernel);
  const auto used = own != cost.attention.end() ? own : cost.attention.find("fa2");
  if (used != cost.attention.end())
    parts.push_back(
        fmt::format("attention ({}) {}", used->first, how_known(used->second.provenance)));
  parts.push_back("other kernels " + how_known(cost.memory.provenance));
  if (profile.cluster.gpus_per_node > 1)
    parts.push_back("collectives in a node " + how_known(cost.collectives.provenance));
  std::string words =
      fmt::format("rates of {}: {}", profile.cluster.gpu.id, fmt::join(parts, "; "));
  const auto sustained = cost.gemm.apart.find("sustained_factor");
  if (sustained != cost.gemm.apart.end() && sustained->second.confidence == "fitted")
    words += "; clocks under load fitted to published steps";
  return words;
}

std::string with_origin(const profiles::Profile& profile, const std::string& value,
                        const std::string& path) {
  const auto at = profile.origins.find(path);
  if (at == profile.origins.end() || at->second.source.empty()) return value + " (as given)";
  return fmt::format("{} ({}{}{})", value, at->second.source,
                     at->second.confidence.empty() ? "" : "; confidence: ", at->second.confidence);
}

std::string network_words(const profiles::Profile& profile) {
  const Cluster& cluster = profile.cluster;
  const std::string hop = cluster.net_latency_s > 0 ? duration(cluster.net_latency_s) : "nothing";
  return fmt::format(
      "{} a node; of that {}; added to each hop: {}",
      quantity(cluster.node_net_bytes_per_s(), "byte/s"),
      with_origin(profile, percent(cluster.nic_efficiency, 0), "cluster.nic_efficiency"),
      with_origin(profile, hop, "cluster.net_latency_s"));
}

/// `widened`: the interval allows for what machines of this kind were not seen to lose.
std::string scale_words(const profiles::Profile& profile, double doublings, bool widened) {
  const profiles::ScaleUncertainty& uncertainty = profiles::scale_uncertainty();
  std::string words = fmt::format("{} of a step for each doubling beyond a node, {:.3g} here",
                                  percent(profile.cost.contention.values.scale_loss), doublings);
  if (!uncertainty.known()) return words;
  const std::string& network = profile.cluster.network;
  const bool measured = uncertainty.measured(network);
  words += fmt::format(", where {} published machines lost {:.1f} to {:.1f} %; {}",
                       uncertainty.machines, std::round(1000 * uncertainty.least_loss) / 10 + 0.0,
                       100 * uncertainty.largest_loss,
                       measured          ? fmt::format("some of them on {}", network)
                       : network.empty() ? "the kind of this network is not said"
                                         : fmt::format("none of them on {}", network));
  if (widened)
    words += fmt::format(", so the interval allows for {} a doubling",
                         percent(uncertainty.half_width(network, 1)));
  return words;
}

std::string width_words(const profiles::Profile& profile, const sim::Prediction& prediction,
                        bool widened) {
  const sim::TimePrediction& time = prediction.time;
  const double factor = time.interval_s[1] / time.iteration_s;
  if (profile.cluster.gpu.is_processor() && profile.cost.gemm.provenance.confidence == "estimate")
    return fmt::format("a factor of {:.3g}, as processors differ; nobody measured this one",
                       factor);
  const auto& calibrated = profile.calibrated_half_width;
  const char* whose = "published runs, predicted as a stranger's,";
  if (std::any_of(calibrated.begin(), calibrated.end(), [](double width) { return width > 0; }))
    whose = "the measurements that it was calibrated on, each left out";
  if (time.anchored) whose = "published runs like one that was measured, as here";
  std::string words = fmt::format("a factor of {:.3g}: how far {} of 10 steps of {} were off{}",
                                  factor, std::lround(10 * time.interval_level), whose,
                                  widened ? ", and what the scale adds" : "");
  const std::vector<NoveltyWords> added = novelty_words(profile, prediction);
  double squares = 0;
  for (const NoveltyWords& axis : added) squares += axis.adds * axis.adds;
  for (const NoveltyWords& axis : added) {
    // What the others leave: the width without this axis is the root of the rest.
    const double without = std::exp(std::sqrt(std::max(0.0, squares - axis.adds * axis.adds)));
    if (factor - without < kWorthMeasuring || axis.axis == name_of(profiles::WidthAxis::kSource))
      continue;
    words += fmt::format("; {}: without that {:.3g}, by {}", axis.what, without, axis.measure);
  }
  return words;
}

std::string memory_words(const profiles::Profile& profile, const sim::Prediction& prediction) {
  const sim::MemoryPrediction& memory = prediction.memory;
  const char* how = "every tensor and the allocator replayed";
  if (prediction.memory.estimates_fragmentation) {
    how = "tensors of the fullest stage as they live and die, fragmentation estimated";
  } else if (profile.stack.memory == MemoryManager::kStatic) {
    how = "every tensor at its place in planned arenas";
  }
  if (profile.uncertainty.memory.more == 0)
    return fmt::format("{}; no peak was ever measured", how);
  return fmt::format("{}; {} to {} with what published peaks were off", how,
                     bytes(memory.interval_bytes[0]), bytes(memory.interval_bytes[1]));
}

}  // namespace

std::vector<NumberOrigin> number_origins(const profiles::Profile& profile,
                                         const sim::Prediction& prediction) {
  const Cluster& cluster = profile.cluster;
  const Plan& plan = prediction.plan;
  std::vector<NumberOrigin> origins = {{"kernels", kernels_words(profile)}};
  const double doublings = sim::doublings_beyond_node(cluster, plan.gpus);
  const bool scaled = !profile.stack.optimizer.bucketed && sim::scale_factor(profile, plan) > 1;
  const bool widened = prediction.time.scale_half_width > 0;
  if (doublings > 0) {
    origins.push_back({"network", network_words(profile)});
    if (scaled) origins.push_back({"scale", scale_words(profile, doublings, widened)});
  }
  if (prediction.time.interval_s[1] > prediction.time.iteration_s)
    origins.push_back({"interval", width_words(profile, prediction, widened)});
  origins.push_back({"memory", memory_words(profile, prediction)});
  if (cluster.usd_per_gpu_hour > 0 && !cluster.price_note.empty()) {
    origins.push_back({"price", fmt::format("{:.2f} USD per GPU hour: {}", cluster.usd_per_gpu_hour,
                                            cluster.price_note)});
  }
  origins.push_back(
      {"to change it",
       fmt::format("a measured step of yours (`anchor`) narrows the interval, a traced one "
                   "(`calibrate`) replaces these rates; `--explain` says what bounds the step, "
                   "`inspect cluster {}` each value's source",
                   cluster.id)});
  return origins;
}

namespace {

using profiles::WidthAxis;

constexpr double kLeastShown = 5e-4;  // of a half-width: a twentieth of a percent

std::string class_of(WidthAxis axis, const profiles::Profile& profile,
                     const sim::Prediction& prediction) {
  const Plan& plan = prediction.plan;
  const std::string& gpu = profile.cluster.gpu.id;
  switch (axis) {
    case WidthAxis::kSource:
      return prediction.time.novelty <= profiles::Novelty::kStackOnGpu
                 ? "runs like it are published"
                 : "nobody published such a run";
    case WidthAxis::kModelClass:
      return "an MoE model";
    case WidthAxis::kPrecision:
      return fmt::format("{} on {}", name_of(plan.numerics.precision), gpu);
    case WidthAxis::kGpu:
      return profile.cost.gemm.provenance.confidence == "estimate" &&
                     !profiles::novelty_widths().ran_on(profile.cluster.gpu.architecture)
                 ? fmt::format("rates of {} are estimates", gpu)
                 : fmt::format("few or no published steps on {}", gpu);
    case WidthAxis::kFramework:
      return fmt::format("few or no published steps of {} with such plans", profile.stack.family);
    case WidthAxis::kSize:
      return "larger than any published run";
    case WidthAxis::kHost:
      return "layers quicker than any published ones: the host may not keep up";
    case WidthAxis::kRouting:
      return "loads of experts that nobody measured";
    case WidthAxis::kScale:
      return fmt::format("{} GPUs on several nodes", plan.gpus);
    case WidthAxis::kOrder:
      return "kernels of equal priority in either order";
    case WidthAxis::kRetries:
      return "the allocator empties its cache within a step";
  }
  return {};
}

std::string measure_of(WidthAxis axis) {
  switch (axis) {
    case WidthAxis::kSource:
    case WidthAxis::kModelClass:
    case WidthAxis::kFramework:
      return "a step of this model and framework on one node (anchor)";
    case WidthAxis::kPrecision:
    case WidthAxis::kGpu:
      return "a traced step on one node (calibrate)";
    case WidthAxis::kSize:
    case WidthAxis::kScale:
      return "steps on two numbers of nodes";
    case WidthAxis::kHost:
      return "a traced step (calibrate): what its launches take on this host";
    case WidthAxis::kRouting:
      return "how many tokens each expert takes, layer by layer";
    case WidthAxis::kOrder:
    case WidthAxis::kRetries:
      return "a step of this plan";
  }
  return {};
}

}  // namespace

std::vector<NoveltyWords> novelty_words(const profiles::Profile& profile,
                                        const sim::Prediction& prediction) {
  std::vector<NoveltyWords> words;
  const profiles::AddedWidths& added = prediction.time.added_half_widths;
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (added[i] < kLeastShown) continue;
    const auto axis = static_cast<WidthAxis>(i);
    words.push_back(
        {name_of(axis), class_of(axis, profile, prediction), added[i], measure_of(axis)});
  }
  std::stable_sort(words.begin(), words.end(),
                   [](const NoveltyWords& a, const NoveltyWords& b) { return a.adds > b.adds; });
  return words;
}

namespace {

/// In single quotes where a shell would read it otherwise.
std::string quoted(const std::string& word) {
  const bool plain = word.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789-_./,") == std::string::npos;
  if (plain && !word.empty()) return word;
  std::string text = "'";
  for (const char letter : word)
    text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

std::string command_of(const sim::Job& inputs, const Plan& plan) {
  const Plan usual;
  std::string command =
      fmt::format("shardwright run --model {} --ranks {}", quoted(inputs.model_name), plan.gpus);
  for (const std::string_view name :
       {"strategy",    "shard-group", "seq-len",        "micro-batch",   "grad-accum",
        "ckpt-layers", "recompute",   "param-dtype",    "reduce-dtype",  "moment-dtype",
        "buffers",     "prefetch",    "precision",      "fp8-recipe",    "tp",
        "sp",          "pp",          "virtual-stages", "pp-schedule",   "pp-layout",
        "rank-order",  "sum-shape",   "master-dtype",   "deterministic", "loss-chunks"}) {
    const PlanKnob& knob = plan_knob(name);
    const std::string value = knob.write(plan);
    const bool says = name == "strategy" || name == "seq-len" || name == "param-dtype";
    if (!value.empty() && (says || value != knob.write(usual)))
      command += fmt::format(" --{} {}", name, value);
  }
  if (!inputs.model.dropout.empty()) command += " --dropout none";
  return command + " --data FILE";
}

}  // namespace

RunsHere runs_here(const sim::Job& inputs, const Plan& plan) {
  RunsHere here;
  Plan told = plan;
  told.grad_accum = sim::telling_micro_batches(plan);
  try {
    [[maybe_unused]] const sim::StepProgram step =
        sim::proven_step(inputs.model, told, profiles::load_stack(std::string(kOwnStack)).stack,
                         inputs.profile.cluster.gpus_per_node);
    here.command = command_of(inputs, plan);
#ifdef SHARDWRIGHT_PLANNER_ONLY
    here.why_not_here = "this build plans alone, expected one that runs, too (SHARDWRIGHT_RUN=ON)";
#else
    here.why_not_here = why_not_here(execution_offer(), plan, step.stages);
#endif
  } catch (const Error& error) {
    here.why_not = error.what();
  }
  return here;
}

nlohmann::ordered_json runs_here_json(const RunsHere& here) {
  return {{"possible", here.possible()},
          {"command", text_or_null(here.command)},
          {"why_not", text_or_null(here.why_not)},
          {"why_not_here", text_or_null(here.why_not_here)}};
}

}  // namespace shardwright::cli
