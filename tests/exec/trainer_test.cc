// SPDX-License-Identifier: Apache-2.0
// Guards the training loop: when it saves, what it writes of its steps, and how it ends.
#include "exec/train/trainer.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "exec/train/checkpoint.h"
#include "tests/exec/train_fixture.h"
#include "tests/exec/training.h"
#include "tests/support/files.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;
using shardwright::testing::get;
using shardwright::testing::put;
using testing::everything;
using testing::expect_same_state;
using testing::tiny_plan;
using TrainerTest = testing::TrainFixture;

TEST_F(TrainerTest, AnIntervalSavesByRankZerosClock) {
  options_.save_every = 0;
  options_.save_interval_s = 1e-9;
  const Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  run("often", plan, options_);
  EXPECT_EQ(list_checkpoints(checkpoints_folder(folder_ / "often")).size(), 6u);
  options_.save_interval_s = 1e9;
  run("once", plan, options_);
  EXPECT_EQ(list_checkpoints(checkpoints_folder(folder_ / "once")).size(), 1u);
  expect_same_state(saved("often", 6), saved("once", 6));
}

// Its own killer would end the run at the first checkpoint, without a word.
TEST_F(TrainerTest, AMachineWithoutRoomForCheckpointsIsToldBeforeTheFirstStep) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  options_.host_memory_left = 1000;
  try {
    run("small", plan, options_);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInfeasible);
    EXPECT_NE(std::string(error.what()).find("or --save none"), std::string::npos) << error.what();
  }
  EXPECT_EQ(get(folder_ / "small" / "metrics.jsonl"), "");
  options_.saves = false;
  EXPECT_EQ(run("unsaved", plan, options_).result.last_step, 6);
}

TEST_F(TrainerTest, ARehearsalLeavesNoTrace) {
  const Plan plan = tiny_plan(Strategy::kHsdp, 4, 2);
  run("plain", plan, options_);
  options_.rehearses = true;
  run("rehearsed", plan, options_);
  expect_same_state(saved("plain", 2), saved("rehearsed", 2));
  expect_same_state(saved("plain", 6), saved("rehearsed", 6));
}

TEST_F(TrainerTest, AMetricsLineThatCannotBeWrittenCostsThatLine) {
  options_.saves = false;
  struct rlimit usual {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const struct rlimit small { 400, usual.rlim_max };  // two lines and a part of the third
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Outcome outcome = run("run", tiny_plan(Strategy::kYafsdp, 2), options_);
  setrlimit(RLIMIT_FSIZE, &usual);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(outcome.result.last_step, 6);
  EXPECT_GE(outcome.result.lost_metrics, 3);
  EXPECT_NE(outcome.result.lost_metrics_why.find("File too large"), std::string::npos);
  ASSERT_EQ(outcome.notes.size(), 1u);  // not one a step
  EXPECT_NE(outcome.notes[0].find("is lost, the run goes on"), std::string::npos);
  const std::string written = get(folder_ / "run" / "metrics.jsonl");
  ASSERT_FALSE(written.empty());
  EXPECT_EQ(written.back(), '\n');
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 6 - outcome.result.lost_metrics);
}

TEST_F(TrainerTest, WeightsThatAreNoNumbersEndTheRunAndReplaceNoCheckpoint) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  options_.lr.total_steps = 2;
  run("run", plan, options_);
  const auto before = everything(saved("run", 2));
  const Checkpoint from(saved("run", 2));
  options_.resume = &from;
  options_.lr.total_steps = 6;
  options_.lr.peak = 1e39;  // beyond the largest float
  options_.save_every = 1;
  options_.keep = 1;
  const Outcome outcome = run("run", plan, options_);
  EXPECT_FALSE(outcome.result.failure.empty());
  ASSERT_EQ(outcome.notes.size(), 1u);
  EXPECT_NE(outcome.notes[0].find("not finite"), std::string::npos) << outcome.notes[0];
  EXPECT_TRUE(outcome.result.save_failed);
  EXPECT_EQ(outcome.result.saved_step, -1);
  const auto found = list_checkpoints(checkpoints_folder(folder_ / "run"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(everything(found.front()), before);
}

// With no earlier checkpoint the whole run would be lost to a disk that is full at its last step.
TEST_F(TrainerTest, ALastCheckpointThatCannotBeWrittenIsTriedAgain) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  options_.save_every = 0;
  options_.save_patience_s = 60;
  struct rlimit usual {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &usual), 0);
  const struct rlimit small { 10'000, usual.rlim_max };
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  // Somebody makes room when the run asks for it.
  on_note_ = [&](const std::string& sentence) {
    if (sentence.find("tried again") != std::string::npos) setrlimit(RLIMIT_FSIZE, &usual);
  };
  const Outcome outcome = run("run", plan, options_);
  setrlimit(RLIMIT_FSIZE, &usual);
  std::signal(SIGXFSZ, previous);
  EXPECT_FALSE(outcome.result.save_failed);
  EXPECT_EQ(outcome.result.saved_step, 6);
  ASSERT_EQ(outcome.notes.size(), 2u);
  EXPECT_NE(outcome.notes[0].find("checkpoint of step 6 could not be written"), std::string::npos);
  on_note_ = nullptr;
  run("whole", plan, options_);
  expect_same_state(saved("run", 6), saved("whole", 6));
}

