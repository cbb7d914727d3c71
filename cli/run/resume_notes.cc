// SPDX-License-Identifier: Apache-2.0
#include "cli/run/resume_notes.h"

#include <fmt/core.h>

#include <array>
#include <filesystem>

#include "sim/core/base/error.h"
#include "sim/core/base/invalid_plan.h"
#include "sim/core/trained_precision.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

/// Settings that change what training does from the resumed step on.
constexpr std::array kOptimizerKeys = {
    "lr",    "schedule", "warmup", "final-lr-fraction", "decay-fraction", "weight-decay", "beta1",
    "beta2", "eps",      "clip"};

std::int64_t sequences_of_step(const Plan& plan) {
  return plan.gpus / plan.parallel.replica() * plan.micro_batch * plan.grad_accum;
}

std::string parts_text(std::int64_t parts) {
  return fmt::format("{} part{}", parts, parts == 1 ? "" : "s");
}

}  // namespace

std::optional<RunSettings> settings_of_run(const exec::Checkpoint& checkpoint) {
  const fs::path file =
      fs::absolute(checkpoint.folder()).lexically_normal().parent_path().parent_path() / "run.ini";
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return std::nullopt;
  try {
    RunSettings settings;
    settings.set_flag(kConfig, file.string());
    settings.resolve({});
    return settings;
  } catch (const Error&) {  // of another run, which may be any file by now: no notes about it
    return std::nullopt;
  }
}

bool keep_sum_shape(RunOptions& options, const exec::Checkpoint& resumed) {
  const std::int64_t before = resumed.manifest().plan.feature_parts();
  if (options.plan.sum_features > 0 || options.plan.feature_parts() == before) return false;
  Plan kept = options.plan;
  kept.sum_features = before;
  try {
    check_plan(with_products_in_bf16(kept), options.model, kept.gpus);
  } catch (const InvalidPlan&) {
    return false;  // resume_notes says what that means
  }
  options.plan = kept;
  options.notes.push_back(
      fmt::format("sums over features have {} as in {}; --sum-shape gives others",
                  parts_text(before), resumed.folder().string()));
  return true;
}

std::vector<std::string> resume_notes(const RunOptions& options, const RunSettings& settings,
                                      const exec::Checkpoint& resumed,
                                      const std::optional<RunSettings>& earlier) {
  std::vector<std::string> notes;
  const Plan& before = resumed.manifest().plan;
  const Plan& now = options.plan;
  if (sequences_of_step(now) != sequences_of_step(before) || now.seq_len != before.seq_len) {
    notes.push_back(fmt::format(
        "a step has {} sequences of {} tokens from here on; up to the checkpoint it had {} of {}",
        sequences_of_step(now), now.seq_len, sequences_of_step(before), before.seq_len));
  }
  if (now.feature_parts() != before.feature_parts()) {
    notes.push_back(
        fmt::format("sums over features have {} from here on, up to the checkpoint they had {}: "
                    "results are equal but for rounding; --sum-shape gives others",
                    parts_text(now.feature_parts()), before.feature_parts()));
  }
  if (options.model.tied_head && now.use_parts() != before.use_parts()) {
    const bool apart = now.use_parts() > 1;
    notes.push_back(fmt::format(
        "gradients of the tied embedding and head are summed {} from here on, up to the checkpoint "
        "they were {}: results are equal but for rounding{}",
        apart ? "apart" : "together", apart ? "together" : "apart",
        apart ? "" : fmt::format("; --sum-shape {},1,1,2 gives others", now.feature_parts())));
  }
  if (!earlier) return notes;
  if (earlier->text("steps") != settings.text("steps")) {
    notes.push_back(
        fmt::format("the schedule of the learning rate spans {} steps; before it spanned {}",
                    settings.text("steps"), earlier->text("steps")));
  }
  for (const char* key : kOptimizerKeys) {
    if (earlier->text(key) == settings.text(key)) continue;
    notes.push_back(fmt::format("--{} is {}; in the run that is resumed it was {}", key,
                                settings.text(key), earlier->text(key)));
  }
  return notes;
}

}  // namespace shardwright::cli
