// SPDX-License-Identifier: Apache-2.0
// Checkpoints of one layout of ranks resumed at another: equal bits for as long as sums have the
// same shape, whatever pieces of a tensor the files hold.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "exec/train/checkpoint.h"
#include "exec/train/safetensors.h"
#include "exec/train/train_state.h"
#include "tests/exec/all_layouts.h"
#include "tests/exec/train_fixture.h"
#include "tests/support/files.h"
#include "tests/support/refusal.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using shardwright::testing::get;
using shardwright::testing::put;
using shardwright::testing::refusal_of;

struct RankLayout {
  const char* name;
  Strategy strategy;
  std::int64_t tp, dp, pp = 1, virtual_stages = 1;
  PipelineKind kind = PipelineKind::kOneForwardOneBackward;
};
constexpr RankLayout kLayouts[] = {{"tp4", Strategy::kYafsdp, 4, 1},
                                   {"tp2dp2", Strategy::kFsdp2, 2, 2},
                                   {"dp4", Strategy::kYafsdp, 1, 4},
                                   {"tp2", Strategy::kZero1, 2, 1},
                                   {"one", Strategy::kSingle, 1, 1}};
/// Of models that differ in a tensor alone.
constexpr std::span kFewLayouts = std::span(kLayouts).first<3>();

/// A stage adds up its micro-batches before it reduces, so those of several data-parallel ranks
/// have one each.
constexpr RankLayout kPipelines[] = {
    {"pp4", Strategy::kZero1, 1, 1, 4},
    {"tp2pp2v3", Strategy::kYafsdp, 2, 1, 2, 3, PipelineKind::kInterleaved},
    {"tp2dp2", Strategy::kFsdp2, 2, 2},
    {"tp2pp2-zbv", Strategy::kFsdp2, 2, 1, 2, 2, PipelineKind::kZbv},
    {"dp4pp2", Strategy::kZero2, 1, 4, 2, 1, PipelineKind::kZb1p}};

/// Four micro-batches a step, sums of four leaves.
Plan plan_of(const RankLayout& layout) {
  Plan plan = tiny_plan(layout.strategy, layout.tp * layout.pp * layout.dp, 4 / layout.dp);
  plan.parallel.tp = layout.tp;
  plan.parallel.pp = layout.pp;
  plan.parallel.virtual_stages = layout.virtual_stages;
  plan.parallel.pp_schedule = layout.kind;
  plan.sum_features = 4;
  return plan;
}

/// A column cut of a matrix begins beside its first column, and shares end within rows.
struct Pieces {
  std::int64_t rectangles = 0, within_rows = 0, files = 0;
};

Pieces pieces_of(const fs::path& folder) {
  Pieces pieces;
  const Checkpoint checkpoint(folder);
  for (const CheckpointFile& file : checkpoint.manifest().files) {
    ++pieces.files;
    const SafetensorsFile opened(folder / file.name);
    for (const StoredTensor& stored : opened.tensors()) {
      const std::string& key = stored.spec.name;
      const std::size_t begin = key.find(':') + 1, end = key.rfind(':');
      for (const CheckpointTensor& tensor : checkpoint.manifest().tensors) {
        if (key.substr(begin, end - begin) != tensor.name || tensor.shape.size() < 2) continue;
        const bool is_rectangle = stored.spec.shape.size() == 2;
        pieces.rectangles += is_rectangle;
        pieces.within_rows += !is_rectangle && std::stoll(key.substr(end + 1)) % tensor.shape[1];
      }
    }
  }
  return pieces;
}

class CheckpointLayouts : public TrainFixture {
 protected:
  /// All layouts train alike from the beginning; then each goes on from the second step of the one
  /// before, or of all others where all are tried.
  void resume_at_each_other(std::span<const RankLayout> layouts = kLayouts) {
    options_.lr.total_steps = 4;
    options_.config = config_of(model_);
    std::vector<Outcome> whole;
    const RankLayout& first = layouts.front();
    for (const RankLayout& layout : layouts) {
      whole.push_back(run(layout.name, plan_of(layout), options_));
      ASSERT_EQ(whole.back().result.failure, "");
      expect_same_state(saved(first.name, 4), saved(layout.name, 4));
    }
    for (const RankLayout& from : layouts) {
      const Checkpoint second(saved(from.name, 2));
      for (const RankLayout& to : layouts) {
        const std::ptrdiff_t ahead = (&to - &from + std::ssize(layouts)) % std::ssize(layouts);
        if (ahead == 0 || (ahead > 1 && !tries_all_layouts())) continue;
        const std::string name = fmt::format("{}-at-{}", from.name, to.name);
        SCOPED_TRACE(name);
        TrainOptions options = options_;
        options.resume = &second;
        const Outcome resumed = run(name, plan_of(to), options);
        ASSERT_EQ(resumed.steps.size(), 2u);
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(resumed.steps[i].loss, whole[0].steps[i + 2].loss);
          EXPECT_EQ(resumed.steps[i].grad_norm, whole[0].steps[i + 2].grad_norm);
        }
        expect_same_state(saved(first.name, 4), saved(name, 4));
        fs::remove_all(folder_ / name);
        if (HasFailure()) return;
      }
    }
    expect_same_models(layouts);
  }

  /// Files of Hugging Face are the same bytes, and what is read from them trains alike.
  void expect_same_models(std::span<const RankLayout> layouts) {
    std::string first;
    for (const RankLayout& layout : layouts) {
      SCOPED_TRACE(layout.name);
      const fs::path folder = folder_ / fmt::format("{}-model", layout.name);
      export_model(Checkpoint(saved(layout.name, 4)), folder, std::int64_t{1} << 30);
      const std::string bytes = get(folder / "model.safetensors");
      if (first.empty()) first = bytes;
      EXPECT_EQ(bytes, first);

      const SafetensorsModel model(folder);
      TrainOptions options = options_;
      options.weights = &model;
      options.weights_name = folder.string();
      options.lr.total_steps = 1;
      options.lr.warmup_steps = 0;
      const std::string name = fmt::format("{}-loaded", layout.name);
      run(name, plan_of(layout), options);
      expect_same_state(saved(fmt::format("{}-loaded", layouts.front().name), 1), saved(name, 1));
    }
    const fs::path saved_model = folder_ / fmt::format("{}-model", layouts.back().name);
    std::vector<float> file(8), here(8);
    SafetensorsModel(saved_model).read_floats(tensor_, 0, file);
    TrainOptions options = options_;
    const SafetensorsModel model(saved_model);
    options.weights = &model;
    options.lr.total_steps = 1;
    options.lr.warmup_steps = 0;
    options.lr.peak = 1e-30;  // the weights stay
    options.adamw.weight_decay = 0;
    run("stays", plan_of(layouts.front()), options);
    Checkpoint(saved("stays", 1)).read(StateKind::kParameter, tensor_, 0, here);
    EXPECT_EQ(file, here);
  }

  std::string tensor_;  // whose file has the order of memory
};

