// SPDX-License-Identifier: Apache-2.0
// Would anybody notice? Pipelines that are damaged on purpose do not train as one rank does: a wait
// that is forgotten, slots that are swapped, a pass that runs twice, replicas that are counted
// twice, a zero that loses its sign.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/core/base/error.h"
#include "sim/pipeline/completes.h"
#include "sim/pipeline/step_program.h"
#include "tests/exec/staged_training.h"
#include "tests/support/not_empty.h"
#include "tests/support/parameter_name.h"
#include "tests/support/refusal.h"

namespace shardwright {

static void PrintTo(PassKind kind, std::ostream* out) {
  *out << letter_of(kind);
}

namespace exec {
namespace {

using namespace testing;

/// What expect_same_training compares, as an answer.
bool trains_alike(const std::vector<TrainedStep>& a, const std::vector<TrainedStep>& b) {
  const auto bits = [](const Tensors& tensors) {
    std::vector<std::uint32_t> all;
    for (const auto& [name, values] : tensors)
      for (const float value : values) all.push_back(std::bit_cast<std::uint32_t>(value));
    return all;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const TrainedStep& one, const TrainedStep& other) {
                      return one.result.loss_sum == other.result.loss_sum &&
                             one.result.gradient_norm == other.result.gradient_norm &&
                             bits(one.gradients) == bits(other.gradients) &&
                             bits(one.weights) == bits(other.weights);
                    });
}

// A wait that is forgotten.

/// Waits of operations that are alike: those of a phase, kind and stream, between stages or not,
/// for an event and its unit.
using WaitClass = std::tuple<Phase, OpKind, int, bool, int, int>;

WaitClass class_of(const Op& op, const EventRef& event) {
  return {op.phase, op.kind, op.stream, op.peer >= 0, event.name, event.offset};
}

/// Whether a stage's other waits and the order on its streams order all that these order.
class Orders {
 public:
  Orders(const Schedule& stage, const WaitClass& forgotten)
      : forgotten_(forgotten), streams_(stage.streams.size(), Known(stage.streams.size())) {
    for_each_op(stage, [this](const OpInstance& at, const Op& op) { visit(at, op); });
  }
  bool without() const { return without_; }

 private:
  /// By stream, how many operations of it are done where an operation may begin.
  using Known = std::vector<std::int64_t>;
  struct Recorded {
    Known known;
    std::vector<std::pair<Tensor, std::int32_t>> written;  // tensors of units
  };

  void visit(const OpInstance& at, const Op& op) {
    Known& known = streams_[op.stream];
    for (const EventRef& wait : op.waits) {
      const auto event = events_.find({wait.name, at.unit + wait.offset});
      if (!wait || event == events_.end()) continue;
      if (class_of(op, wait) != forgotten_) {
        join(known, event->second.known);
      } else if (op.kind == OpKind::kHostWork && !event->second.written.empty()) {
        pending_.emplace_back(op.stream, event->second);
      } else {
        expect(known, event->second.known);
      }
    }
    std::erase_if(pending_, [&](const std::pair<int, Recorded>& one) {
      if (one.first != op.stream || !reads(at, op, one.second)) return false;
      expect(known, one.second.known);
      return true;
    });
    ++known[op.stream];
    if (!op.record) return;
    Recorded& recorded = events_[{op.record.name, at.unit + op.record.offset}];
    recorded = {known, {}};
    for (const Operand& out : op.out) {
      if (out) recorded.written.emplace_back(out.tensor, at.unit + out.offset);
    }
  }

  static bool reads(const OpInstance& at, const Op& op, const Recorded& recorded) {
    return std::any_of(std::begin(op.in), std::end(op.in), [&](const Operand& in) {
      const std::pair of{in.tensor, at.unit + in.offset};
      return in && std::count(recorded.written.begin(), recorded.written.end(), of) > 0;
    });
  }
  static void join(Known& known, const Known& more) {
    for (std::size_t s = 0; s < known.size(); ++s) known[s] = std::max(known[s], more[s]);
  }
  void expect(const Known& known, const Known& event) {
    Known joined = known;
    join(joined, event);
    without_ = without_ && joined == known;
  }

