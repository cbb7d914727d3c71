// SPDX-License-Identifier: Apache-2.0
// Trains a tiny model for a few steps on ranks that are threads, and keeps everything that could
// differ: losses, norms, gradients, weights and moments after every step.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exec/comm/local_communicator.h"
#include "exec/executor.h"
#include "exec/host/host_device.h"
#include "kernels/random.h"
#include "profiles/stack_file.h"
#include "sim/pipeline/step_program.h"
#include "sim/strategies/lower.h"
#include "tests/support/tiny_models.h"

namespace shardwright::exec::testing {

using shardwright::testing::tied;
using shardwright::testing::tiny_gemma;
using shardwright::testing::tiny_gemma2;
using shardwright::testing::tiny_gpt2;
using shardwright::testing::tiny_gpt_neox;
using shardwright::testing::tiny_llama;
using shardwright::testing::tiny_mpt;
using shardwright::testing::tiny_plan;
using shardwright::testing::tiny_qwen2;
using shardwright::testing::tiny_qwen3;
using shardwright::testing::uneven_llama;

/// Sizes that four tensor ranks divide, but not the vocabulary.
inline Model divisible(Model model) {
  model.heads = 8;
  model.kv_heads = model.fused_qkv ? 8 : 4;
  model.head_dim = 16;
  if (model.rope.rotary_fraction == 1) model.hidden = 72;
  model.ffn = 88;
  return model;
}

/// A tensor's name to its values.
using Tensors = std::map<std::string, std::vector<float>>;

struct TrainedStep {
  StepResult result;
  Tensors gradients, weights, first_moments, second_moments;
};

struct Training {
  Model model = tiny_llama();
  Plan plan;
  std::int64_t gpus_per_node = 2;  // what an hsdp plan without shard_group shards over
  StreamMode mode = StreamMode::kInline;
  std::uint64_t shuffle_seed = 0;
  ExecutorOptions options;
  int steps = 5;
  double loss_chunk_tokens = 0;  // of the head, when not the stack's
  double max_norm = 0.5;
  double skip_above = 0;
  double weight_decay = 0.1;
  bool ignores_targets = false;  // some tokens do not count
  bool packs_documents = false;  // sequences hold several documents
  /// Makes the devices of ranks; without it they are the host.
  std::function<std::unique_ptr<Device>(int rank)> make_device;
  /// Damages the schedule before it is run, of stages the first one's.
  std::function<void(Schedule&)> change;
  /// The same of all stages.
  std::function<void(std::vector<Schedule>&)> change_stages;
  /// Gives the weights that training begins with; otherwise they come from a seed.
  std::function<void(Executor&)> prepare;
  /// Gives other batches than random ones.
  std::function<Batch(int step, int rank)> batch;
  /// Called on every rank after the last step.
  std::function<void(int rank, Executor&)> inspect;
};

inline const Stack& native_stack() {
  static const Stack stack = profiles::load_stack("native").stack;
  return stack;
}

/// The sequences of global micro-batch `index` of a step.
inline void append_micro_batch(const Training& training, int step, std::int64_t index,
                               Batch& batch) {
  const std::int64_t t = training.plan.seq_len;
  for (std::int64_t sequence = 0; sequence < training.plan.micro_batch; ++sequence) {
    const kernels::RandomStream random{11, kernels::RandomSite::kSynthetic,
                                       static_cast<std::uint32_t>(step)};
    const std::int64_t first = (index * training.plan.micro_batch + sequence) * (t + 1);
    const auto token = [&](std::int64_t i) {
      return static_cast<std::int32_t>(random.below(
          static_cast<std::uint64_t>(first + i), static_cast<std::uint64_t>(training.model.vocab)));
    };
    for (std::int64_t i = 0; i < t; ++i) {
      const bool ignored = training.ignores_targets && (i + index) % 3 == 0;
      batch.tokens.push_back(token(i));
      batch.targets.push_back(ignored ? kIgnoreTarget : token(i + 1));
      if (!training.packs_documents) continue;
      const std::int64_t begin = i < 10 ? 0 : i < 21 ? 10 : 21;
      batch.positions.push_back(static_cast<std::int32_t>(i - begin));
      batch.first_keys.push_back(static_cast<std::int32_t>(begin));
    }
  }
}

inline Batch batch_of(const Training& training, int step, int rank) {
  if (training.batch) return training.batch(step, rank);
  Batch batch;
  const RankMesh mesh(training.plan, 1);
  for (std::int64_t m = 0; m < training.plan.grad_accum; ++m) {
    append_micro_batch(training, step, m * mesh.dp + mesh.place_of(rank).dp, batch);
  }
  return batch;
}

inline StepOptions step_options(const Training& training, int step) {
  StepOptions options;
  options.adamw.lr = 1e-2;
  options.adamw.weight_decay = training.weight_decay;
  options.adamw.step = step;
  options.adamw.seed = 5;
  options.clip.max_norm = training.max_norm;
  options.clip.skip_above = training.skip_above;
  return options;
}

/// Adds what a rank counts to tensors that all ranks fill together.
inline void collect(Executor& executor, TrainedStep& into) {
  for (const OwnedState& state : executor.counted_state()) {
    const ParameterTensor& tensor = executor.layout().tensor(state.tensor);
    const auto put = [&](Tensors& tensors, const Array& array) {
      std::vector<float>& whole = tensors[tensor.name];
      whole.resize(static_cast<std::size_t>(tensor.size));
      const std::vector<float> part = executor.read(array);
      for (std::int64_t row = 0; row < state.rows; ++row) {
        std::copy_n(part.begin() + row * state.cols, state.cols,
                    whole.begin() + state.tensor_offset + row * tensor.row_length());
      }
    };
    put(into.gradients, state.gradient);
    put(into.weights, state.parameter);
    put(into.first_moments, state.first_moment);
    put(into.second_moments, state.second_moment);
  }
}

inline std::vector<TrainedStep> train(const Training& training) {
  Stack stack = native_stack();
  if (training.loss_chunk_tokens > 0) stack.loss_chunk_tokens = training.loss_chunk_tokens;
  std::vector<Schedule> stages =
      sim::executed_step(training.model, training.plan, stack, training.gpus_per_node).stages;
  if (training.change) training.change(stages.front());
  if (training.change_stages) training.change_stages(stages);
  kernels::host::Parallel parallel(1);
  const RankMesh mesh(training.plan, stages.front().shard_ranks());
  LocalWorld world(mesh);
  std::vector<TrainedStep> trained(static_cast<std::size_t>(training.steps));
  std::mutex mutex;
  world.run([&](int rank) {
    const std::uint64_t seed = 100 * training.shuffle_seed + static_cast<std::uint64_t>(rank);
    const std::unique_ptr<Device> device =
        training.make_device ? training.make_device(rank)
                             : std::make_unique<HostDevice>(parallel, training.mode, seed);
    Executor executor(training.model, training.plan,
                      stages[static_cast<std::size_t>(mesh.place_of(rank).pp)], *device,
                      world.groups(rank, *device), training.options);
    executor.initialize(3);
    if (training.prepare) training.prepare(executor);
    for (int step = 1; step <= training.steps; ++step) {
      TrainedStep& out = trained[static_cast<std::size_t>(step) - 1];
      const StepResult result =
          executor.step(batch_of(training, step, rank), step_options(training, step));
      const std::lock_guard lock(mutex);
      if (rank == 0) out.result = result;
      collect(executor, out);
    }
    if (training.inspect) training.inspect(rank, executor);
  });
  return trained;
}

inline void expect_same_bits(const Tensors& a, const Tensors& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto& [name, values] : a) {
    ASSERT_TRUE(b.contains(name)) << what << " has no " << name;
    const std::vector<float>& other = b.at(name);
    ASSERT_EQ(values.size(), other.size()) << what << " " << name;
    std::size_t different = 0, first = values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(values[i]) == std::bit_cast<std::uint32_t>(other[i]))
        continue;
      if (different++ == 0) first = i;
    }
    EXPECT_EQ(different, 0u) << what << " " << name << ": " << different << " of " << values.size()
                             << " differ, first at " << first << ": "
                             << (first < values.size() ? values[first] : 0) << " and "
                             << (first < values.size() ? other[first] : 0);
  }
}

/// Losses, norms, gradients, weights and moments of every step, to the bit.
inline void expect_same_training(const std::vector<TrainedStep>& a,
                                 const std::vector<TrainedStep>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size() && !::testing::Test::HasFailure(); ++i) {
    const std::string step = "step " + std::to_string(i + 1);
    EXPECT_EQ(a[i].result.loss_sum, b[i].result.loss_sum) << step;
    EXPECT_EQ(a[i].result.tokens, b[i].result.tokens) << step;
    EXPECT_EQ(a[i].result.gradient_norm, b[i].result.gradient_norm) << step;
    expect_same_bits(a[i].gradients, b[i].gradients, step + " gradient");
    expect_same_bits(a[i].weights, b[i].weights, step + " weight");
    expect_same_bits(a[i].first_moments, b[i].first_moments, step + " first moment");
    expect_same_bits(a[i].second_moments, b[i].second_moments, step + " second moment");
  }
}

}  // namespace shardwright::exec::testing
