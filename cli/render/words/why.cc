// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/why.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/render/text/quantity.h"

namespace shardwright::cli {

namespace {

/// "1.2 s more exposed communication", largest first, of what makes up most of the difference.
std::vector<std::string> time_lags(const sim::Prediction& plan, const sim::Prediction& choice) {
  // Per step of as many tokens.
  const double scale = tokens_per_step(choice.plan) / tokens_per_step(plan.plan);
  struct Lag {
    const char* name;
    double seconds;
  };
  const auto lag = [&](const char* name, double sim::TimePrediction::*part) {
    return Lag{name, scale * plan.time.*part - choice.time.*part};
  };
  std::array<Lag, 4> lags{
      lag("exposed communication", &sim::TimePrediction::exposed_communication_s),
      lag("compute", &sim::TimePrediction::compute_s),
      lag("host time", &sim::TimePrediction::host_s),
      lag("optimizer", &sim::TimePrediction::optimizer_s)};
  std::stable_sort(lags.begin(), lags.end(),
                   [](const Lag& a, const Lag& b) { return a.seconds > b.seconds; });
  const double whole = scale * plan.time.iteration_s - choice.time.iteration_s;
  std::vector<std::string> words;
  for (const Lag& one : lags) {
    if (words.size() == 2 || one.seconds <= 0.15 * whole || one.seconds <= 0) break;
    words.push_back(fmt::format("{} more {}", quantity(one.seconds, "s"), one.name));
  }
  return words;
}

double sent_bytes(const sim::Prediction& prediction) {
  return prediction.communication.total();
}

/// "parameters 131 GiB, gradients 65 GiB": what fills most of the memory.
std::string fillers(const sim::MemoryPrediction& memory) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < memory.breakdown_bytes.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return memory.breakdown_bytes[a] > memory.breakdown_bytes[b];
  });
  std::vector<std::string> words;
  for (std::size_t i = 0; i < 2 && memory.breakdown_bytes[order[i]] > 0; ++i)
    words.push_back(
        fmt::format("{} {}", category_words(order[i]), bytes(memory.breakdown_bytes[order[i]])));
  return fmt::format("{}", fmt::join(words, ", "));
}

/// "1.2 GiB more gradient buffers": the category that grows most.
std::string grown(const sim::MemoryPrediction& memory, const sim::MemoryPrediction& choice) {
  std::size_t most = 0;
  const auto growth = [&](std::size_t i) {
    return memory.breakdown_bytes[i] - choice.breakdown_bytes[i];
  };
  for (std::size_t i = 1; i < memory.breakdown_bytes.size(); ++i) {
    if (growth(i) > growth(most)) most = i;
  }
  if (growth(most) < std::max<Bytes>(1, (memory.total_bytes - choice.total_bytes) / 4)) return "";
  return fmt::format("{} more {}", bytes(growth(most)), category_words(most));
}

}  // namespace