  const WaitClass& forgotten_;
  std::vector<Known> streams_;
  std::map<std::pair<int, std::int32_t>, Recorded> events_;
  std::vector<std::pair<int, Recorded>> pending_;  // of marks, until what was written is read
  bool without_ = true;
};

std::set<WaitClass> waits_of(const std::vector<Schedule>& stages) {
  std::set<WaitClass> classes;
  for (const Schedule& stage : stages) {
    for (const Op& op : stage.ops) {
      for (const EventRef& wait : op.waits) {
        if (wait) classes.insert(class_of(op, wait));
      }
    }
  }
  return classes;
}

std::string words_of(const Schedule& stage, const WaitClass& wait) {
  const auto& [phase, kind, stream, passes, event, offset] = wait;
  return fmt::format("{} {} on {} waits for {} {:+}", name_of(phase), name_of(kind),
                     stage.streams[static_cast<std::size_t>(stream)].name,
                     stage.event_names[static_cast<std::size_t>(event)], offset);
}

class ForgottenWaits : public ::testing::TestWithParam<StagedLayout> {};

// ThreadSanitizer would report it as the race it is.
TEST_P(ForgottenWaits, AreSeenWhereNothingElseOrders) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "data races on purpose";
#endif
  Training training = staged(tiny_llama(), Strategy::kYafsdp, GetParam(), false);
  training.model.layers = 4;
  training.plan.param_dtype = DType::kBf16;  // so that masters are cast before they are gathered
  training.mode = StreamMode::kShuffled;
  const auto expected = train(training);
  const std::vector<Schedule> stages =
      sim::executed_step(training.model, training.plan, native_stack(), training.gpus_per_node)
          .stages;
  std::size_t needed = 0;
  for (const WaitClass& forgotten : not_empty(waits_of(stages))) {
    if (std::all_of(stages.begin(), stages.end(),
                    [&](const Schedule& stage) { return Orders(stage, forgotten).without(); }))
      continue;
    training.change_stages = [&](std::vector<Schedule>& changed) {
      for (Schedule& stage : changed) {
        for (Op& op : stage.ops) {
          for (EventRef& wait : op.waits) {
            if (wait && class_of(op, wait) == forgotten) wait = {};
          }
        }
      }
    };
    bool seen = false;
    for (training.shuffle_seed = 1; training.shuffle_seed <= 30 && !seen; ++training.shuffle_seed) {
      try {
        seen = !trains_alike(expected, train(training));
      } catch (const Error&) {
        seen = true;  // a batch that is not there yet
      }
    }
    EXPECT_TRUE(seen) << words_of(stages.front(), forgotten);
    ++needed;
  }
  EXPECT_GE(needed, 6u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ForgottenWaits,
                         ::testing::Values(StagedLayout{PipelineKind::kOneForwardOneBackward, 1, 2,
                                                        1, 2, 2},
                                           StagedLayout{PipelineKind::kZb1p, 2, 2, 1, 2, 2},
                                           StagedLayout{PipelineKind::kZbv, 1, 2, 2, 2, 4}),
                         parameter_name);

/// Messages leave late.
class LateSends : public HostDevice {
 public:
  using HostDevice::HostDevice;
  StreamId make_stream(const char* name, int priority) override {
    sends_.push_back(std::string_view(name) == "pipeline-send");
    return HostDevice::make_stream(name, priority);
  }
  void call(StreamId stream, std::function<void()> function) override {
    if (!sends(stream)) return HostDevice::call(stream, std::move(function));
    HostDevice::call(stream, [function = std::move(function)] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      function();
    });
  }

 protected:
  bool sends(StreamId stream) const { return sends_[static_cast<std::size_t>(stream)]; }

 private:
  std::vector<bool> sends_;
};

/// And what was in their slots is written over meanwhile.
class ForgetsSlots final : public LateSends {
 public:
  using LateSends::LateSends;
  void record(StreamId stream, Event& event) override {
    if (sends(stream)) sent_.insert(&event);
    LateSends::record(stream, event);
  }
  void wait(StreamId stream, const Event& event) override {
    if (!sent_.contains(&event)) LateSends::wait(stream, event);
  }

