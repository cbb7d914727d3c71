// SPDX-License-Identifier: Apache-2.0
// What holds for the memory of every plan that is predicted.

#include <cstdlib>
#include <memory>
#include <tuple>
#include <utility>

#include "sim/memory/memory.h"
#include "tests/sim/prediction.h"
#include "tests/support/invariant.h"
#include "tests/support/random_plans.h"

namespace shardwright::sim::plans {
namespace {

using testing::DrawnPlan;
using testing::Invariant;
using testing::RandomPlans;

constexpr std::int64_t kPlans = 250;

/// One for each model, cluster and framework.
Predictor& predictor_of(const DrawnPlan& drawn) {
  static std::map<std::tuple<std::string, std::string, std::string>, std::unique_ptr<Predictor>>
      known;
  std::unique_ptr<Predictor>& found = known[{drawn.model, drawn.cluster, drawn.stack}];
  if (!found) {
    found = std::make_unique<Predictor>(shipped(drawn.model),
                                        profiles::load_profile(drawn.cluster, drawn.stack));
  }
  return *found;
}

std::optional<Prediction> predicted(const DrawnPlan& drawn) {
  try {
    Predictor& predictor = predictor_of(drawn);
    return predictor.predict(testing::plan_of(drawn, predictor.model().layers));
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Of a plan with so many micro-batches a step.
std::optional<MemoryPrediction> memory_of(DrawnPlan drawn, std::int64_t micro_batches) {
  drawn.set("grad-accum", fmt::format("{}", micro_batches));
  const std::optional<Prediction> prediction = predicted(drawn);
  return prediction ? std::optional(prediction->memory) : std::nullopt;
}

std::string words_of(const MemoryPrediction& memory) {
  return fmt::format("{} allocated, {} reserved, {} in all", memory.peak_allocated_bytes,
                     memory.peak_reserved_bytes, memory.total_bytes);
}

/// Calls `judge(drawn)` for plans that are predicted until it has said `invariant` enough.
template <typename Takes, typename Judge>
void for_plans(std::uint32_t seed, std::int64_t plans, Takes&& takes, Judge&& judge) {
  RandomPlans random(seed);
  const std::int64_t asked = testing::asked_plans(plans);
  for (std::int64_t tried = 0, draws = 0; tried < asked && draws < 200 * asked; ++draws) {
    DrawnPlan drawn = random.draw();
    takes(drawn);
    tried += judge(drawn) ? 1 : 0;
  }
}

const auto in_stages = [](DrawnPlan& drawn) {
  drawn.gpus = std::max<std::int64_t>(drawn.gpus, 8);
  drawn.set("pp", drawn.gpus > 8 ? "4" : "2");
  if (drawn.value("strategy", "") == "single") drawn.set("strategy", "ddp");
};
const auto in_one_stage = [](DrawnPlan& drawn) {
  for (const char* knob : {"pp", "virtual-stages", "pp-schedule"})
    std::erase_if(drawn.knobs, [&](const auto& one) { return one.first == knob; });
};

TEST(PlanInvariants, EveryKnobIsDrawn) {
  for (const PlanKnob& knob : plan_knobs()) {
    const bool left_out = !knob.read || knob.name == "pp-layout";
    EXPECT_EQ(testing::values_of(knob).empty(), left_out) << knob.name;
    if (left_out) continue;
    for (const std::string& value : testing::values_of(knob)) {
      GivenKnobs given;
      EXPECT_NO_THROW(knob.read(given, knob.name, value)) << knob.name << " " << value;
    }
  }
}

/// The native framework keeps tokens and targets of all micro-batches of a step on the device.
Bytes ids_of(const DrawnPlan& drawn, std::int64_t micro_batches) {
  constexpr Bytes kIdBytes = 16, kPadding = 1024;
  if (drawn.stack != "native") return 0;
  const std::int64_t tokens =
      std::stoll(drawn.value("seq-len", "")) * std::stoll(drawn.value("micro-batch", "1"));
  return micro_batches * (kIdBytes * tokens + kPadding);
}

// Of three micro-batches or more one stands in the middle: sums of gradients are there, which the
// first makes, and parameters, which the last lets go of.
TEST(PlanInvariants, AllocatedMemoryDoesNotDependOnAccumulation) {
  Invariant invariant(kPlans);
  for_plans(1, kPlans, in_one_stage, [&](const DrawnPlan& drawn) {
    const auto three = memory_of(drawn, 3), eight = memory_of(drawn, 8),
               many = memory_of(drawn, 64);
    if (!three || !eight || !many) return false;
    const Bytes least = three->peak_allocated_bytes;
    invariant.expect(eight->peak_allocated_bytes - least <= ids_of(drawn, 5) &&
                         many->peak_allocated_bytes - least <= ids_of(drawn, 61) &&
                         eight->peak_allocated_bytes >= least,
                     fmt::format("{}: of 3 {}; of 8 {}; of 64 {}", drawn.text(), words_of(*three),
                                 words_of(*eight), words_of(*many)));
    return true;
  });
}

TEST(PlanInvariants, ReservedMemoryDoesNotDependOnAccumulation) {
  constexpr double kOfCache = 0.01;
  Invariant invariant(kPlans);
  for_plans(2, kPlans, in_one_stage, [&](const DrawnPlan& drawn) {
    const auto three = memory_of(drawn, 3), eight = memory_of(drawn, 8),
               many = memory_of(drawn, 64);
    if (!three || !eight || !many) return false;
    const auto least = static_cast<double>(three->peak_reserved_bytes);
    const auto more = static_cast<double>(eight->peak_reserved_bytes);
    invariant.expect(many->total_bytes - eight->total_bytes <= ids_of(drawn, 56) &&
                         many->total_bytes >= eight->total_bytes &&
                         std::abs(more / least - 1) <= kOfCache,
                     fmt::format("{}: of 3 {}; of 8 {}; of 64 {}", drawn.text(), words_of(*three),
                                 words_of(*eight), words_of(*many)));
    return true;
  });
}

/// The micro-batches that a stage may hold at once, twice over, and a multiple of what schedules
/// ask for.
std::int64_t enough_for(const DrawnPlan& drawn) {
  return 8 * std::stoll(drawn.value("pp", "1"));
}

TEST(PlanInvariants, StagesKeepWhatIsInFlight) {
  Invariant invariant(100);
  for_plans(3, 100, in_stages, [&](const DrawnPlan& drawn) {
    if (drawn.value("pp-schedule", "") == "gpipe") return false;
    const std::int64_t n = enough_for(drawn);
    const auto some = memory_of(drawn, n), more = memory_of(drawn, 4 * n);
    if (!some || !more) return false;
    invariant.expect(more->total_bytes >= some->total_bytes &&
                         more->total_bytes - some->total_bytes <= ids_of(drawn, 3 * n),
                     fmt::format("{}: of {} {}; of {} {}", drawn.text(), n, words_of(*some), 4 * n,
                                 words_of(*more)));
    return true;
  });
}

// GPipe runs no backward pass before the last forward pass.
TEST(PlanInvariants, GpipeKeepsEveryMicroBatch) {
  Invariant invariant(60);
  const auto gpipe = [](DrawnPlan& drawn) {
    in_stages(drawn);
    drawn.set("virtual-stages", "1");
    drawn.set("pp-schedule", "gpipe");
  };
  for_plans(4, 60, gpipe, [&](const DrawnPlan& drawn) {
    const std::int64_t n = enough_for(drawn);
    const auto some = memory_of(drawn, n), one_more = memory_of(drawn, n + 1),
               twice = memory_of(drawn, 2 * n);
    if (!some || !one_more || !twice) return false;
    const Bytes each = one_more->peak_allocated_bytes - some->peak_allocated_bytes;
    const Bytes rest = twice->peak_allocated_bytes - some->peak_allocated_bytes - n * each;
    invariant.expect(each > 0 && std::abs(rest) <= ids_of(drawn, n),
                     fmt::format("{}: of {} {}; of one more {}; of twice as many {}", drawn.text(),
                                 n, words_of(*some), words_of(*one_more), words_of(*twice)));
    return true;
  });
}

TEST(PlanInvariants, AllocatedIsWithinReservedIsWithinTotal) {
  Invariant invariant(kPlans);
  for_plans(
      5, kPlans, [](DrawnPlan&) {},
      [&](const DrawnPlan& drawn) {
        const auto memory = memory_of(drawn, 32);
        if (!memory) return false;
        invariant.expect(memory->peak_allocated_bytes <= memory->peak_active_bytes &&
                             memory->peak_active_bytes <= memory->peak_reserved_bytes &&
                             memory->peak_reserved_bytes < memory->total_bytes,
                         drawn.text() + ": " + words_of(*memory));
        return true;
      });
}

TEST(PlanInvariants, StepsEndAsTheyBegan) {
  Invariant invariant(kPlans);
  for_plans(6, kPlans, in_one_stage, [&](const DrawnPlan& drawn) {
    if (!predicted(drawn)) return false;
    const AllocatedPeak peak = allocated_peak(predictor_of(drawn).program().stages.front());
    invariant.expect(
        peak.start_bytes == peak.end_bytes,
        fmt::format("{}: {} bytes, then {}", drawn.text(), peak.start_bytes, peak.end_bytes));
    return true;
  });
}

// Adapters over frozen weights hold no more than the same step that trains all of them.
TEST(PlanInvariants, FrozenWeightsTakeNoMoreThanTrainedOnes) {
  Invariant invariant(100);
  const auto trains_all = [](DrawnPlan& drawn) {
    in_one_stage(drawn);
    for (const char* knob : {"lora", "quantize", "optimizer", "offload"})
      std::erase_if(drawn.knobs, [&](const auto& one) { return one.first == knob; });
  };
  for_plans(7, 100, trains_all, [&](const DrawnPlan& drawn) {
    const auto whole = memory_of(drawn, 8);
    DrawnPlan adapters = drawn;
    adapters.set("lora", "8");
    const auto frozen = memory_of(adapters, 8);
    if (!whole || !frozen) return false;
    invariant.expect(
        frozen->peak_allocated_bytes <= whole->peak_allocated_bytes,
        fmt::format("{}: {}; with adapters {}", drawn.text(), words_of(*whole), words_of(*frozen)));
    return true;
  });
}

}  // namespace
}  // namespace shardwright::sim::plans
