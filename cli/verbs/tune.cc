// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/build_info.h"
#include "cli/export/told.h"
#include "cli/flags/tune_flags.h"
#include "cli/interrupt.h"
#include "cli/render/drawn_step.h"
#include "cli/render/prediction.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/tuning.h"
#include "cli/render/words/plan.h"
#include "cli/verbs/verbs.h"
#include "profiles/profile.h"
#include "sim/core/base/error.h"
#include "sim/core/executed_plan.h"
#include "sim/core/layout.h"
#include "sim/core/plan_json.h"
#include "sim/predict.h"
#include "sim/uncertainty/intervals.h"
#include "tuner/advice/advice.h"
#include "tuner/search/robustness.h"
#include "tuner/search/steps.h"

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
    command.add_file("--out", out_, "write the best plan, for predict, run and export --plan")
        .writes();
    command.add_file("--trace", trace_, "write a Chrome trace of the best plan's step").writes();
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
    question.usual_length = std::exchange(job.usual_length, std::nullopt);
    const Plan given = job.plans.front();
    question.job = std::move(job);
    question.job.plans.clear();
    tuner::Tuning tuning = answer(question, context);
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
  /// Frameworks that the answer has to stay in.
  std::vector<const ToldFramework*> asked_frameworks() const {
    std::vector<const ToldFramework*> frameworks;
    for (const std::string& name : flags_.frameworks) frameworks.push_back(&told_framework(name));
    if (!frameworks.empty() && flags_.plan.stack)
      throw Error("--for and --stack both name the framework, expected one of them.",
                  ExitCode::kUsage);
    return frameworks;
  }

  FrameworkSearch framework_search(const TuningQuestion& question, const TimeLimit& limit) const {
    FrameworkSearch search;
    search.options.stop = &limit.flag();
    search.options.give_up = &limit.last_flag();
    search.options.criteria = question.criteria;
    search.options.threads = static_cast<int>(flags_.threads);
    search.headroom = flags_.headroom;
    search.robust = question.robust;
    return search;
  }

  /// The plans of the frameworks that are asked for. Fine-tuning is that of Transformers' Trainer
  /// where nobody says otherwise, as other verbs predict it.
  std::vector<FrameworkPlan> told_plans(const sim::Job& job, const tuner::Request& request,
                                        bool fine, const FrameworkSearch& search) const {
    const bool named = !flags_.frameworks.empty() || flags_.plan.stack || flags_.plan.plan_file;
    if (fine && !named && !job.model.is_moe() && !job.profile.cluster.gpu.is_processor())
      return {trainer_plan(job, request, search)};
    return framework_plans(job, request, asked_frameworks(), search);
  }

  tuner::Tuning answer(TuningQuestion& question, const Context& context) const {
    const Interrupt interrupt;
    const TimeLimit limit(interrupt.flag(), flags_.time_limit);
    FrameworkSearch frameworks = framework_search(question, limit);
    const tuner::Request asked = question.request;
    const sim::Job job = question.job;
    tuner::SimulatorPool simulators;
    frameworks.options.simulators = &simulators;
    tuner::Tuning tuning;
    const std::vector<FrameworkPlan> plans =
        told_plans(job, asked, question.fine_tunes, frameworks);
    question.told = !plans.empty();
    if (!question.told) {
      const FrameworkCandidates candidates =
          candidates_of(flags_.plan, question.job, question.request);
      tuning = search(question, candidates.frameworks(flags_.headroom, question.request.gpus),
                      frameworks.options, context);
    } else {
      tuning = answer_in(best_of_frameworks(plans), question, frameworks.options, context);
    }
    if (tuning.stopped) return tuning;
    if (tuning.top.empty()) {
      question.request = asked;
      if (tuning.advice) complete_ways(job, question, framework_search(question, limit), tuning);
    } else {
      std::vector<FrameworkPlan> told = plans_of_all(job, asked, plans, frameworks);
      const bool named = question.told || flags_.plan.stack || flags_.plan.plan_file;
      const FrameworkPlan* faster = named ? nullptr : faster_framework(told, tuning.top.front());
      if (faster != nullptr) {
        question.told = true;
        tuning = answer_in(*faster, question, frameworks.options, context);
        if (tuning.stopped) return tuning;
      }
      if (!question.told && !named && !tuner::features_of(asked).any())
        tuning.native = native_plan(told, tuning.top.front());
      for (FrameworkPlan& plan : told) {
        question.frameworks.push_back(
            {std::string(plan.framework->name), std::string(plan.framework->title),
             std::move(plan.found.best), overrides_of(*plan.framework), plan.found.refusal});
      }
      if (limit.flag()) {  // some were not searched to the end
        tuning.stopped = true;
        tuning.native.reset();
        question.frameworks.clear();
      }
    }
    return tuning;
  }

  /// Of all frameworks in their order; those that are known already are not searched again.
  static std::vector<FrameworkPlan> plans_of_all(const sim::Job& job, const tuner::Request& request,
                                                 const std::vector<FrameworkPlan>& known,
                                                 const FrameworkSearch& search) {
    std::vector<FrameworkPlan> all;
    for (const ToldFramework& framework : told_frameworks()) {
      const auto at = std::find_if(known.begin(), known.end(), [&](const FrameworkPlan& one) {
        return one.framework == &framework;
      });
      if (at != known.end()) {
        all.push_back(*at);
      } else {
        all.push_back(std::move(framework_plans(job, request, {&framework}, search).front()));
      }
    }
    return all;
  }

  /// Some frameworks can be told what no search unasked looks at. This project's own, which has
  /// never run on a GPU, is no answer there, and no other is on a processor.
  static const FrameworkPlan* faster_framework(const std::vector<FrameworkPlan>& plans,
                                               const tuner::Found& answer) {
    constexpr double kRounding = 1 - 1e-9;
    const FrameworkPlan* best = nullptr;
    for (const FrameworkPlan& plan : plans) {
      if (!plan.found.best || plan.profile.cluster.gpu.is_processor()) continue;
      if (plan.profile.stack.id == kOwnStack) continue;
      const double least = best == nullptr ? answer.score * kRounding : best->found.best->score;
      if (plan.found.best->score < least) best = &plan;
    }
    return best;
  }

  /// What this project's executor can be told, where another's best is not better for certain.
  static std::optional<tuner::NativePlan> native_plan(const std::vector<FrameworkPlan>& plans,
                                                      const tuner::Found& answer) {
    const auto own = std::find_if(plans.begin(), plans.end(), [](const FrameworkPlan& plan) {
      return plan.profile.stack.id == kOwnStack && plan.found.best;
    });
    if (own == plans.end() || answer.plan().stack == kOwnStack) return std::nullopt;
    const sim::TimePrediction& time = answer.prediction.time;
    const double cost = own->found.best->score / answer.score - 1;
    if (1 + cost > time.interval_s[1] / time.iteration_s) return std::nullopt;
    return tuner::NativePlan{*own->found.best, own->profile, cost};
  }

  /// The whole answer about one framework; the question becomes that of its plans.
  tuner::Tuning answer_in(const FrameworkPlan& best, TuningQuestion& question,
                          const tuner::SearchOptions& ends, const Context& context) const {
    question.request = tuner::request_of(best.asked[best.found.index]);
    question.request.stack = best.profile.stack.id;
    question.criteria.headroom = best.headroom;
    question.job.profile = best.profile;
    for (std::string& value : overrides_of(*best.framework))
      question.job.overrides.push_back(std::move(value));
    return search(question, frameworks_for(best), ends, context);
  }

  tuner::Tuning search(const TuningQuestion& question, const tuner::Frameworks& frameworks,
                       const tuner::SearchOptions& ends, const Context& context) const {
    Progress progress(context.err, "tune", 0);
    tuner::TuneOptions options;
    options.search.criteria = question.criteria;
    options.search.threads = static_cast<int>(flags_.threads);
    options.search.stop = ends.stop;
    options.search.give_up = ends.give_up;
    options.search.simulators = ends.simulators;
    options.search.progress = [&](const tuner::SearchProgress& now) {
      progress.update(now.configurations, progress_note(now));
    };
    options.robust = question.robust;
    return tuner::tune(question.job.model, frameworks, question.request, options);
  }

  /// The best plan of the job's own framework.
  static std::optional<tuner::Found> own_answer(const sim::Job& job, const FrameworkSearch& search,
                                                const tuner::Request& request) {
    profiles::Profile profile = job.profile;
    profile.cluster = filled(std::move(profile.cluster), request.gpus);
    return tuner::best_of_requests(job.model, tuner::scenarios_of(profile, search.robust),
                                   {{request, tuner::Extent::kAll}}, search.options)
        .best;
  }

  /// What this verb answers to another request on the cluster of `job`, of the frameworks that are
  /// named or usual for fine-tuning; none where it searches all frameworks at once.
  std::optional<tuner::Found> told_answer(const sim::Job& job, const FrameworkSearch& search,
                                          const tuner::Request& request) const {
    if (flags_.plan.stack || flags_.plan.plan_file) return own_answer(job, search, request);
    const bool fine = fine_tunes(flags_.plan.task, flags_.plan.knobs);
    const std::vector<FrameworkPlan> plans =
        told_plans(job, request, fine || request.parallel.lora, search);
    if (plans.empty()) return std::nullopt;
    return best_of_frameworks(plans).found.best;
  }

  /// Another optimizer makes other frameworks candidates: the plan is the best of all of them.
  void answer_of_all(const TuningQuestion& question, const FrameworkSearch& search,
                     tuner::Way& way) const {
    const tuner::Request& request = way.request;
    PlanFlags flags = flags_.plan;
    const bool same = request.parallel.optimizer == question.request.parallel.optimizer &&
                      request.offload == question.request.offload;
    if (same || way.flags.starts_with("none of")) return;
    flags.knobs.parallel.optimizer = request.parallel.optimizer;
    if (request.offload == Offload::kOptimizer) flags.knobs.offload = {Offload::kOptimizer, 0};
    const sim::Job job = resolve_base(flags);
    const FrameworkCandidates candidates = candidates_of(flags, job, request);
    const tuner::Frameworks frameworks = candidates.frameworks(flags_.headroom, request.gpus);
    tuner::Search again(job.model, plans_of(request, job.model, frameworks.searched, search.robust),
                        search.options);
    std::vector<tuner::Found> found = again.best(1);
    if (found.empty()) return;
    climb(found.front(), [&](const tuner::Found& at) {
      return steps_of(again, job.model, request, search.options, at);
    });
    set_plan(way, std::move(found.front()));
  }

  /// Ways out among what frameworks can be told, and adapters, which one node's owner may do with.
  void complete_ways(const sim::Job& job, const TuningQuestion& question,
                     const FrameworkSearch& search, tuner::Tuning& tuning) const {
    constexpr std::int64_t kNode = 8;
    const tuner::Request& request = question.request;
    const std::atomic<bool>& stop = *search.options.stop;
    const tuner::Answering answering = [&](const tuner::Request& changed) {
      return stop ? std::nullopt : told_answer(job, search, changed);
    };
    std::vector<tuner::Way>& ways = tuning.advice->ways;
    if (question.told) {
      ways = tuner::ways_out(job.model, job.profile, request, answering, &stop);
    } else {
      try {
        for (tuner::Way& way : ways) {
          if (!stop) answer_of_all(question, search, way);
        }
      } catch (const tuner::SearchEnded&) {  // the others stay what they are
      }
    }
    if (ways.empty() || request.gpus <= kNode) {
      for (tuner::Way& way : tuner::adapter_ways(request, answering))
        ways.push_back(std::move(way));
    }
    tuner::rank_ways(ways, request.gpus);
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
    notify(
        fmt::format("The plan is in {0}; shardwright predict --plan {0} predicts it again.", out_));
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
