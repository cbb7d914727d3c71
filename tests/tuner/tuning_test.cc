// SPDX-License-Identifier: Apache-2.0
// What tune says about its choice is true: the price of every knob, the other strategies, what
// happens when the prediction is off, and the advice when nothing fits. And it chooses what the
// published runs chose.
#include "tuner/advice/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>

#include "profiles/data_file.h"
#include "sim/core/hf/config.h"
#include "tests/support/not_empty.h"
#include "tests/support/parameter_name.h"
#include "tests/tuner/models.h"
#include "tuner/search/robustness.h"

namespace shardwright::tuner {
namespace {

/// A job whose memory is tight, shared as data alone on a stack of which the closed form knows all.
struct Tight {
  Model model = model_of("llama-3-8b");
  profiles::Profile profile = profiles::load_profile("l40s-pcie8", "native");
  Request request;
  Tight() {
    profile.stack.parallel.does.clear();
    request.gpus = 8;
    request.seq_len = 4096;
    request.global_batch = 32;
  }
  Tuning tuned(const TuneOptions& options = {}) const {
    return tune(model, profile, request, options);
  }
};

// Rows of the YaFSDP README that needed activation checkpointing; the table's own layers.
struct Row {
  const char* model;
  std::int64_t seq_len, published;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.model << " at " << row.seq_len;
}

class YafsdpTable : public ::testing::TestWithParam<Row> {};

TEST_P(YafsdpTable, TheSearchChoosesAboutAsManyCheckpointedLayersAsTheAuthors) {
  const auto [name, seq_len, published] = GetParam();
  const Model model = model_of(name);
  const std::vector<Scenario> scenarios{
      as_predicted(profiles::load_profile("a100-80g-4xhdr200", "hf-eager"))};
  Request request;
  request.gpus = 256;
  request.seq_len = seq_len;
  request.micro_batch = 1;
  const auto layers = [&](Strategy strategy) {
    request.strategies = {strategy};
    Search search(model, scenarios, space_of(request, model, scenarios.front().profile), {});
    return search.best(1).at(0).plan().ckpt_layers;
  };
  const std::int64_t fsdp1 = layers(Strategy::kFsdp1);
  EXPECT_LE(std::abs(fsdp1 - published), 6) << fsdp1;
  EXPECT_LE(layers(Strategy::kYafsdp), fsdp1);
}

INSTANTIATE_TEST_SUITE_P(Rows, YafsdpTable,
                         ::testing::Values(Row{"llama-2-34b", 4096, 5},
                                           Row{"llama-2-70b", 2048, 10},
                                           Row{"llama-2-70b", 4096, 50},
                                           Row{"llama-3-70b", 2048, 20}),
                         parameter_name);

TEST(Tuning, EveryStepCostsWhatItsPredictionSays) {
  Tight tight;
  tight.request.buffers = 2;
  const Tuning tuning = tight.tuned();
  ASSERT_FALSE(tuning.top.empty());
  const sim::Prediction& best = tuning.top.front().prediction;
  bool up = false, down = false, held = false, not_allowed = false;
  for (const KnobStep& step : not_empty(tuning.steps)) {
    const Plan& plan = step.judgement.prediction.plan;
    EXPECT_NE(plan, best.plan) << step.knob;
    const sim::Prediction again = sim::predict(tight.model, tight.profile, plan);
    EXPECT_EQ(step.judgement.fits, again.memory.fits) << step.knob;
    EXPECT_NEAR(step.cost, again.time.iteration_s / best.time.iteration_s - 1, 1e-12) << step.knob;
    // Or the search would have missed it.
    if (step.freedom == Freedom::kSearched && step.judgement.fits) {
      EXPECT_GE(step.cost, 0) << step.knob << " to " << step.to;
    }
    up = up || (step.knob == "ckpt-layers" && plan.ckpt_layers == best.plan.ckpt_layers + 1);
    down = down || (step.knob == "ckpt-layers" && plan.ckpt_layers == best.plan.ckpt_layers - 1);
    held = held || (step.knob == "buffers" && step.freedom == Freedom::kFixed);
    not_allowed =
        not_allowed || (step.knob == "reduce-dtype" && step.freedom == Freedom::kNotAllowed);
  }
  EXPECT_TRUE(up && down && held && not_allowed);
}

TEST(Tuning, EveryOtherStrategyIsShownAtItsBest) {
  const Tight tight;
  const Tuning tuning = tight.tuned();
  const Strategy chosen = tuning.top.at(0).plan().strategy;
  ASSERT_GT(tuning.others.size(), 3U);
  EXPECT_EQ(tuning.others.size(), tuning.strategies.size() - 1);
  bool lacks = false;
  for (const OtherStrategy& other : tuning.others) {
    EXPECT_NE(other.strategy, chosen);
    Tight alone;
    alone.request.strategies = {other.strategy};
    const std::vector<Scenario> scenarios{as_predicted(alone.profile)};
    Search search(alone.model, scenarios, space_of(alone.request, alone.model, alone.profile), {});
    const std::vector<Found> best = search.best(1);
    ASSERT_EQ(best.empty(), !other.best.has_value());
    if (other.best) {
      EXPECT_EQ(other.best->score, best.front().score);
      EXPECT_GE(other.cost, 0);
    } else {
      lacks = true;
      EXPECT_GT(other.closest->excess_bytes, 0);
    }
  }
  EXPECT_TRUE(lacks);  // ddp and its like
}

TEST(Tuning, AChoiceThatFlipsIsMarkedAndRobustAvoidsIt) {
  const Tight tight;
  const Tuning tuning = tight.tuned();
  ASSERT_TRUE(tuning.robustness.has_value());
  ASSERT_EQ(tuning.robustness->cases.size(), 2U);
  ASSERT_EQ(tuning.robustness->stress.size(), tuning.top.size());
  const auto fits_above = [](const sim::Prediction& p) {
    return static_cast<double>(p.memory.total_bytes) * (1 + kMemoryAbove) <=
           static_cast<double>(p.memory.usable_bytes);
  };
  for (std::size_t i = 0; i < tuning.top.size(); ++i) {
    const bool fits = fits_above(tuning.top[i].prediction);
    EXPECT_EQ(tuning.robustness->stress[i][0].fits, fits);
    EXPECT_TRUE(fits || tuning.robustness->flips(i, 0, 0));
    EXPECT_GT(tuning.robustness->stress[i][1].score, tuning.top[i].score);
  }
  // Otherwise this test shows nothing.
  ASSERT_TRUE(tuning.robustness->flips(0, 0, 0));

  TuneOptions robust;
  robust.robust = true;
  const Tuning safe = tight.tuned(robust);
  EXPECT_TRUE(fits_above(safe.top.at(0).prediction));
  EXPECT_FALSE(safe.robustness->flips(0, 0, 0));
  EXPECT_GE(safe.top[0].prediction.time.iteration_s, tuning.top[0].prediction.time.iteration_s);
  // Nothing is better in the worst case.
  EXPECT_NEAR(safe.top[0].score,
              std::max(safe.robustness->cases[0].best->score, safe.robustness->stress[0][1].score),
              1e-12);
}

/// The way, applied, fits; by a tuning of its own and by a prediction.
void expect_fits(const Model& model, const profiles::Profile& profile, const Way& way,
                 double asked) {
  const double headroom = way.headroom.value_or(asked);
  TuneOptions options;
  options.search.criteria.headroom = headroom;
  options.top = 1;
  const Tuning alone = tune(model, profile, way.request, options);
  ASSERT_FALSE(alone.top.empty()) << way.what;
  EXPECT_EQ(alone.top.front().plan(), way.plan.plan()) << way.what;
  const sim::MemoryPrediction memory = sim::predict(model, profile, way.plan.plan()).memory;
  EXPECT_TRUE(memory.fits) << way.what;
  EXPECT_LE(static_cast<double>(memory.total_bytes),
            (1 - headroom) * static_cast<double>(memory.usable_bytes))
      << way.what;
}

TEST(Tuning, AdviceAppliedFits) {
  struct Case {
    const char* name;
    const char* model;
    const char* cluster;
    const char* stack;
    double headroom;
    std::function<void(Request&)> hold;
  };
  const Case cases[] = {
      {"too few layers", "llama-3-8b", "l40s-pcie8", "native", 0,
       [](Request& r) {
         r.ckpt_layers = 2;
         r.micro_batch = 4;
       }},
      {"no recomputation", "llama-3-8b", "dgx-h100", "hf-eager", 0,
       [](Request& r) {
         r.recompute = Recomputation{Recompute::kNone, 0};
         r.micro_batch = 4;
         r.strategies = {Strategy::kYafsdp};
       }},
      {"nothing is sharded", "llama-3-8b", "dgx-h100", "native", 0,
       [](Request& r) { r.strategies = {Strategy::kDdp}; }},
      {"head-room", "llama-3-8b", "l40s-pcie8", "native", 0.5, [](Request&) {}},
      {"too few GPUs", "llama-3-70b", "dgx-h100", "native", 0,
       [](Request& r) { r.micro_batch = 1; }},
      {"all at once", "llama-3-70b", "dgx-h100", "native", 0,
       [](Request& r) {
         r.strategies = {Strategy::kDdp};
         r.ckpt_layers = 0;
         r.micro_batch = 1;
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Model model = model_of(c.model);
    profiles::Profile profile = profiles::load_profile(c.cluster, c.stack);
    profile.stack.parallel.does.clear();
    Request request;
    request.gpus = 8;
    request.seq_len = 4096;
    c.hold(request);
    TuneOptions options;
    options.search.criteria.headroom = c.headroom;
    const Tuning tuning = tune(model, profile, request, options);
    ASSERT_TRUE(tuning.top.empty());
    ASSERT_TRUE(tuning.advice.has_value());
    ASSERT_TRUE(tuning.advice->closest.has_value());
    EXPECT_FALSE(tuning.advice->closest->fits);
    const std::vector<Way>& ways = tuning.advice->ways;
    ASSERT_FALSE(ways.empty());
    EXPECT_LE(ways.size(), kWays);
    for (std::size_t i = 0; i < ways.size(); ++i) {
      expect_fits(model, profile, ways[i], c.headroom);
      if (i > 0) {
        EXPECT_GE(ways[i].gpu_s_per_token, ways[i - 1].gpu_s_per_token);
      }
    }
  }
}

TEST(Tuning, AdviceChangesAsLittleAsItCan) {
  Tight tight;
  tight.request.ckpt_layers = 2;
  tight.request.micro_batch = 4;
  const Tuning tuning = tight.tuned();
  ASSERT_TRUE(tuning.advice.has_value());
  const auto at =
      std::find_if(tuning.advice->ways.begin(), tuning.advice->ways.end(),
                   [](const Way& way) { return way.flags.starts_with("--ckpt-layers"); });
  ASSERT_NE(at, tuning.advice->ways.end());
  Tight one_less = tight;
  one_less.request.ckpt_layers = *at->request.ckpt_layers - 1;
  EXPECT_TRUE(one_less.tuned().top.empty());
}

TEST(Tuning, AStoppedOneStillHasAPlanThatFits) {
  const std::atomic<bool> stop{true};
  const Tight tight;
  TuneOptions options;
  options.search.stop = &stop;
  const Tuning tuning = tight.tuned(options);
  EXPECT_TRUE(tuning.stopped);
  ASSERT_FALSE(tuning.top.empty());
  EXPECT_TRUE(sim::predict(tight.model, tight.profile, tuning.top[0].plan()).memory.fits);
  EXPECT_TRUE(tuning.others.empty());
  EXPECT_FALSE(tuning.robustness.has_value());
}

}  // namespace
}  // namespace shardwright::tuner
