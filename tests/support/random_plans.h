// SPDX-License-Identifier: Apache-2.0
// Plans drawn at random from the table of knobs, for tests of what holds for every plan: a model, a
// framework, a number of GPUs, and values of knobs as a command line says them.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/plan_knobs.h"

namespace shardwright::testing {

struct DrawnPlan {
  std::string model, cluster, stack;
  std::int64_t gpus = 1;
  std::vector<std::pair<std::string, std::string>> knobs;  // name and value

  bool has(const std::string& knob) const;
  /// The value of a knob, or that which it has where the plan does not say it.
  std::string value(const std::string& knob, const std::string& otherwise) const;
  void set(const std::string& knob, const std::string& value);
  /// "--model M --cluster C --gpus N --stack S --tp 2 ...", the words of a command line.
  std::vector<std::string> words() const;
  std::string text() const;
};

/// What `drawn` says as a plan. Throws Error where the knobs contradict one another.
Plan plan_of(const DrawnPlan& drawn, std::int64_t layers);

/// What may be said of a knob; empty for those that this generator leaves out.
std::vector<std::string> values_of(const PlanKnob& knob);

/// The same plans for the same seed. Some of them contradict themselves: whoever asks draws again.
class RandomPlans {
 public:
  explicit RandomPlans(std::uint32_t seed) : random_(seed) {}

  DrawnPlan draw();

 private:
  std::size_t below(std::size_t count) { return random_() % count; }
  bool once_in(std::size_t count) { return below(count) == 0; }
  const std::string& one_of(const std::vector<std::string>& values) {
    return values[below(values.size())];
  }

  std::mt19937 random_;
};

/// `usual`, or as many as SHARDWRIGHT_PLANS asks for.
std::int64_t asked_plans(std::int64_t usual);

}  // namespace shardwright::testing
