// SPDX-License-Identifier: Apache-2.0
// Guards checkpoints: what resumes is what was, damage is found and named,
// and a failed write leaves earlier checkpoints alone.
#include "exec/train/checkpoint.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "exec/layout.h"
#include "exec/train/train_state.h"
#include "exec/train/trainer.h"
#include "tests/exec/train_fixture.h"
#include "tests/exec/training.h"
#include "tests/support/files.h"
#include "tests/support/refusal.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;
using shardwright::testing::get;
using shardwright::testing::put;
using shardwright::testing::refusal_of;
using testing::config_of;
using testing::everything;
using testing::expect_same_state;
using testing::tiny_plan;

using CheckpointTest = testing::TrainFixture;

TEST_F(CheckpointTest, ResumesBitForBitAtAnotherNumberOfRanksAndAnotherStrategy) {
  const Plan four = tiny_plan(Strategy::kYafsdp, 4, 3);
  const Outcome whole = run("whole", four, options_);
  ASSERT_EQ(whole.steps.size(), 6u);
  EXPECT_EQ(whole.result.saved_step, 6);
  EXPECT_TRUE(whole.notes.empty());

  struct Case {
    Strategy strategy;
    std::int64_t ranks, grad_accum;
  };
  for (const Case& c :
       {Case{Strategy::kYafsdp, 4, 3}, Case{Strategy::kFsdp2, 3, 4}, Case{Strategy::kZero1, 12, 1},
        Case{Strategy::kSingle, 1, 12}, Case{Strategy::kZero2, 2, 6}}) {
    const std::string name = fmt::format("{}-{}", name_of(c.strategy), c.ranks);
    TrainOptions options = options_;
    const Checkpoint from(saved("whole", 2));
    options.resume = &from;
    const Outcome resumed = run(name, tiny_plan(c.strategy, c.ranks, c.grad_accum), options);
    ASSERT_EQ(resumed.steps.size(), 4u) << name;
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(resumed.steps[i].loss, whole.steps[i + 2].loss) << name;
      EXPECT_EQ(resumed.steps[i].grad_norm, whole.steps[i + 2].grad_norm) << name;
    }
    expect_same_state(saved("whole", 6), saved(name, 6));
  }
}

TEST_F(CheckpointTest, NarrowMomentsAndParametersResumeToo) {
  Plan plan = tiny_plan(Strategy::kFsdp2, 2);
  plan.param_dtype = DType::kBf16;
  plan.moment_dtype = DType::kBf16;
  run("whole", plan, options_);
  const Checkpoint from(saved("whole", 4));
  TrainOptions options = options_;
  options.resume = &from;
  run("resumed", plan, options);
  expect_same_state(saved("whole", 6), saved("resumed", 6));

  plan.moment_dtype = DType::kFp32;
  EXPECT_NE(refusal_of([&] { run("other", plan, options); }).find("bf16 moments"),
            std::string::npos);
  options.seed = 6;
  EXPECT_NE(refusal_of([&] { run("other", plan, options); }).find("made with seed 5"),
            std::string::npos);
  model_.hidden = 128;
  options.seed = 5;
  EXPECT_NE(refusal_of([&] { run("other", plan, options); }).find("made for another model"),
            std::string::npos);
}

TEST_F(CheckpointTest, KeepsTheNewestAndCleansUp) {
  options_.keep = 2;
  options_.save_every = 1;
  fs::create_directories(checkpoints_folder(folder_ / "run") / ".writing-step-000009");
  run("run", tiny_plan(Strategy::kZero3, 2), options_);
  const auto found = list_checkpoints(checkpoints_folder(folder_ / "run"));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].filename(), "step-000006");
  EXPECT_EQ(found[1].filename(), "step-000005");
  const fs::directory_iterator all(checkpoints_folder(folder_ / "run"));
  EXPECT_EQ(std::distance(begin(all), end(all)), 2);
}

TEST_F(CheckpointTest, ABeginningAnewSetsEarlierOnesAside) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  options_.keep = 2;
  run("run", plan, options_);
  TrainOptions options = options_;
  options.lr.total_steps = 3;
  const Outcome anew = run("run", plan, options);
  ASSERT_EQ(anew.notes.size(), 1u);
  EXPECT_NE(anew.notes[0].find("2 checkpoints of another run or course are set aside"),
            std::string::npos)
      << anew.notes[0];
  const auto found = list_checkpoints(checkpoints_folder(folder_ / "run"));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].filename(), "step-000003");
  EXPECT_EQ(found[1].filename(), "step-000002");
  EXPECT_TRUE(fs::exists(checkpoints_folder(folder_ / "run") / "abandoned-step-000006"));
}

