// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/build_info.h"
#include "cli/flags/candidates.h"
#include "cli/flags/tune_flags.h"
#include "cli/interrupt.h"
#include "cli/render/json/json_text.h"
#include "cli/render/prediction.h"
#include "cli/render/text/progress.h"
#include "cli/render/text/quantity.h"
#include "cli/render/tuning.h"
#include "cli/render/words/job_notes.h"
#include "cli/time_limit.h"
#include "cli/trace/trace_file.h"
#include "cli/verbs/verbs.h"
#include "sim/core/plan_json.h"
#include "sim/predict.h"
#include "sim/uncertainty/headroom.h"
#include "tuner/scenarios.h"

namespace shardwright::cli {
namespace {

std::string progress_note(const tuner::SearchProgress& now) {
  std::string note = fmt::format(
      "{:.2f} million plans a second, {}",
      static_cast<double>(now.configurations) / std::max(now.seconds, 1e-3) * 1e-6, now.doing);
  if (now.best != nullptr) {
    note +=
        fmt::format(", best so far {} a step with {}", quantity(now.best->time.iteration_s, "s"),
                    name_of(now.best->plan.strategy));
  }
  return note;
}

class TuneVerb : public Verb {
 public:
  TuneVerb() : Verb("tune", "the best plans for a model on a given cluster, and why they are") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    command.add("--json", json_, "print one JSON document");
    command.add("--out", out_, "write the best plan, for predict, run and export --plan")
        .type_name("FILE");
    command.add("--trace", trace_, "write a Chrome trace of the best plan's step")
        .type_name("FILE");
  }

  ExitCode run(const Context& context) override {
    sim::Job job = resolve_base(flags_.plan);
    tell_notes(context.err, model_notes(job.model, job.plans.front().seq_len));
    TuningQuestion question;
    question.request = request_of(flags_, job);
    question.criteria = {
        flags_.objective,
        flags_.headroom.value_or(sim::asked_headroom(job.profile, question.request.gpus)),
        flags_.recompute_for_speed};
    question.robust = flags_.robust;
    const Plan given = job.plans.front();
    question.job = std::move(job);
    question.job.plans.clear();
    const FrameworkCandidates candidates =
        candidates_of(flags_.plan, question.job, question.request);
    const tuner::Tuning tuning = search(question, candidates, context);
    if (flags_.plan.plan_file) question.given = judged(question, given);
    if (tuning.profile) question.job.profile = *tuning.profile;

    // Files first: whoever reads the answer may rely on them.
    if (!tuning.top.empty()) {
      const sim::Prediction& best = tuning.top.front().prediction;
      if (!out_.empty()) write(question.job, best, context);
      if (!trace_.empty()) write_trace(question.job, best.plan);
    }
    if (json_) {
      fmt::print(results(), "{}\n", json_text(tuning_json(question, tuning)));
    } else if (!tuning.top.empty() || tuning.advice) {
      fmt::print(results(), "{}", tuning_text(question, tuning, context.out));
    }
    if (!tuning.top.empty()) return ExitCode::kDone;
    if (tuning.stopped) {
      throw Error(flags_.time_limit
                      ? fmt::format("the search was stopped before it found a plan that fits; "
                                    "expected more than --time-limit {:g}.",
                                    *flags_.time_limit)
                      : "the search was stopped before it found a plan that fits.",
                  ExitCode::kFailed);
    }
    throw Error(nothing_fits_sentence(tuning), ExitCode::kInfeasible);
  }

 private:
  tuner::Tuning search(const TuningQuestion& question, const FrameworkCandidates& candidates,
                       const Context& context) const {
    Progress progress(context.err, "tune", 0);
    const Interrupt interrupt;
    const TimeLimit limit(interrupt.flag(), flags_.time_limit);
    tuner::TuneOptions options;
    options.search.criteria = question.criteria;
    options.search.threads = static_cast<int>(flags_.threads);
    options.search.stop = &limit.flag();
    options.search.progress = [&](const tuner::SearchProgress& now) {
      progress.update(now.configurations, progress_note(now));
    };
    options.robust = question.robust;
    return tuner::tune(question.job.model,
                       candidates.frameworks(flags_.headroom, question.request.gpus),
                       question.request, options);
  }

  static tuner::Judgement judged(const TuningQuestion& question, const Plan& plan) {
    const std::vector<tuner::Scenario> scenarios =
        tuner::scenarios_of(question.job.profile, question.robust);
    return tuner::Evaluator(question.job.model, scenarios, question.criteria).judge(plan);
  }

  void write(const sim::Job& inputs, const sim::Prediction& best, const Context& context) const {
    PlanDocument document = sim::document_of(inputs, best.plan);
    document.prediction = json_text(prediction_json(inputs, best));
    document.command = context.command_line;
    document.tool_version = build_info().version;
    write_plan(out_, document);
    fmt::print(messages(),
               "The plan is in {0}; shardwright predict --plan {0} predicts it again.\n", out_);
  }

  void write_trace(const sim::Job& inputs, const Plan& plan) const {
    sim::Job of_plan = inputs;
    of_plan.plans = {plan};
    write_trace_of(trace_, name(), of_plan);
  }

  TuneFlags flags_;
  std::string out_, trace_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_tune_verb() {
  return std::make_unique<TuneVerb>();
}

}  // namespace shardwright::cli
