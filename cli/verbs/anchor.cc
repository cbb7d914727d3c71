// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/flags/plan_flags.h"
#include "cli/render/measured/calibration.h"
#include "cli/render/text/json_text.h"
#include "cli/verbs/verbs.h"
#include "profiles/ledger/ledger.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/calibrate/calibration_files.h"
#include "sim/core/base/error.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kUsualWarmup = 5;
/// Times the measured GPUs that the table goes to, as far as the cluster links nodes.
constexpr std::int64_t kSizes[] = {2, 4, 8, 16, 64};

class AnchorVerb : public Verb {
 public:
  AnchorVerb() : Verb("anchor", "one measured step (a log, or its time) into a profile") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    command.add_file("--log", log_, "what the trainer printed: " + profiles::step_log_kinds());
    command.add("--step-time", step_time_, "seconds of a step, where there is no log", {1e-6, 1e6});
    command.add("--skip", skip_, "steps at the beginning of the log that do not count (default: 5)",
                {0, 1 << 30});
    command.add_file("--out", out_, "write the profile, which --cluster takes");
    command.add_file(
        "--ledger", ledger_,
        "instead: how far one step carries, over the series of published runs of a table");
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    if (ledger_) return run_ledger(context);
    if (log_.has_value() == step_time_.has_value()) {
      throw Error(log_ ? "--log and --step-time are both given, expected one of them."
                       : "--log or --step-time is missing: give what was measured.",
                  ExitCode::kUsage);
    }
    const sim::Job job = resolve(flags_);
    if (job.plans.size() != 1) {
      throw Error(fmt::format("--strategy names {} plans, but one was measured; name one.",
                              job.plans.size()),
                  ExitCode::kUsage);
    }
    AnchorReport report{job, {}, "", {}, {}, out_};
    double measured = step_time_.value_or(0);
    if (log_) measured = read_log(job.plans.front(), report);
    report.fit = sim::anchor(job.model, job.profile, job.plans.front(), measured);
    carry(job, report);
    if (report.fit.implausible) report.out.clear();
    if (!report.out.empty()) write(job, report);
    fmt::print(results(), "{}",
               json_ ? json_text(anchor_json(report)) + "\n" : anchor_text(report, context.out));
    return report.fit.implausible ? ExitCode::kOutsideTolerance : ExitCode::kDone;
  }

 private:
  ExitCode run_ledger(const Context& context) const {
    const auto series = sim::anchored_series(profiles::load_ledger(*ledger_));
    fmt::print(results(), "{}",
               json_ ? json_text(anchored_series_json(series)) + "\n"
                     : anchored_series_text(series, context.out));
    return ExitCode::kDone;
  }

  double read_log(const Plan& plan, AnchorReport& report) const {
    const double tokens = static_cast<double>(plan.seq_len * plan.micro_batch * plan.grad_accum) /
                          static_cast<double>(plan.parallel.replica());
    const profiles::StepLog log = profiles::read_step_log(*log_, tokens);
    report.log = log.format;
    report.measured = profiles::median_step(log, skip_.value_or(kUsualWarmup));
    return report.measured.seconds;
  }

  /// The same work of each GPU on more of them, as far as that can be.
  static void carry(const sim::Job& job, AnchorReport& report) {
    for (const std::int64_t times : kSizes) {
      Plan plan = job.plans.front();
      plan.gpus *= times;
      if (plan.shard_group == job.plans.front().gpus) plan.shard_group = 0;
      try {
        report.sizes.push_back({sim::predict(job.model, job.profile, plan),
                                sim::predict(job.model, report.fit.result.profile, plan)});
      } catch (const InvalidPlan&) {
        return;  // nodes that are not linked, or a strategy of one rank
      }
    }
  }

  void write(const sim::Job& job, const AnchorReport& report) const {
    sim::CalibratedFile file;
    file.base = job.cluster_name;
    file.stack = job.profile.stack.id;
    file.date = sim::today();
    file.level = profiles::novelty_widths().level;
    file.anchors = {{job.model.name, job.plans.front().gpus,
                     std::string(name_of(job.plans.front().strategy)), report.fit.measured_s,
                     report.fit.before.time.iteration_s, report.fit.carried,
                     std::max<std::int64_t>(1, report.measured.steps)}};
    sim::write_calibrated(out_, file, report.fit.result);
  }

  PlanFlags flags_;
  std::optional<std::string> log_, ledger_;
  std::optional<double> step_time_;
  std::optional<std::int64_t> skip_;
  std::string out_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_anchor_verb() {
  return std::make_unique<AnchorVerb>();
}

}  // namespace shardwright::cli