TEST_F(CheckpointTest, DamageIsRefusedByName) {
  run("run", tiny_plan(Strategy::kYafsdp, 2), options_);
  const fs::path folder = saved("run", 6);
  const auto refusal = [&] { return refusal_of([&] { Checkpoint(folder).verify(); }); };
  EXPECT_EQ(refusal(), "accepted");
  const fs::path files[] = {folder / "checkpoint.json", folder / "rank-00000-of-00002.safetensors",
                            folder / "rank-00001-of-00002.safetensors"};
  const kernels::RandomStream random{1, kernels::RandomSite::kShuffle, 0};
  std::uint64_t draws = 0;
  const auto below = [&](std::size_t bound) { return random.below(draws++, bound); };
  for (const fs::path& file : files) {
    const std::string whole = get(file);
    for (int round = 0; round < 60; ++round) {
      std::string damaged = whole;
      if (round % 3 == 0) {
        damaged.resize(below(whole.size()));
      } else {
        const std::size_t reach =
            round % 3 == 1 ? std::min<std::size_t>(400, whole.size()) : whole.size();
        damaged[below(reach)] ^= static_cast<char>(1 + below(255));
      }
      put(file, damaged);
      const std::string said = refusal();
      ASSERT_NE(said, "accepted") << file << " round " << round;
      ASSERT_EQ(said.find(folder.string()), 0u) << said;
    }
    fs::remove(file);
    ASSERT_NE(refusal(), "accepted");
    put(file, whole);
  }
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(CheckpointTest, IsGivenItsNameOnlyWhenEveryFileIsThere) {
  run("run", tiny_plan(Strategy::kYafsdp, 2), options_);
  const fs::path folder = checkpoints_folder(folder_ / "run");
  CheckpointManifest manifest = Checkpoint(saved("run", 6)).manifest();
  manifest.step = 8;
  const fs::path unfinished = unfinished_checkpoint(folder, 8);
  const auto refusal = [&] {
    return refusal_of([&] { require_files(unfinished, manifest, 0.05); }, ExitCode::kFailed);
  };
  fs::create_directories(unfinished);
  const std::string other = manifest.files[1].name;
  fs::copy_file(saved("run", 6) / manifest.files[0].name, unfinished / manifest.files[0].name);
  // The other rank wrote to a disk of its own.
  EXPECT_EQ(refusal(), fmt::format("{}: not here, but its rank wrote {} bytes; expected a folder "
                                   "that all ranks share",
                                   (unfinished / other).string(), manifest.files[1].bytes));
  put(unfinished / other, "short");
  EXPECT_NE(refusal().find("5 bytes are here"), std::string::npos) << refusal();
  EXPECT_FALSE(fs::exists(saved("run", 8)));
  EXPECT_EQ(list_checkpoints(folder).front(), saved("run", 6));
  put(unfinished / other, get(saved("run", 6) / other));
  EXPECT_EQ(refusal(), "accepted");
  commit_checkpoint(folder, manifest);
  EXPECT_EQ(list_checkpoints(folder).front(), saved("run", 8));
}

TEST_F(CheckpointTest, FoldersThatAreNotSharedAreRefusedByAllRanks) {
  fs::create_directories(folder_ / "a");
  fs::create_directories(folder_ / "b");
  kernels::host::Parallel parallel(1);
  std::vector<std::string> said(3);
  const auto ask = [&](const std::vector<std::int64_t>& writers) {
    LocalWorld world(3, 3);
    world.run([&](int rank) {
      HostDevice device(parallel, StreamMode::kInline);
      const RankGroups groups = world.groups(rank, device);
      said[static_cast<std::size_t>(rank)] = refusal_of([&] {
        require_shared_folder(*groups.world, folder_ / (rank == 2 ? "b" : "a"), writers, 0.05);
      });
    });
  };
  ask({0, 1, 2});
  for (const std::string& sentence : said) {
    EXPECT_NE(sentence.find("rank 2 does not see what rank 0 writes there"), std::string::npos)
        << sentence;
  }
  ask({0, 1});  // rank 2 writes nothing
  EXPECT_EQ(said, std::vector<std::string>(3, "accepted"));
  EXPECT_TRUE(fs::is_empty(folder_ / "a"));
}

TEST_F(CheckpointTest, RanksShareTheFilesAndLeaveOutTheSameCheckpoints) {
  run("run", tiny_plan(Strategy::kYafsdp, 3), options_);
  const Checkpoint whole(saved("run", 6));
  const auto choose = [&](const std::vector<std::vector<fs::path>>& candidates) {
    const int ranks = static_cast<int>(candidates.size());
    kernels::host::Parallel parallel(1);
    LocalWorld world(ranks, ranks);
    std::vector<std::string> chosen(candidates.size());
    world.run([&](int rank) {
      HostDevice device(parallel, StreamMode::kInline);
      const RankGroups groups = world.groups(rank, device);
      const auto place = static_cast<std::size_t>(rank);
      chosen[place] = refusal_of([&] {
        const auto found =
            choose_checkpoint(*groups.world, candidates[place], [](const std::string&) {});
        chosen[place] = found ? found->folder().string() : "none";
        throw Error(chosen[place]);
      });
    });
    return chosen;
  };
  const std::vector<fs::path> both = {saved("run", 6), saved("run", 4)};
  EXPECT_EQ(choose({both, both}), std::vector<std::string>(2, saved("run", 6).string()));
  EXPECT_EQ(choose({{}, {}}), std::vector<std::string>(2, "none"));
  for (const std::string& said : choose({both, {}})) {
    EXPECT_NE(said.find("rank 1 sees 0"), std::string::npos) << said;
  }
  // Only the rank whose share it is reads the damaged file; all go on from the one before.
  const fs::path damaged = saved("run", 6) / whole.manifest().files[1].name;
  std::string text = get(damaged);
  text.back() ^= 1;
  put(damaged, text);
  EXPECT_EQ(refusal_of([&] { whole.verify(0, 2); }), "accepted");
  EXPECT_NE(refusal_of([&] { whole.verify(1, 2); }), "accepted");
  EXPECT_EQ(choose({both, both}), std::vector<std::string>(2, saved("run", 4).string()));
  for (const std::string& said : choose({{both[0]}, {both[0]}})) {
    EXPECT_NE(said.find("the checksum is"), std::string::npos) << said;
  }
}

TEST(InitialWeights, AreThoseOfOneThread) {
  const kernels::RandomStream random{7, kernels::RandomSite::kInit, 0};
  constexpr std::size_t kCount = (std::size_t{5} << 16) + 13;
  std::vector<float> one(kCount), many(kCount);
  draw_weights(random, 1001, 0.02, one, 1);
  draw_weights(random, 1001, 0.02, many, 3);
  EXPECT_EQ(one, many);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, kCount / 2, kCount - 1}) {
    EXPECT_EQ(one[at], static_cast<float>(0.02 * random.normal(1001 + at))) << at;
  }
}

