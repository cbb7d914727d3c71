// SPDX-License-Identifier: Apache-2.0
// What a plan may choose without changing the result: recomputation, buffers, streams. And what the
// executor promises beside numbers: memory to the byte, poison that shows, a timeline that keeps
// the order of events, a range for each operation that a profiler sees.
#include "exec/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "exec/recorder.h"
#include "profiles/profile.h"
#include "sim/core/chrome_trace.h"
#include "sim/core/executed_plan.h"
#include "sim/predict.h"
#include "tests/exec/all_layouts.h"
#include "tests/exec/training.h"
#include "tests/support/not_empty.h"
#include "tests/support/parameter_name.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright::exec {
namespace {

using shardwright::testing::refusal_of;

using namespace testing;

/// Two steps on two ranks that accumulate two micro-batches each.
Training small(Strategy strategy, const Model& model) {
  Training training;
  training.model = model;
  training.plan = tiny_plan(strategy, 2, 2);
  training.steps = 2;
  training.options.poison = true;
  return training;
}

struct ModelCase {
  const char* name;
  Model model;
};

void PrintTo(const ModelCase& one, std::ostream* out) {
  *out << one.name;
}

std::vector<ModelCase> models() {
  Model qwen2 = tiny_qwen2();
  qwen2.mlp_bias = qwen2.attention_out_bias = true;
  return {{"llama", tiny_llama()},
          {"qwen2", qwen2},
          {"qwen3_tied", tied(tiny_qwen3())},
          {"uneven_tied", tied(uneven_llama())},
          {"gpt2", tiny_gpt2()},
          {"mpt", tiny_mpt()},
          {"gpt_neox", tiny_gpt_neox()},
          {"gemma", tiny_gemma()},
          {"gemma2", tiny_gemma2()}};
}

class PlanChoices : public ::testing::TestWithParam<ModelCase> {};

TEST_P(PlanChoices, RecomputationChangesNoBit) {
  const Training kept = small(Strategy::kYafsdp, GetParam().model);
  const auto expected = train(kept);
  std::vector<std::pair<int, int>> all{{3, 1}, {2, 2}};  // layers and stride
  if (tries_all_layouts()) all.insert(all.end(), {{1, 1}, {2, 1}});
  for (const char* words : {"full", "selective-op", "norm", "swiglu", "ffn", "attention", "block",
                            "norm,swiglu", "attention,ffn"}) {
    for (const auto& [layers, stride] : all) {
      SCOPED_TRACE(std::string(words) + " of " + std::to_string(layers) + " layers, every " +
                   std::to_string(stride));
      Training training = kept;
      set_recompute(training.plan, words);
      training.plan.ckpt_layers = layers;
      training.plan.ckpt_stride = stride;
      expect_same_training(expected, train(training));
    }
  }
}

TEST_P(PlanChoices, BuffersAndPrefetchChangeNoBit) {
  for (const Strategy strategy : {Strategy::kYafsdp, Strategy::kFsdp2}) {
    const Training usual = small(strategy, GetParam().model);
    const auto expected = train(usual);
    for (int buffers = 1; buffers <= 5; ++buffers) {
      for (int prefetch = 0; prefetch <= 3; ++prefetch) {
        // Fewest and most, and what is usual.
        const bool tells = buffers != 3 && buffers != 4 && prefetch != 2;
        if (!tells && !tries_all_layouts()) continue;
        SCOPED_TRACE(std::string(name_of(strategy)) + " with " + std::to_string(buffers) +
                     " buffers, prefetch " + std::to_string(prefetch));
        Training training = usual;
        training.mode = prefetch % 2 == 0 ? StreamMode::kInline : StreamMode::kThreads;
        training.plan.buffers = buffers;
        training.plan.prefetch = prefetch;
        expect_same_training(expected, train(training));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlanChoices, ::testing::ValuesIn(models()), parameter_name);

TEST(StreamModes, ChangeNoBit) {
  for (const Strategy strategy :
       {Strategy::kSingle, Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3,
        Strategy::kFsdp1, Strategy::kFsdp1GradOp, Strategy::kFsdp2, Strategy::kFsdp2NoReshard,
        Strategy::kHsdp, Strategy::kYafsdp, Strategy::kYafsdpZero2}) {
    Training in_line = small(strategy, uneven_llama());
    in_line.plan.gpus = strategy == Strategy::kSingle ? 1 : strategy == Strategy::kHsdp ? 4 : 3;
    in_line.plan.shard_group = strategy == Strategy::kHsdp ? 2 : 0;
    const auto expected = train(in_line);
    Training threads = in_line;
    threads.mode = StreamMode::kThreads;
    SCOPED_TRACE(name_of(strategy));
    expect_same_training(expected, train(threads));
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Training shuffled = in_line;
      shuffled.mode = StreamMode::kShuffled;
      shuffled.shuffle_seed = seed;
      expect_same_training(expected, train(shuffled));
    }
  }
}

// Documents in one sequence do not see each other, and tokens that do not count leave no trace:
// W ranks are one also then.
TEST(Batches, OfPackedDocumentsAndIgnoredTargetsAreSharded) {
  Training training = small(Strategy::kYafsdp, tiny_qwen3());
  training.packs_documents = training.ignores_targets = true;
  Training alone = training;
  alone.plan.strategy = Strategy::kSingle;
  alone.plan.gpus = 1;
  alone.plan.grad_accum = 4;
  const auto expected = train(alone);
  EXPECT_LT(expected[0].result.tokens, 4 * training.plan.seq_len);
  expect_same_training(expected, train(training));
  Training unpacked = training;
  unpacked.packs_documents = false;
  EXPECT_NE(train(unpacked)[0].result.loss_sum, expected[0].result.loss_sum);
}

TEST(Batches, AreRefusedWhenTheyDoNotFit) {
  const Training training = small(Strategy::kSingle, tiny_llama());
  const auto refusal = [&](const std::function<void(Batch&)>& damage) {
    Training one = training;
    one.plan.gpus = 1;
    one.steps = 1;
    one.inspect = [&](int, Executor& executor) {
      Batch batch = batch_of(one, 1, 0);
      damage(batch);
      executor.step(std::move(batch), step_options(one, 2));
    };
    return refusal_of([&] { train(one); });
  };
  EXPECT_EQ(refusal([](Batch& b) { b.tokens[3] = 101; }),
            "tokens[3] of the batch is 101, expected 0 to 100");
  EXPECT_EQ(refusal([](Batch& b) { b.targets[5] = -1; }),
            "targets[5] of the batch is -1, expected 0 to 100");
  EXPECT_EQ(refusal([](Batch& b) { b.tokens.pop_back(); }), "the batch has 63 tokens, expected 64");
  EXPECT_EQ(refusal([](Batch& b) { b.first_keys.assign(64, 5); }),
            "first_keys[0] of the batch is 5, expected at most the token's place in its sequence");
}

// A rank that cannot go on ends the others; its own reason is what is reported.
TEST(Batches, ThatOneRankRefusesEndAllRanks) {
  Training training = small(Strategy::kYafsdp, tiny_llama());
  training.plan.gpus = 3;
  training.mode = StreamMode::kThreads;
  training.batch = [&](int step, int rank) {
    Training usual = training;
    usual.batch = nullptr;
    Batch batch = batch_of(usual, step, rank);
    if (step == 2 && rank == 1) batch.tokens[0] = -7;
    return batch;
  };
  EXPECT_EQ(refusal_of([&] { train(training); }),
            "tokens[0] of the batch is -7, expected 0 to 100");
}

// Memory.

TEST(Memory, IsWhatThePlanPredictsToTheByte) {
  const profiles::Profile profile = profiles::load_profile("dgx-h100", "native");
  for (const Strategy strategy :
       {Strategy::kSingle, Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kZero3,
        Strategy::kFsdp1GradOp, Strategy::kFsdp2, Strategy::kHsdp, Strategy::kYafsdp,
        Strategy::kYafsdpZero2}) {
    for (const ModelCase& model : models()) {
      for (const bool narrow : {false, true}) {
        Training training = small(strategy, model.model);
        training.steps = 1;
        if (strategy == Strategy::kSingle) training.plan.gpus = 1;
        if (narrow) {
          training.plan.param_dtype = training.plan.moment_dtype = DType::kBf16;
          set_recompute(training.plan, "selective-op");
          training.plan.ckpt_layers = 2;
        }
        SCOPED_TRACE(std::string(name_of(strategy)) + " " + model.name +
                     (narrow ? " bf16" : " fp32"));
        sim::Predictor predictor(model.model, profile);
        const Bytes predicted = predictor.predict(training.plan).memory.peak_reserved_bytes;
        training.inspect = [&](int, Executor& executor) {
          EXPECT_EQ(executor.planned_bytes(), predicted);
          EXPECT_EQ(executor.device().peak_allocated_bytes(), predicted);
        };
        train(training);
      }
    }
  }
}

// Poison. Whatever a schedule forgets must show, or the tests above prove nothing.

TEST(Poison, ShowsAGatherThatIsMissing) {
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    Training training = small(Strategy::kYafsdp, tiny_llama());
    training.change = [phase](Schedule& schedule) {
      for (Op& op : not_empty(schedule.ops)) {
        if (op.kind == OpKind::kAllGather && op.phase == phase) op.kind = OpKind::kHostWork;
      }
    };
    const StepResult last = train(training).back().result;
    EXPECT_TRUE(std::isnan(last.gradient_norm)) << name_of(phase);
    EXPECT_TRUE(last.skipped) << name_of(phase);
  }
}

TEST(Poison, ShowsActivationsThatAreReadAfterTheyDie) {
  Training training = small(Strategy::kSingle, tiny_llama());
  training.plan.gpus = 1;
  training.change = [](Schedule& schedule) {
    for (const Block& block : schedule.blocks) {
      if (block.phase != Phase::kBackward) continue;
      const auto begin = schedule.memory.begin() + block.first_action;
      const auto end = begin + block.action_count;
      for (auto action = begin; action != end; ++action) {
        if (!action->acquire && action->tensor == Tensor::kGateUp) action->op = 0;
      }
      std::stable_sort(begin, end,
                       [](const MemoryAction& a, const MemoryAction& b) { return a.op < b.op; });
    }
  };
  EXPECT_TRUE(std::isnan(train(training).back().result.gradient_norm));
}

// Streams are threads, so what a schedule does not order does go wrong. ThreadSanitizer reports it
// as the race it is, hence not there.
TEST(Poison, ShowsAWaitThatIsForgotten) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "a data race on purpose";
#endif
  Training training = small(Strategy::kYafsdp, tiny_llama());
  training.steps = 1;
  const double expected = train(training)[0].result.gradient_norm;
  training.change = [](Schedule& schedule) {
    for (Op& op : schedule.ops) {
      if (op.kind == OpKind::kAllGather) op.waits[0] = {};
    }
  };
  training.mode = StreamMode::kShuffled;
  int wrong = 0;
  for (training.shuffle_seed = 1; training.shuffle_seed <= 10; ++training.shuffle_seed) {
    wrong += train(training)[0].result.gradient_norm != expected;
  }
  EXPECT_GT(wrong, 0);
}

// Steps that must not be taken.

TEST(Update, IsSkippedWhenTheGradientIsTooLarge) {
  Training training = small(Strategy::kYafsdp, tiny_llama());
  const auto usual = train(training);
  training.skip_above = usual[0].result.gradient_norm / 2;
  const auto skipped = train(training);
  EXPECT_TRUE(skipped[0].result.skipped);
  EXPECT_EQ(skipped[0].result.gradient_norm, usual[0].result.gradient_norm);
  expect_same_bits(skipped[0].weights, skipped[1].weights, "weights");
  for (const auto& [name, moment] : not_empty(skipped[1].first_moments)) {
    EXPECT_TRUE(std::all_of(moment.begin(), moment.end(), [](float m) { return m == 0; })) << name;
  }
}

TEST(Update, DecaysMatricesOnly) {
  Training training = small(Strategy::kYafsdp, tiny_qwen2());
  training.steps = 1;
  training.weight_decay = 0;
  const auto plain = train(training)[0];
  training.weight_decay = 0.5;
  const auto decayed = train(training)[0];
  for (const auto& [name, weights] : not_empty(plain.weights)) {
    const bool is_matrix = name.find("norm") == std::string::npos && !name.ends_with("bias");
    EXPECT_EQ(decayed.weights.at(name) != weights, is_matrix) << name;
  }
}

TEST(Evaluation, IsTheLossOfAStepWithoutTheStep) {
  for (const Strategy strategy :
       {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFsdp2,
        Strategy::kFsdp2NoReshard, Strategy::kHsdp, Strategy::kYafsdp, Strategy::kYafsdpZero2}) {
    Training training = small(strategy, tied(tiny_llama()));
    training.plan.grad_accum = 1;
    training.steps = 1;
    training.mode = StreamMode::kThreads;
    training.inspect = [&](int rank, Executor& executor) {
      const LossSums before = executor.evaluate(batch_of(training, 2, rank));
      const LossSums again = executor.evaluate(batch_of(training, 2, rank));
      const StepResult step = executor.step(batch_of(training, 2, rank), step_options(training, 2));
      const LossSums after = executor.evaluate(batch_of(training, 2, rank));
      EXPECT_EQ(before.loss, again.loss);
      EXPECT_EQ(before.loss, step.loss_sum);
      EXPECT_EQ(before.tokens, step.tokens);
      EXPECT_LT(after.loss, before.loss);
    };
    SCOPED_TRACE(name_of(strategy));
    train(training);
  }
}

// bf16.

TEST(Bf16, FollowsFp32AndIsShardedBitForBit) {
  Training training = small(Strategy::kYafsdp, tiny_llama());
  training.steps = 5;
  const auto exact = train(training);
  training.plan.param_dtype = DType::kBf16;
  const auto narrow = train(training);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(narrow[i].result.loss(), exact[i].result.loss(), 0.02) << "step " << i + 1;
  }
  // Of the same weights but for their rounding; later ones went different ways.
  EXPECT_NEAR(narrow[0].result.gradient_norm, exact[0].result.gradient_norm,
              0.01 * exact[0].result.gradient_norm);
  Training alone = training;
  alone.plan.strategy = Strategy::kSingle;
  alone.plan.gpus = 1;
  alone.plan.grad_accum = 4;
  expect_same_training(train(alone), narrow);
}

