// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/build_info.h"
#include "cli/export/framework_plans.h"
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
#include "profiles/ledger/usual_stack.h"
#include "sim/core/plan_json.h"
#include "sim/core/rack.h"
#include "sim/predict.h"
#include "sim/uncertainty/headroom.h"
#include "tuner/advice/lighter_training.h"
#include "tuner/advice/scenarios.h"

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
    question.fine_tunes = fine_tunes(flags_.plan.task, flags_.plan.knobs);
    const Plan given = job.plans.front();
    question.job = std::move(job);
    question.job.plans.clear();
    tuner::Tuning tuning = answer(question, context);
    if (tuning.top.empty() && tuning.advice && !tuning.stopped) add_lighter_ways(question, tuning);
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
  /// Frameworks that the answer has to stay in; fine-tuning is Accelerate's where nobody says.
  std::vector<const ToldFramework*> asked_frameworks(const TuningQuestion& question) const {
    std::vector<const ToldFramework*> frameworks;
    for (const std::string& name : flags_.frameworks) frameworks.push_back(&told_framework(name));
    if (!frameworks.empty() && flags_.plan.stack)
      throw Error("--for and --stack both name the framework, expected one of them.",
                  ExitCode::kUsage);
    const bool named = flags_.plan.stack || flags_.plan.plan_file;
    const bool fine = fine_tunes(flags_.plan.task, flags_.plan.knobs);
    if (frameworks.empty() && !named && fine && !question.job.model.is_moe())
      frameworks.push_back(&told_framework("accelerate"));
    return frameworks;
  }

  tuner::Tuning answer(TuningQuestion& question, const Context& context) const {
    const Interrupt interrupt;
    const TimeLimit limit(interrupt.flag(), flags_.time_limit);
    FrameworkSearch frameworks;
    frameworks.options.criteria = question.criteria;
    frameworks.options.threads = static_cast<int>(flags_.threads);
    frameworks.options.stop = &limit.flag();
    frameworks.headroom = flags_.headroom;
    frameworks.robust = question.robust;
    const tuner::Request asked = question.request;
    const sim::Job job = question.job;
    tuner::SimulatorPool simulators;
    frameworks.options.simulators = &simulators;
    tuner::Tuning tuning;
    const std::vector<const ToldFramework*> named = asked_frameworks(question);
    const std::vector<FrameworkPlan> plans = framework_plans(job, asked, named, frameworks);
    // Knobs of a plan that no trainer can be told are predicted all the same where none is named.
    const bool implied = flags_.frameworks.empty();
    if (named.empty() || (implied && plans.front().asked.empty())) {
      const FrameworkCandidates candidates =
          candidates_of(flags_.plan, question.job, question.request);
      tuning = search(question, candidates.frameworks(flags_.headroom, question.request.gpus),
                      limit.flag(), simulators, context);
    } else {
      const FrameworkPlan& best = best_of_frameworks(plans);
      question.request = tuner::request_of(best.asked[best.found.index]);
      question.request.stack = best.profile.stack.id;
      question.criteria.headroom = best.headroom;
      question.job.profile = best.profile;
      for (std::string& value : overrides_of(*best.framework))
        question.job.overrides.push_back(std::move(value));
      tuning = search(question, frameworks_for(best), limit.flag(), simulators, context);
    }
    if (tuning.stopped) return tuning;
    if (tuning.top.empty()) {
      question.request = asked;
    } else {
      std::vector<const ToldFramework*> all;
      for (const ToldFramework& framework : told_frameworks()) all.push_back(&framework);
      for (FrameworkPlan& plan : framework_plans(job, asked, all, frameworks)) {
        question.frameworks.push_back({std::string(plan.framework->name),
                                       std::string(plan.framework->title),
                                       std::move(plan.found.best), plan.found.refusal});
      }
    }
    return tuning;
  }

  tuner::Tuning search(const TuningQuestion& question, const tuner::Frameworks& frameworks,
                       const std::atomic<bool>& stop, tuner::SimulatorPool& simulators,
                       const Context& context) const {
    Progress progress(context.err, "tune", 0);
    tuner::TuneOptions options;
    options.search.criteria = question.criteria;
    options.search.threads = static_cast<int>(flags_.threads);
    options.search.stop = &stop;
    options.search.simulators = &simulators;
    options.search.progress = [&](const tuner::SearchProgress& now) {
      progress.update(now.configurations, progress_note(now));
    };
    options.robust = question.robust;
    return tuner::tune(question.job.model, frameworks, question.request, options);
  }

  /// Optimizer states in fewer bits or elsewhere, adapters: of the framework that was named, or of
  /// the usual one for fine-tuning.
  void add_lighter_ways(const TuningQuestion& question, tuner::Tuning& tuning) const {
    const bool named = flags_.plan.stack || flags_.plan.plan_file;
    const Model& model = question.job.model;
    const auto telling = [&](const tuner::Request& request) -> std::vector<tuner::AskedPlans> {
      if (!named) return trainer_requests(request, model);
      const bool asks = tuner::asks_for_model_parallel(request);
      return {{request, asks ? tuner::Extent::kAll : tuner::Extent::kDataAlone}};
    };
    profiles::Profile profile =
        named ? question.job.profile
              : profiles::make_profile(question.job.cluster_file,
                                       profiles::load_stack(profiles::usual_fine_tuning_stack()),
                                       question.job.overrides);
    profile.cluster = filled(std::move(profile.cluster), question.request.gpus);
    tuner::SearchOptions options;
    options.criteria = question.criteria;
    options.threads = static_cast<int>(flags_.threads);
    std::vector<tuner::Way>& ways = tuning.advice->ways;
    for (tuner::Way& way : tuner::lighter_ways(model, tuner::scenarios_of(profile, question.robust),
                                               question.request, options, telling)) {
      const bool known = std::any_of(ways.begin(), ways.end(), [&](const tuner::Way& other) {
        return other.flags == way.flags;
      });
      if (!known) ways.push_back(std::move(way));
    }
    tuner::rank_ways(ways, question.request.gpus);
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
