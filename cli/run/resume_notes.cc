// SPDX-License-Identifier: Apache-2.0
#include "cli/run/resume_notes.h"

#include <fmt/core.h>

#include <utility>

#include "cli/run/job_facts.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"

namespace shardwright::cli {
namespace {

std::string parts_text(std::int64_t parts) {
  return fmt::format("{} part{}", parts, parts == 1 ? "" : "s");
}

}  // namespace

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

std::vector<std::string> resume_notes(const RunOptions& options, const exec::Checkpoint& resumed) {
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
  for (const exec::JobFact& fact : resumed.manifest().job) {
    const std::string steps = fmt::format("{}", options.train.lr.total_steps);
    if (fact.key != "steps" || fact.value == steps) continue;
    notes.push_back(
        fmt::format("the schedule of the learning rate spans {} steps; before it spanned {}", steps,
                    fact.value));
  }
  for (std::string& sentence : moved_facts(options, resumed)) notes.push_back(std::move(sentence));
  return notes;
}

}  // namespace shardwright::cli
