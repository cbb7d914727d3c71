// SPDX-License-Identifier: Apache-2.0
#include "cli/run/resume_notes.h"

#include <fmt/core.h>

#include <array>
#include <filesystem>

#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

/// Settings that change what training does from the resumed step on.
constexpr std::array kOptimizerKeys = {
    "lr",    "schedule", "warmup", "final-lr-fraction", "decay-fraction", "weight-decay", "beta1",
    "beta2", "eps",      "clip"};

std::int64_t sequences_of_step(const Plan& plan) {
  return plan.gpus * plan.micro_batch * plan.grad_accum;
}

/// The settings of the run that wrote the checkpoint OUT/checkpoints/step-N; false: not known.
bool read_earlier(const fs::path& checkpoint, RunSettings& earlier) {
  const fs::path file =
      fs::absolute(checkpoint).lexically_normal().parent_path().parent_path() / "run.ini";
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return false;
  try {
    earlier.set_flag(kConfig, file.string());
    earlier.resolve({});
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace

std::vector<std::string> resume_notes(const RunOptions& options, const RunSettings& settings,
                                      const exec::Checkpoint& resumed) {
  std::vector<std::string> notes;
  const Plan& before = resumed.manifest().plan;
  const Plan& now = options.plan;
  if (sequences_of_step(now) != sequences_of_step(before) || now.seq_len != before.seq_len) {
    notes.push_back(fmt::format(
        "a step has {} sequences of {} tokens from here on; up to the checkpoint it had {} of {}",
        sequences_of_step(now), now.seq_len, sequences_of_step(before), before.seq_len));
  }
  RunSettings earlier;
  if (!read_earlier(resumed.folder(), earlier)) return notes;
  if (earlier.text("steps") != settings.text("steps")) {
    notes.push_back(
        fmt::format("the schedule of the learning rate spans {} steps; before it spanned {}",
                    settings.text("steps"), earlier.text("steps")));
  }
  for (const char* key : kOptimizerKeys) {
    if (earlier.text(key) == settings.text(key)) continue;
    notes.push_back(fmt::format("--{} is {}; in the run that is resumed it was {}", key,
                                settings.text(key), earlier.text(key)));
  }
  return notes;
}

}  // namespace shardwright::cli