std::string category_words(std::size_t category) {
  std::string name(name_of(static_cast<MemoryCategory>(category)));
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string cost_words(tuner::Objective objective, double cost) {
  if (std::abs(cost) < 5e-5) return "no difference";
  // Two digits that count, for small differences, too.
  const int decimals = std::abs(cost) < 0.00995 ? 2 : 1;
  const std::string share = percent(std::abs(cost), decimals);
  switch (objective) {
    case tuner::Objective::kCost:
      return share + (cost > 0 ? " dearer" : " cheaper");
    case tuner::Objective::kHeadroom:
      return share + (cost > 0 ? " more memory" : " less memory");
    case tuner::Objective::kTime:
      break;
  }
  return share + (cost > 0 ? " slower" : " faster");
}

std::string excess_words(Bytes excess_bytes, bool thrashes) {
  if (thrashes) return "fits only by emptying the allocator's cache in every step";
  return fmt::format("does not fit: {} too much", bytes(excess_bytes));
}

std::string step_words(const tuner::KnobStep& step, tuner::Objective objective) {
  std::string words = step.judgement.fits
                          ? cost_words(objective, step.cost)
                          : excess_words(step.judgement.excess_bytes, step.judgement.thrashes);
  const bool gains = step.judgement.fits && step.cost < -5e-5;
  if (gains && step.freedom == tuner::Freedom::kFixed) words += ", but it is held fixed";
  if (gains && step.freedom == tuner::Freedom::kNotAllowed)
    words += ", but it changes the arithmetic, which --allow does not list";
  if (gains && step.freedom == tuner::Freedom::kSetting)
    words += ", but it is a setting of the framework, and --allow does not list software";
  if (step.judgement.fits && step.cost < -tuner::kWorthMoving &&
      step.freedom == tuner::Freedom::kOutside)
    words += fmt::format(", but the search goes no further; --{} {} tries it", step.knob,
                         step.to.substr(0, step.to.find(' ')));
  if (gains && step.freedom == tuner::Freedom::kSearched)
    words += ", but memory does not require it";
  return words;
}

std::string held_back_words(const tuner::OtherStrategy& other, const sim::Prediction& choice) {
  if (!other.best) {
    const sim::Prediction& closest = other.closest->prediction;
    if (other.closest->thrashes) return excess_words(0, true);
    return fmt::format("at least {} too much: {}", bytes(other.closest->excess_bytes),
                       fillers(closest.memory));
  }
  const sim::Prediction& plan = other.best->prediction;
  std::vector<std::string> words = time_lags(plan, choice);
  if (words.empty()) {
    const std::string memory = grown(plan.memory, choice.memory);
    if (!memory.empty()) words.push_back(memory);
  }
  const std::int64_t layers = plan.plan.ckpt_layers - choice.plan.ckpt_layers;
  if (layers > 0 && plan.plan.recompute == choice.plan.recompute)
    words.push_back(fmt::format("{} more layers recomputed", layers));
  if (plan.plan.micro_batch < choice.plan.micro_batch)
    words.push_back(fmt::format("a micro-batch of {}", plan.plan.micro_batch));
  const double sent = sent_bytes(plan) / plan.time.tokens_per_gpu_s / plan.time.iteration_s /
                      std::max(1.0, sent_bytes(choice)) * choice.time.tokens_per_gpu_s *
                      choice.time.iteration_s;
  if (sent_bytes(choice) > 0 && sent > 1.1)
    words.push_back(fmt::format("{:.1f} times the bytes sent", sent));
  return words.empty() ? "nearly as good" : fmt::format("{}", fmt::join(words, "; "));
}

namespace {

/// Dollars for 10^12 tokens more than with balanced experts; 0 without a price.
double usd_per_trillion(const sim::Job& inputs, const sim::Prediction& prediction) {
  const double steps = 1e12 / (prediction.time.tokens_per_s * prediction.time.iteration_s);
  const double hours =
      steps * (prediction.time.iteration_s - prediction.routing->balanced_s) / 3600;
  return hours * static_cast<double>(prediction.plan.gpus) *
         inputs.profile.cluster.usd_per_gpu_hour;
}

}  // namespace

std::string routing_sentence(const sim::Job& inputs, const sim::Prediction& prediction) {
  if (!prediction.routing) return "";
  const sim::RoutingPrice& price = *prediction.routing;
  const auto load = prediction.plan.parallel.expert_load.value_or(ExpertLoad{});
  std::string text = fmt::format(
      "Expert load {}: in a layer the busiest rank has {:.2f} times the mean rows, in all {:.2f}; "
      "forced balance would take {} an iteration, {} less",
      to_text(load), price.busiest.of_layer, price.busiest.of_layers, duration(price.balanced_s),
      percent(1 - price.balanced_s / prediction.time.iteration_s));
  const Bytes more = prediction.memory.total_bytes - price.balanced_bytes;
  text += fmt::format(", and {} less memory", bytes(std::max<Bytes>(0, more)));
  const double usd = usd_per_trillion(inputs, prediction);
  if (usd > 0) text += fmt::format("; 10^12 tokens cost {} USD more so", thousands(usd));
  return text + ".";
}

nlohmann::ordered_json routing_json(const sim::Job& inputs, const sim::Prediction& prediction) {
  const sim::RoutingPrice& price = *prediction.routing;
  return {{"expert_load", to_text(prediction.plan.parallel.expert_load.value_or(ExpertLoad{}))},
          {"busiest_of_layer", price.busiest.of_layer},
          {"busiest_of_layers", price.busiest.of_layers},
          {"balanced_iteration_time_s", price.balanced_s},
          {"balanced_total_bytes", price.balanced_bytes},
          {"usd_per_trillion_tokens", usd_per_trillion(inputs, prediction)}};
}

namespace {

// bf16 weights and gradients, fp32 master weights and moments; with fp32 gradients and copies.
constexpr double kLeastOfRule = 16, kMostOfRule = 24;

constexpr std::array kStates = {MemoryCategory::kParameters, MemoryCategory::kMaster,
                                MemoryCategory::kGradients, MemoryCategory::kOptimizer};

struct Thumb {
  double parameters = 0, gpus = 1;
  Bytes states = 0;
  std::vector<std::pair<std::string, Bytes>> left_out;  // largest first
};

Thumb thumb_of(const Model& model, const sim::Prediction& prediction) {
  const sim::MemoryPrediction& memory = prediction.memory;
  Thumb thumb;
  thumb.parameters = static_cast<double>(count_parameters(model).total(model.layers));
  thumb.gpus = static_cast<double>(prediction.plan.gpus);
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const Bytes held = memory.breakdown_bytes[static_cast<std::size_t>(i)];
    if (std::find(kStates.begin(), kStates.end(), category) != kStates.end()) {
      thumb.states += held;
    } else if (held > 0) {
      thumb.left_out.emplace_back(name_of(category), held);
    }
  }
  const Bytes unused = memory.peak_reserved_bytes - memory.peak_allocated_bytes;
  if (unused > 0) thumb.left_out.emplace_back("reserved but unused", unused);
  if (memory.runtime_bytes > 0) thumb.left_out.emplace_back("runtime", memory.runtime_bytes);
  std::stable_sort(thumb.left_out.begin(), thumb.left_out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return thumb;
}

}  // namespace

std::vector<std::string> rule_of_thumb_sentences(const Model& model,
                                                 const sim::Prediction& prediction) {
  const Thumb thumb = thumb_of(model, prediction);
  std::vector<std::string> parts;
  for (const auto& [name, held] : thumb.left_out)
    parts.push_back(fmt::format("{} {}", name, bytes(held)));
  std::vector<std::string> sentences;
  sentences.push_back(fmt::format(
      "Rule of thumb: {:g} to {:g} bytes a parameter are {} to {} for the whole model, {} to {} "
      "for "
      "each of {:g} GPUs that share all of it; predicted are {} of weights, gradients and moments.",
      kLeastOfRule, kMostOfRule, bytes(kLeastOfRule * thumb.parameters),
      bytes(kMostOfRule * thumb.parameters), bytes(kLeastOfRule * thumb.parameters / thumb.gpus),
      bytes(kMostOfRule * thumb.parameters / thumb.gpus), thumb.gpus, bytes(thumb.states)));
  if (!parts.empty()) {
    sentences.push_back(fmt::format("What the rule leaves out: {}; {} in all.",
                                    fmt::join(parts, ", "), bytes(prediction.memory.total_bytes)));
  }
  return sentences;
}

nlohmann::ordered_json rule_of_thumb_json(const Model& model, const sim::Prediction& prediction) {
  const Thumb thumb = thumb_of(model, prediction);
  nlohmann::ordered_json left_out = nlohmann::ordered_json::object();
  for (const auto& [name, held] : thumb.left_out) left_out[name] = held;
  return {
      {"bytes_per_parameter", {kLeastOfRule, kMostOfRule}},
      {"whole_model_bytes", {kLeastOfRule * thumb.parameters, kMostOfRule * thumb.parameters}},
      {"evenly_shared_bytes",
       {kLeastOfRule * thumb.parameters / thumb.gpus, kMostOfRule * thumb.parameters / thumb.gpus}},
      {"predicted_states_bytes", thumb.states},
      {"left_out_bytes", std::move(left_out)},
      {"words", rule_of_thumb_sentences(model, prediction)}};
}

namespace {

/// That a rank holds at a time.
double micro_batch_tokens(const Plan& plan) {
  return static_cast<double>(plan.seq_len * plan.micro_batch) /
         static_cast<double>(plan.parallel.cp);
}

}  // namespace

std::string host_sentence(const sim::Prediction& prediction) {
  const sim::HostShare& host = prediction.host;
  const double tokens = micro_batch_tokens(prediction.plan);
  const double crossing = host.crossing_tokens(tokens);
  if (crossing <= 0) return "";
  const std::string_view regime = name_of(host.regime());
  const std::string both = fmt::format("the host issues in {} what the device does in {}",
                                       duration(host.issues_s), duration(host.device_s));
  const std::string at = fmt::format("about {} tokens a micro-batch (here {})", thousands(crossing),
                                     thousands(tokens));
  return host.regime() == sim::HostRegime::kHost
             ? fmt::format("The step is {}: {}; it keeps up from {} on.", regime, both, at)
             : fmt::format("The step is {}: {}; below {} it would be the host's.", regime, both,
                           at);
}

nlohmann::ordered_json host_json(const sim::Prediction& prediction) {
  const sim::HostShare& host = prediction.host;
  return {{"regime", name_of(host.regime())},
          {"issues_s", host.issues_s},
          {"device_s", host.device_s},
          {"waited_s", host.waited_s},
          {"crossing_tokens", host.crossing_tokens(micro_batch_tokens(prediction.plan))}};
}

}  // namespace shardwright::cli