 private:
  std::set<const Event*> sent_;
};

/// On devices of this kind.
template <class Damaged>
Training with_devices(Training training) {
  static kernels::host::Parallel parallel(1);
  training.make_device = [mode = training.mode, seed = training.shuffle_seed](int rank) {
    return std::make_unique<Damaged>(parallel, mode, 100 * seed + static_cast<std::uint64_t>(rank));
  };
  return training;
}

TEST(PipelineMutations, SlotsOfMessagesThatAreReusedAtOnceAreSeen) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "data races on purpose";
#endif
  Training training =
      staged(tiny_llama(), Strategy::kYafsdp, {PipelineKind::kGpipe, 1, 2, 1, 1, 6}, false);
  const auto expected = train(training);
  training.mode = StreamMode::kThreads;
  EXPECT_TRUE(trains_alike(expected, train(with_devices<LateSends>(training))));
  EXPECT_FALSE(trains_alike(expected, train(with_devices<ForgetsSlots>(training))));
}

// Slots that are swapped, passes that run twice.

/// The stage's pass of that kind and micro-batch.
Section& pass_of(Schedule& stage, PassKind kind, std::int32_t micro_batch) {
  return *std::find_if(stage.sections.begin(), stage.sections.end(), [&](const Section& section) {
    return section.pass && section.pass->kind == kind && section.pass->micro_batch == micro_batch;
  });
}

/// Of two micro-batches, with what was kept for the other.
void swap_passes(Schedule& stage, PassKind kind) {
  std::swap(pass_of(stage, kind, 1).pass->micro_batch, pass_of(stage, kind, 2).pass->micro_batch);
}

class SwappedSlots : public ::testing::TestWithParam<PassKind> {};