// Moments are rounded at random, but by the parameter's place in the model and the step: any
// sharding rounds alike. On average nothing is lost.
TEST(Bf16, MomentsAreRoundedByPlaceAndWithoutBias) {
  Training training = small(Strategy::kYafsdp, tiny_llama());
  const auto exact = train(training);
  training.plan.moment_dtype = DType::kBf16;
  const auto rounded = train(training);
  Training alone = training;
  alone.plan = tiny_plan(Strategy::kSingle, 1, 4);
  alone.plan.moment_dtype = DType::kBf16;
  expect_same_training(train(alone), rounded);
  double error = 0, size = 0;
  for (const auto& [name, moments] : not_empty(exact[0].second_moments)) {
    const std::vector<float>& near = rounded[0].second_moments.at(name);
    for (std::size_t i = 0; i < moments.size(); ++i) {
      EXPECT_NEAR(near[i], moments[i], std::abs(moments[i]) / 100);
      error += static_cast<double>(near[i]) - static_cast<double>(moments[i]);
      size += static_cast<double>(moments[i]);
    }
  }
  EXPECT_LT(std::abs(error), 1e-3 * size);
}

// Timeline.

TEST(MeasuredTimeline, KeepsTheOrderOfStreamsAndEvents) {
  for (const Strategy strategy : {Strategy::kYafsdp, Strategy::kFsdp2, Strategy::kZero2}) {
    SCOPED_TRACE(name_of(strategy));
    Training training = small(strategy, tiny_llama());
    training.mode = StreamMode::kShuffled;
    training.options.trace = true;
    training.inspect = [](int rank, Executor& executor) {
      const Schedule& schedule = executor.schedule();
      const Timeline timeline = executor.timeline();
      EXPECT_EQ(timeline.source, "measured");
      std::map<OpId, std::pair<Nanoseconds, Nanoseconds>> ran;
      std::map<int, Nanoseconds> stream_end;
      for (const Span& span : not_empty(timeline.spans)) {
        EXPECT_EQ(span.rank, rank);
        EXPECT_EQ(span.step, 2);
        EXPECT_LE(span.begin_ns, span.end_ns);
        EXPECT_GE(span.begin_ns, stream_end[span.stream]) << "stream " << int{span.stream};
        stream_end[span.stream] = span.end_ns;
        const auto [at, is_new] = ran.try_emplace(span.id, span.begin_ns, span.end_ns);
        if (!is_new) at->second.second = span.end_ns;
      }
      // Events as CUDA knows them: the last record before the wait is issued.
      std::map<std::pair<int, std::int32_t>, Nanoseconds> recorded;
      std::size_t found = 0, waited = 0;
      for_each_op(schedule, [&](const OpInstance& at, const Op& op) {
        const auto span = ran.find(at.id);
        if (op.kind != OpKind::kHostWork && op.kind != OpKind::kSynchronize) {
          ASSERT_NE(span, ran.end()) << describe(schedule, at);
          EXPECT_EQ(int{op.stream}, [&] {
            for (const Span& s : timeline.spans) {
              if (s.id == at.id) return int{s.stream};
            }
            return -1;
          }());
          ++found;
        }
        if (span == ran.end()) return;
        for (const EventRef& wait : op.waits) {
          const auto event = recorded.find({wait.name, at.unit + wait.offset});
          if (!wait || event == recorded.end()) continue;
          EXPECT_GE(span->second.first, event->second) << describe(schedule, at);
          ++waited;
        }
        if (op.record) recorded[{op.record.name, at.unit + op.record.offset}] = span->second.second;
      });
      EXPECT_EQ(found, ran.size());
      EXPECT_GT(waited, 20u);
      EXPECT_GE(timeline.step_ns, timeline.spans.back().end_ns);
      ASSERT_FALSE(timeline.memory.empty());
      Bytes most = 0;
      for (const MemorySample& sample : timeline.memory) {
        EXPECT_EQ(sample.reserved_bytes, executor.planned_bytes());
        EXPECT_LE(sample.allocated_bytes, sample.reserved_bytes);
        most = std::max(most, sample.allocated_bytes);
      }
      EXPECT_GT(most, timeline.memory.front().allocated_bytes);
      EXPECT_EQ(timeline.memory.front().allocated_bytes, timeline.memory.back().allocated_bytes);
    };
    train(training);
  }
}