TEST_F(CheckpointTest, AFailedWriteLeavesEarlierOnesAlone) {
  options_.save_every = 2;
  run("run", tiny_plan(Strategy::kYafsdp, 2), options_);
  const auto before = everything(saved("run", 6));
  options_.lr.total_steps = 8;
  const Checkpoint from(saved("run", 6));
  options_.resume = &from;
  // As a full disk: no file may grow beyond 100 kB.
  struct rlimit usual {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const struct rlimit small { 100'000, usual.rlim_max };
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Outcome outcome = run("run", tiny_plan(Strategy::kYafsdp, 2), options_);
  setrlimit(RLIMIT_FSIZE, &usual);
  std::signal(SIGXFSZ, previous);
  EXPECT_TRUE(outcome.result.save_failed);
  EXPECT_EQ(outcome.result.last_step, 8);
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_NE(outcome.notes[0].find("checkpoint of step 8 could not be written"), std::string::npos);
  const auto found = list_checkpoints(checkpoints_folder(folder_ / "run"));
  EXPECT_EQ(found.front().filename(), "step-000006");
  EXPECT_EQ(everything(found.front()), before);
}

TEST_F(CheckpointTest, ExportedWeightsComeBack) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 3);
  run("run", plan, options_);
  const Checkpoint checkpoint(saved("run", 6));
  for (const std::int64_t part_bytes : {std::int64_t{1} << 30, std::int64_t{60'000}}) {
    const fs::path folder = folder_ / fmt::format("model-{}", part_bytes);
    export_model(checkpoint, folder, part_bytes);
    EXPECT_EQ(fs::exists(folder / "model.safetensors.index.json"), part_bytes == 60'000);
    const auto config = nlohmann::json::parse(get(folder / "config.json"));
    EXPECT_EQ(config, nlohmann::json({{"model_type", "llama"}, {"torch_dtype", "float32"}}));
    const SafetensorsModel model(folder);
    EXPECT_EQ(model.names().size(), checkpoint.manifest().tensors.size());

    TrainOptions options = options_;
    options.weights = &model;
    options.weights_name = folder.string();
    options.lr.total_steps = 1;
    options.lr.warmup_steps = 0;
    options.lr.peak = 1e-30;  // the weights stay
    options.adamw.weight_decay = 0;
    const std::string name = fmt::format("again-{}", part_bytes);
    run(name, tiny_plan(Strategy::kZero2, 2), options);
    std::vector<float> a(64), b(64);
    checkpoint.read(StateKind::kParameter, "model.norm.weight", 0, a);
    Checkpoint(saved(name, 1)).read(StateKind::kParameter, "model.norm.weight", 0, b);
    EXPECT_EQ(a, b);
  }
}

/// A tensor, and one place of it in memory and in a file.
struct StoredCase {
  Model model;
  std::string tensor;
  std::int64_t size = 0, at = 0, in_file = 0;
};

std::vector<StoredCase> stored_cases() {
  const Model gpt2 = shardwright::testing::tiny_gpt2();
  const Model neox = shardwright::testing::tiny_gpt_neox();
  Model helium = shardwright::testing::tiny_llama();
  helium.family = "helium";
  const std::int64_t pair = helium.head_dim / 2 + 1;  // with element 1 of a head
  return {
      // Row 1, column 2.
      {gpt2, "transformer.h.1.mlp.c_fc.weight", gpt2.ffn * gpt2.hidden, gpt2.hidden + 2,
       2 * gpt2.ffn + 1},
      // The second number of the keys of the third head.
      {neox, "gpt_neox.layers.1.attention.query_key_value.bias", 3 * neox.q_dim(),
       neox.q_dim() + 2 * neox.head_dim + 1, (2 * 3 + 1) * neox.head_dim + 1},
      // The second number of the second head's second pair, column 2.
      {helium, "model.layers.1.self_attn.q_proj.weight", helium.q_dim() * helium.hidden,
       (helium.head_dim + pair) * helium.hidden + 2, (helium.head_dim + 3) * helium.hidden + 2}};
}

// gpt2's matrices are stored transposed, the projection of gpt_neox head by head, queries and keys
// of helium with neighbours that are turned together.
TEST_F(CheckpointTest, ExportedWeightsHaveTheOrderOfTheirFamily) {
  for (const StoredCase& stored : stored_cases()) {
    const Model& model = stored.model;
    SCOPED_TRACE(model.family);
    model_ = model;
    options_.config = config_of(model);
    run(model.family, tiny_plan(Strategy::kYafsdp, 3), options_);
    const Checkpoint checkpoint(saved(model.family, 6));
    const fs::path folder = folder_ / (model.family + "-exported");
    export_model(checkpoint, folder, std::int64_t{1} << 30);
    const SafetensorsModel exported(folder);
    std::vector<float> here(static_cast<std::size_t>(stored.size)), file(here.size());
    checkpoint.read(StateKind::kParameter, stored.tensor, 0, here);
    exported.read_floats(stored.tensor, 0, file);
    EXPECT_EQ(here[static_cast<std::size_t>(stored.at)],
              file[static_cast<std::size_t>(stored.in_file)]);
    EXPECT_NE(here, file);

    TrainOptions options = options_;
    options.weights = &exported;
    options.weights_name = folder.string();
    options.lr.total_steps = 1;
    options.lr.warmup_steps = 0;
    options.lr.peak = 1e-30;  // the weights stay
    options.adamw.weight_decay = 0;
    run(model.family + "-again", tiny_plan(Strategy::kZero2, 2), options);
    const Checkpoint again(saved(model.family + "-again", 1));
    for (const CheckpointTensor& tensor : checkpoint.manifest().tensors) {
      std::int64_t elements = 1;
      for (const std::int64_t n : tensor.shape) elements *= n;
      std::vector<float> a(static_cast<std::size_t>(elements)), b(a.size());
      checkpoint.read(StateKind::kParameter, tensor.name, 0, a);
      again.read(StateKind::kParameter, tensor.name, 0, b);
      EXPECT_EQ(a, b) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace shardwright::exec
