// SPDX-License-Identifier: Apache-2.0
// A folder, a tiny model and a short training on ranks that are threads.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "exec/train/checkpoint.h"
#include "exec/train/trainer.h"
#include "tests/exec/training.h"

namespace shardwright::exec::testing {

inline constexpr const char* kConfig =
    R"({"model_type": "llama", "_note": "x", "torch_dtype": "bfloat16"})";

/// As much of it as says how its files are.
inline std::string config_of(const Model& m) {
  return fmt::format(
      R"({{"model_type": "{}", "hidden_size": {}, "intermediate_size": {}, )"
      R"("num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {}, )"
      R"("head_dim": {}, "vocab_size": {}}})",
      m.family, m.hidden, m.ffn, m.layers, m.heads, m.kv_heads, m.head_dim, m.vocab);
}

class TrainFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("shardwright-train-") + test->name() + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    options_.lr.total_steps = 6;
    options_.lr.peak = 1e-2;
    options_.lr.warmup_steps = 2;
    options_.adamw.weight_decay = 0.1;
    options_.clip.max_norm = 0.5;
    options_.seed = 5;
    options_.save_every = 2;
    options_.config = kConfig;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  struct Outcome {
    TrainResult result;
    std::vector<std::string> notes;
    std::vector<StepMetrics> steps;
  };
  struct Listener final : TrainObserver {
    Listener(Outcome& outcome, const std::function<void(const std::string&)>& heard)
        : to(outcome), also(heard) {}
    void on_step(const StepMetrics& metrics) override { to.steps.push_back(metrics); }
    void on_note(const std::string& sentence) override {
      to.notes.push_back(sentence);
      if (also) also(sentence);
    }
    Outcome& to;
    const std::function<void(const std::string&)>& also;
  };

  /// Runs in folder_/name.
  Outcome run(const std::string& name, const Plan& plan, TrainOptions options) const {
    options.folder = folder_ / name;
    const std::vector<Schedule> stages = sim::executed_step(model_, plan, native_stack(), 2).stages;
    const RankMesh mesh(plan, stages.front().shard_ranks());
    const Data data = open_data({.train = "synthetic",
                                 .eval = "",
                                 .seq_len = plan.seq_len,
                                 .vocab = model_.vocab,
                                 .seed = 3});
    kernels::host::Parallel parallel(1);
    LocalWorld world(mesh);
    Outcome outcome;
    Listener listener(outcome, on_note_);
    world.run([&](int rank) {
      HostDevice device(parallel, StreamMode::kInline);
      Executor executor(model_, plan, stages[static_cast<std::size_t>(mesh.place_of(rank).pp)],
                        device, world.groups(rank, device));
      TrainResult result = train(executor, plan, data, options, rank == 0 ? &listener : nullptr);
      if (rank == 0) outcome.result = std::move(result);
    });
    return outcome;
  }

  std::filesystem::path saved(const std::string& name, std::int64_t step) const {
    return checkpoints_folder(folder_ / name) / checkpoint_name(step);
  }

  std::filesystem::path folder_;
  Model model_ = tiny_llama();
  TrainOptions options_;
  std::function<void(const std::string&)> on_note_;
};

/// All parameters and moments of a checkpoint, in the order of its tensors.
inline std::vector<float> everything(const std::filesystem::path& folder) {
  const Checkpoint checkpoint(folder);
  std::vector<float> all;
  for (const CheckpointTensor& tensor : checkpoint.manifest().tensors) {
    std::int64_t size = 1;
    for (const std::int64_t n : tensor.shape) size *= n;
    for (const StateKind kind : kStateKinds) {
      std::vector<float> values(static_cast<std::size_t>(size));
      checkpoint.read(kind, tensor.name, 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

inline void expect_same_state(const std::filesystem::path& a, const std::filesystem::path& b) {
  const std::vector<float> left = everything(a), right = everything(b);
  ASSERT_EQ(left.size(), right.size());
  EXPECT_EQ(std::memcmp(left.data(), right.data(), 4 * left.size()), 0) << a << " and " << b;
}

}  // namespace shardwright::exec::testing
