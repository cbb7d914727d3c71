// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/why.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "cli/render/text/quantity.h"

namespace shardwright::cli {
namespace {

/// "1.2 s more exposed communication", largest first, of what makes up most of the difference.
std::vector<std::string> time_lags(const sim::Prediction& plan, const sim::Prediction& choice) {
  // Per step of as many tokens.
  const double scale = tuner::tokens_per_step(choice.plan) / tuner::tokens_per_step(plan.plan);
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

std::string category_words(std::size_t category) {
  std::string name(name_of(static_cast<MemoryCategory>(category)));
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
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

}  // namespace shardwright::cli