TEST(MeasuredTimeline, IsWrittenLikeAPredictedOne) {
  const std::filesystem::path path = shardwright::testing::temp_folder() / "measured_trace.json";
  Training training = small(Strategy::kYafsdp, tiny_llama());
  training.options.trace = true;
  training.inspect = [&](int rank, Executor& executor) {
    if (rank != 0) return;
    const Timeline timeline = executor.timeline();
    const TracedTimeline traced{"measured", &executor.schedule(), &timeline};
    write_chrome_trace(path, {&traced, 1});
  };
  train(training);
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::set<std::string> names;
  for (const auto& event : not_empty(trace.at("traceEvents"))) {
    if (event.value("ph", "") == "X") names.insert(event.at("name"));
  }
  EXPECT_TRUE(names.contains("layer1.backward.down_projection.weight_gradient"))
      << ::testing::PrintToString(names);
  std::filesystem::remove(path);
}

/// Keeps the names of ranges, which must not overlap.
class Ranges final : public RangeMarker {
 public:
  void begin(const std::string& name) override {
    EXPECT_FALSE(open_) << name;
    open_ = true;
    names.insert(name);
  }
  void end() override { open_ = false; }

  std::set<std::string> names;

 private:
  bool open_ = false;
};

TEST(RangeMarker, HearsOfEveryKindOfOperation) {
  Training training;
  training.plan = tiny_plan(Strategy::kYafsdp, 1);
  Ranges ranges;
  training.options.ranges = &ranges;
  const auto marked = train(training);
  for (const char* name : {"forward all_gather", "reduce reduce_scatter", "forward attention"}) {
    EXPECT_TRUE(ranges.names.contains(name)) << ::testing::PrintToString(ranges.names);
  }
  training.options.ranges = nullptr;
  expect_same_training(marked, train(training));
}

// Refusals.

TEST(Refusals, NameWhatIsNotExecuted) {
  Training training = small(Strategy::kSingle, tiny_llama());
  training.plan.gpus = 1;
  training.plan.offload = Offload::kOptimizer;
  EXPECT_EQ(refusal_of([&] { train(training); }), why_not_run(training.model, training.plan));
}

TEST(PackedDocuments, AreCountedWhereTheyLieOneBehindTheOther) {
  const auto count = [](std::vector<std::int32_t> first_keys, std::int64_t seq) {
    return count_documents(first_keys, seq);
  };
  EXPECT_EQ(count({0, 0, 0, 0}, 4), 1);
  EXPECT_EQ(count({0, 0, 0, 0}, 2), 2);
  EXPECT_EQ(count({0, 1, 1, 3, 0, 0, 2, 2}, 4), 5);
  EXPECT_EQ(count({0, 0, 1, 2}, 4), 0);  // a window of two keys
  EXPECT_EQ(count({0, 1, 0, 0}, 4), 0);  // seen again behind another
}

}  // namespace
}  // namespace shardwright::exec