TEST_P(SwappedSlots, AreSeenAndRefused) {
  for (std::size_t stage = 0; stage < 2; ++stage) {
    SCOPED_TRACE(stage);
    Training training =
        staged(tiny_llama(), Strategy::kYafsdp, {PipelineKind::kGpipe, 1, 2}, false);
    training.options.poison = false;
    const auto expected = train(training);
    training.change_stages = [&](std::vector<Schedule>& stages) {
      sim::check_completes(stages);
      swap_passes(stages[stage], GetParam());
      const std::string refusal =
          shardwright::testing::refusal_of([&] { sim::check_completes(stages); });
      EXPECT_EQ(refusal.find("a step of this pipeline would not end"), 0u) << refusal;
    };
    EXPECT_FALSE(trains_alike(expected, train(training)));
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, SwappedSlots,
                         ::testing::Values(PassKind::kForward, PassKind::kBackward),
                         parameter_name);

TEST(PipelineMutations, WeightGradientsThatAreMadeTwiceAreSeen) {
  Training training = staged(tiny_llama(), Strategy::kYafsdp, {PipelineKind::kZb1p, 1, 2}, false);
  training.options.poison = false;
  const auto expected = train(training);
  training.change_stages = [](std::vector<Schedule>& stages) {
    Schedule& stage = stages[1];
    Section& pass = pass_of(stage, PassKind::kBackwardWeight, 2);
    Block once = stage.blocks[pass.first_block];
    while (stage.ops[once.first_op].kind != OpKind::kWeightGradient) ++once.first_op;
    once.op_count = 1;
    once.repeats = 1;
    once.action_count = 0;
    const Section more{static_cast<std::uint32_t>(stage.blocks.size()), 1, 1, pass.pass};
    stage.blocks.push_back(once);
    stage.sections.insert(stage.sections.begin() + (&pass - stage.sections.data()), more);
  };
  const auto twice = train(training);
  EXPECT_EQ(expected[0].result.loss_sum, twice[0].result.loss_sum);
  EXPECT_FALSE(trains_alike(expected, twice));
}

// Replicas that are counted twice, zeros that lose their sign.

/// Counts what tensor ranks have the same of once for each of two.
class CountsReplicas final : public HostDevice {
 public:
  using HostDevice::HostDevice;
  void sum_of_squares(StreamId stream, Array x, std::int64_t* words) override {
    HostDevice::sum_of_squares(stream, x, words);
    for (const Array& other : replicated) {
      if (other.data >= x.data && other.data < x.part(x.size, 0).data)
        HostDevice::sum_of_squares(stream, other, words);
    }
  }
  std::vector<Array> replicated;
};

TEST(PipelineMutations, ReplicasThatAreCountedTwiceAreSeenInTheNorm) {
  Training training =
      staged(tiny_llama(), Strategy::kYafsdp, {PipelineKind::kOneForwardOneBackward, 2, 2}, false);
  training.options.poison = false;
  training.steps = 1;
  const auto expected = train(without_parts(training));
  Training damaged = with_devices<CountsReplicas>(training);
  damaged.prepare = [](Executor& executor) {
    for (const OwnedState& state : executor.counted_state()) {
      if (executor.layout().tensor(state.tensor).shape.size() == 1)
        static_cast<CountsReplicas&>(executor.device()).replicated.push_back(state.gradient);
    }
  };
  EXPECT_TRUE(trains_alike(expected, train(training)));
  const auto counted = train(damaged);
  EXPECT_GT(counted[0].result.gradient_norm, expected[0].result.gradient_norm);
  expect_same_bits(expected[0].gradients, counted[0].gradients, "gradient");
}

/// Begins sums over ranks with +0, which the sum of several -0 is not.
class BeginsWithZero final : public HostDevice {
 public:
  using HostDevice::HostDevice;
  void fold(StreamId stream, std::span<const void* const> inputs, DType input_dtype, Array out,
            bool adds, SumOrder order) override {
    HostDevice::fold(stream, inputs, input_dtype, out, adds, order);
    if (out.dtype != DType::kFp32) return;
    call(stream, [out] {
      float* sums = static_cast<float*>(out.data);
      std::for_each(sums, sums + out.size, [](float& sum) { sum += 0.0f; });
    });
  }
};

/// All micro-batches are one sequence of which the last target alone counts, and logits lie so far
/// apart that gradients of many rows of the head vanish, with their sign.
void vanish(Training& training) {
  training.batch = [seq = training.plan.seq_len, micro_batches = training.plan.grad_accum](int,
                                                                                           int) {
    Batch batch;
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      for (std::int64_t i = 0; i < seq; ++i) {
        batch.tokens.push_back(static_cast<std::int32_t>(7 * i % 90));
        batch.targets.push_back(i + 1 < seq ? kIgnoreTarget : 3);
      }
    }
    return batch;
  };
  training.prepare = [](Executor& executor) {
    for (const OwnedState& state : executor.owned_state()) {
      const std::string& name = executor.layout().tensor(state.tensor).name;
      const float times = name == "lm_head.weight"      ? 4e14f
                          : name == "model.norm.weight" ? 1e-12f
                                                        : 1;
      std::vector<float> values = executor.read(state.parameter);
      for (float& value : values) value *= times;
      executor.write(values, state.parameter);
    }
    executor.parameters_changed();
  };
}

TEST(PipelineMutations, ZerosThatLoseTheirSignAreSeen) {
  Training training = staged(tiny_llama(), Strategy::kDdp,
                             {PipelineKind::kOneForwardOneBackward, 1, 2, 1, 2, 2}, false);
  training.options.poison = false;
  training.steps = 1;
  vanish(training);
  const auto expected = train(without_parts(training));
  const std::vector<float>& head = expected[0].gradients.at("lm_head.weight");
  EXPECT_GT(std::count_if(head.begin(), head.end(),
                          [](float value) { return value == 0 && std::signbit(value); }),
            0);
  EXPECT_TRUE(trains_alike(expected, train(training)));
  EXPECT_FALSE(trains_alike(expected, train(with_devices<BeginsWithZero>(training))));
}

}  // namespace
}  // namespace exec
}  // namespace shardwright