TEST_F(CheckpointLayouts, OfAModelWhoseEmbeddingIsItsHead) {
  model_ = divisible(tied(tiny_llama()));
  model_.vocab = 100;
  tensor_ = "model.layers.1.mlp.down_proj.weight";
  resume_at_each_other();
  const Pieces tp2 = pieces_of(saved("tp2dp2", 4));
  EXPECT_EQ(tp2.files, 4);
  EXPECT_GT(tp2.rectangles, 0);
  EXPECT_GT(tp2.within_rows, 0);
  // As files were before there were tensor ranks.
  EXPECT_EQ(pieces_of(saved("dp4", 4)).rectangles, 0);
  EXPECT_EQ(pieces_of(saved("one", 4)).rectangles, 0);
}

TEST_F(CheckpointLayouts, OfAModelWithNormsOfHeads) {
  model_ = divisible(tiny_qwen3());
  model_.vocab = 104;
  tensor_ = "model.layers.1.self_attn.q_norm.weight";
  resume_at_each_other(kFewLayouts);
}

TEST_F(CheckpointLayouts, OfAModelWithOneMatrixForQueriesKeysAndValues) {
  model_ = divisible(tiny_gpt2());
  model_.vocab = 100;
  tensor_ = "transformer.ln_f.weight";
  resume_at_each_other(kFewLayouts);
}

class CheckpointLayoutsOfPipelines : public CheckpointLayouts {
 protected:
  CheckpointLayoutsOfPipelines() {
    model_ = divisible(tiny_llama());
    model_.layers = 6;
    model_.vocab = 100;
    tensor_ = "model.layers.4.mlp.down_proj.weight";
  }
};

TEST_F(CheckpointLayoutsOfPipelines, OneAfterTheOther) {
  resume_at_each_other(std::span(kPipelines).first<3>());
}

TEST_F(CheckpointLayoutsOfPipelines, OfZeroBubble) {
  const std::span<const RankLayout> all = kPipelines;
  resume_at_each_other(tries_all_layouts() ? all : all.last(3));
}

// Each key/value head is written once.
TEST_F(CheckpointLayouts, OfRanksThatShareKeyValueHeads) {
  for (const bool is_fused : {false, true}) {
    model_ = divisible(tiny_llama());
    model_.kv_heads = 2;
    model_.fused_qkv = model_.fused_gate_up = is_fused;
    model_.family = is_fused ? "phi3" : "llama";
    options_.lr.total_steps = 4;
    const std::string name = model_.family;
    Plan tp4 = tiny_plan(Strategy::kYafsdp, 4, 4), replicas = tiny_plan(Strategy::kFsdp2, 8, 2);
    tp4.parallel.tp = replicas.parallel.tp = 4;
    run(name, tp4, options_);
    const Checkpoint second(saved(name, 2));
    TrainOptions options = options_;
    options.resume = &second;
    run(name + "-dp2", replicas, options);
    expect_same_state(saved(name, 4), saved(name + "-dp2", 4));
  }
}

TEST_F(CheckpointLayouts, APieceThatIsNoRectangleOfItsMatrixIsRefused) {
  model_ = divisible(tiny_llama());
  options_.lr.total_steps = 1;
  options_.lr.warmup_steps = 0;
  run("run", plan_of(kLayouts[3]), options_);
  const fs::path folder = saved("run", 1);
  const fs::path file = folder / Checkpoint(folder).manifest().files[1].name;
  const std::string whole = get(file);
  // The second half of an output projection's columns.
  const std::string shape = "\"shape\":[72,64]";
  const std::size_t at = whole.find(shape);
  ASSERT_NE(at, std::string::npos);
  for (const char* wrong : {"\"shape\":[64,72]", "\"shape\":[96,48]"}) {
    std::string damaged = whole;
    put(file, damaged.replace(at, shape.size(), wrong));
    const std::string said = refusal_of([&] { Checkpoint{folder}; });
    EXPECT_EQ(said.find(folder.string()), 0u) << said;
    EXPECT_NE(said.find("is no part of a checkpoint, expected KIND:NAME:OFFSET"), std::string::npos)
        << wrong << ": " << said;
    EXPECT_EQ(said.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace shardwright::exec