TEST_F(TrainerTest, ACheckpointThatCountsBeyondReasonIsRefused) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  options_.lr.total_steps = 2;
  run("run", plan, options_);
  const fs::path file = saved("run", 2) / "checkpoint.json";
  const CheckpointManifest honest = parse_manifest(get(file), file.string());
  options_.lr.total_steps = 4;
  const auto resumed_with = [&](auto change) {
    CheckpointManifest crafted = honest;
    change(crafted);
    put(file, manifest_text(crafted));
    try {
      const Checkpoint from(saved("run", 2));
      TrainOptions options = options_;
      options.resume = &from;
      run("run", plan, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(resumed_with([](CheckpointManifest&) {}), "accepted");
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  using Counter = std::int64_t CheckpointManifest::*;
  for (const Counter counter :
       {&CheckpointManifest::step, &CheckpointManifest::sequences, &CheckpointManifest::tokens}) {
    EXPECT_NE(resumed_with([=](CheckpointManifest& m) { m.*counter = kHuge; }).find("from 0 to"),
              std::string::npos);
  }
  for (const Counter counter : {&CheckpointManifest::sequences, &CheckpointManifest::tokens}) {
    const std::string said =
        resumed_with([=](CheckpointManifest& m) { m.*counter = kMostCounted; });
    EXPECT_NE(said.find("beyond 2^53"), std::string::npos) << said;
  }
  const std::string twice = resumed_with([](CheckpointManifest& m) {
    for (int i = 0; i < 40'000; ++i) m.files.push_back(m.files.front());
  });
  EXPECT_NE(twice.find("each file once"), std::string::npos) << twice;
}

TEST_F(TrainerTest, AnEvaluationThatIsNoNumberEndsTheRun) {
  options_.lr.total_steps = 3;
  options_.lr.warmup_steps = 0;
  options_.lr.peak = 1e39;
  options_.save_every = 0;
  options_.eval_every = 1;
  const Outcome outcome = run("run", tiny_plan(Strategy::kYafsdp, 2), options_);
  EXPECT_EQ(outcome.result.last_step, 1);
  EXPECT_NE(outcome.result.failure.find("step 1: the evaluation's loss is"), std::string::npos)
      << outcome.result.failure;
  EXPECT_TRUE(list_checkpoints(checkpoints_folder(folder_ / "run")).empty());
}

TEST_F(TrainerTest, StopsOrSkipsBadStepsAndStopsWhenAsked) {
  const Plan plan = tiny_plan(Strategy::kYafsdp, 2);
  options_.clip.skip_above = 1e-6;  // every step is bad
  const Outcome stopped = run("stop", plan, options_);
  EXPECT_NE(stopped.result.failure.find("step 1: loss "), std::string::npos);
  EXPECT_EQ(stopped.result.last_step, 0);
  options_.bad_step = BadStepPolicy::kSkip;
  options_.most_bad_steps = 4;
  const Outcome skipped = run("skip", plan, options_);
  EXPECT_EQ(skipped.result.skipped_steps, 4);
  EXPECT_EQ(skipped.result.last_step, 3);
  EXPECT_NE(skipped.result.failure.find("4 such steps in a row"), std::string::npos);
  EXPECT_TRUE(skipped.steps[2].skipped);
  EXPECT_EQ(skipped.notes.size(), 3u);

  options_.clip.skip_above = 0;
  options_.max_loss = 1;
  const Outcome exploded = run("exploded", plan, options_);
  EXPECT_NE(exploded.result.failure.find("above 1"), std::string::npos);
  EXPECT_EQ(exploded.result.saved_step, -1);

  options_.max_loss = 0;
  const std::atomic<bool> stop{true};
  options_.stop = &stop;
  const Outcome interrupted = run("interrupted", plan, options_);
  EXPECT_TRUE(interrupted.result.interrupted);
  EXPECT_EQ(interrupted.result.saved_step, 1);
}

TEST_F(TrainerTest, EvaluatesToTheSameBitsOnAnyNumberOfRanks) {
  options_.lr.total_steps = options_.lr.warmup_steps = 1;
  options_.eval_sequences = 23;
  std::optional<double> alone;
  for (const std::int64_t ranks : {1, 2, 3, 4, 6}) {
    const Strategy strategy = ranks > 1 ? Strategy::kYafsdp : Strategy::kSingle;
    const Outcome outcome =
        run(fmt::format("{}", ranks), tiny_plan(strategy, ranks, 12 / ranks), options_);
    ASSERT_TRUE(outcome.result.eval_loss);
    if (!alone) alone = outcome.result.eval_loss;
    EXPECT_EQ(*outcome.result.eval_loss, *alone) << ranks;
  }
}

TEST_F(TrainerTest, MetricsAreOneLineAStepAlsoAfterResuming) {
  const Plan plan = tiny_plan(Strategy::kSingle, 1);
  options_.eval_every = 3;
  options_.eval_sequences = 2;
  run("run", plan, options_);
  const fs::path path = folder_ / "run" / "metrics.jsonl";
  put(path, get(path) + "{\"step\": 7, \"lo");  // killed while writing
  const Checkpoint from(saved("run", 4));
  options_.resume = &from;
  const Outcome resumed = run("run", plan, options_);
  std::ifstream in(path);
  std::string line;
  std::vector<nlohmann::json> lines;
  while (std::getline(in, line)) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i]["tokens"], plan.seq_len);
    EXPECT_EQ(lines[i].contains("eval_loss"), i == 2 || i == 5);
  }
  EXPECT_EQ(lines[5]["loss"].get<double>(), resumed.result.loss);
}

}  // namespace
}  // namespace shardwright::exec
