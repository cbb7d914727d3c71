// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/flags/size_flags.h"
#include "cli/interrupt.h"
#include "cli/render/answer_page.h"
#include "cli/render/sizing.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_file.h"
#include "profiles/ledger/ledger_profile.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/hf/config.h"
#include "tuner/runs/run_cost.h"
#include "tuner/size/sizing.h"

namespace shardwright::cli {
namespace {

/// "1024 x dgx-h100, 17.3 days, 999 k USD; 410 k plans/s": the best so far.
std::string note_of(const tuner::SweepProgress& progress, const std::vector<tuner::Offer>& offers,
                    const tuner::Goal& goal) {
  const double rate = static_cast<double>(progress.considered) / std::max(progress.seconds, 1e-3);
  std::string speed = fmt::format("{:.0f} k plans/s", rate / 1e3);
  if (progress.options->empty()) return speed;
  const tuner::Choice choice = tuner::choose(*progress.options, goal);
  const tuner::Sized& option =
      (*progress.options)[choice.recommended ? *choice.recommended : *choice.fastest];
  std::string note = fmt::format("{} x {}, {}", option.gpus(), offers[option.offer].name,
                                 days_words(option.cost.days));
  if (option.cost.usd) note += ", " + dollars(*option.cost.usd);
  return fmt::format("{}; {}", note, speed);
}

class SizeVerb : public Verb {
 public:
  SizeVerb() : Verb("size", "the kind and number of GPUs for a goal: tokens, deadline, budget") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    command.add("--json", json_, "print one JSON document");
    command.add_file("--out", out_, "write the answer as one HTML page, for whoever signs")
        .writes();
  }

  ExitCode run(const Context& context) override {
    SizingReport report;
    prepare(report);
    tell_notes(context.err, model_notes(report.model, report.job.fixed.seq_len));
    if (flags_.price_kind == profiles::PriceKind::kSpot && !flags_.preemption_hours) {
      tell_notes(context.err, {"Spot nodes are taken away, which these days and dollars do not "
                               "count: give --preemption-hours."});
    }
    report.sweep = search(report, context);
    tuner::refine(report.model, report.offers, report.job, report.goal, report.sweep);
    tuner::polish(report.model, report.offers, report.job, report.goal, report.sweep);
    report.choice = tuner::choose(report.sweep.options, report.goal);
    report.break_even = tuner::break_even(report.sweep.options, report.choice, report.goal);
    report.best_of_each = tuner::best_of_each(report.sweep.options, report.goal);
    if (const std::optional<std::size_t> focus = focus_of(report.choice)) {
      const std::size_t offer = report.option(*focus).offer;
      report.scaling = tuner::scaling_of(report.model, report.offers[offer], offer, report.sweep);
      if (flags_.compare) {
        report.savings = tuner::compare_strategies(report.model, report.offers, offer, report.job,
                                                   report.option(*focus).gpus(), *flags_.compare);
      }
    }
    if (!out_.empty()) write_page(report, context);
    if (json_) {
      fmt::print(results(), "{}\n", json_text(sizing_json(report)));
    } else if (!report.sweep.options.empty()) {
      fmt::print(results(), "{}", sizing_text(report, context.out));
    }
    if (report.choice.recommended) return ExitCode::kDone;
    const bool impossible =
        report.sweep.options.empty() &&
        std::all_of(report.sweep.left_out.begin(), report.sweep.left_out.end(),
                    [](const tuner::LeftOut& left) { return left.lack != tuner::Lack::kMemory; });
    if (report.sweep.stopped) throw Error(unmet_sentence(report), ExitCode::kFailed);
    throw Error(unmet_sentence(report), impossible ? ExitCode::kBadInput : ExitCode::kInfeasible);
  }

 private:
  void write_page(const SizingReport& report, const Context& context) const {
    const std::string title = fmt::format("GPUs to train {} on {} tokens", report.model_name,
                                          tokens_words(*flags_.tokens));
    write_file_atomically(
        out_, answer_page(title, {{"schema", "shardwright.report/1.0"},
                                  {"answer", sizing_json(report)},
                                  {"provenance", page_provenance(context.command_line)}}));
    notify(fmt::format("The page is in {}; it needs nothing but a browser.", out_));
  }

  static std::optional<std::size_t> focus_of(const tuner::Choice& choice) {
    for (const auto& index : {choice.recommended, choice.cheapest_in_time, choice.fastest}) {
      if (index) return index;
    }
    return std::nullopt;
  }

  void prepare(SizingReport& report) const {
    if (flags_.plan.plan_file) {
      throw Error(
          "size takes no --plan, because it searches one for each size; give the knobs to "
          "hold fixed as flags.",
          ExitCode::kUsage);
    }
    if (!flags_.plan.model || flags_.plan.model->empty()) {
      throw Error("--model is missing: give a shipped name such as llama-3-70b, or a path.",
                  ExitCode::kUsage);
    }
    if (!flags_.tokens) {
      throw Error("--tokens is missing: give the tokens to train on, such as 2e12.",
                  ExitCode::kUsage);
    }
    if (flags_.preemption_hours && flags_.price_kind != profiles::PriceKind::kSpot) {
      throw Error(
          "--preemption-hours is given, but only spot nodes are taken away; add "
          "--price-kind spot.",
          ExitCode::kUsage);
    }
    if (flags_.plan.gpus && flags_.max_gpus && *flags_.plan.gpus > *flags_.max_gpus) {
      throw Error(fmt::format("--gpus is {}, but --max-gpus is {}; leave one of them out.",
                              *flags_.plan.gpus, *flags_.max_gpus));
    }
    report.model_name = *flags_.plan.model;
    report.model = load_model(profiles::data_dir() / "models", report.model_name);
    report.overrides = flags_.plan.overrides;
    std::optional<std::string> stack = flags_.plan.stack;
    if (!stack && fine_tunes(flags_.plan.task, flags_.plan.knobs))
      stack = profiles::usual_fine_tuning_stack();
    report.offers = tuner::load_offers(
        cluster_names(flags_), stack, flags_.plan.overrides, flags_.prices.given, flags_.price_kind,
        flags_.prices.imported(), {flags_.plan.node_network, flags_.plan.power_limit_watts});
    // Nobody should be told to buy what nobody measured; whoever names it is answered.
    if (!flags_.plan.cluster && flags_.clusters.value_or("all") == "all") {
      for (tuner::Offer& offer : report.offers) offer.shown_only = tuner::estimate_only(offer);
    }
    report.price_kind = flags_.price_kind;
    report.today = profiles::today();
    report.goal = flags_.goal;
    report.operations = profiles::load_operations();
    report.energy = flags_.energy.energy(flags_.plan.power_limit_watts);
    tuner::SizingJob& job = report.job;
    job.fixed = tuner::request_holding(flags_.plan.knobs, report.model);
    if (!flags_.plan.knobs.seq_len) {
      const bool fine = fine_tunes(flags_.plan.task, flags_.plan.knobs);
      job.fixed.seq_len = usual_seq_len(report.model, fine);
      report.usual_length = usual_length_words(report.model, fine);
    }
    report.published = tuner::trainings_of(report.model, profiles::shipped_trainings());
    job.fixed.global_batch = flags_.global_batch;
    // Eager attention is neither faster nor smaller anywhere.
    if (!job.fixed.attention) job.fixed.attention = AttentionKind::kFlash;
    job.gpus = flags_.plan.gpus;
    job.max_gpus = flags_.max_gpus.value_or(job.max_gpus);
    job.run = conditions(report, job.fixed.seq_len);
    if (tuner::chooses_batch(job)) job.run.free_tokens = tuner::uncounted_tokens(job.run);
  }

  tuner::RunConditions conditions(const SizingReport& report, std::int64_t seq_len) const {
    tuner::RunConditions run = tuner::usual_conditions(report.model, *flags_.tokens, seq_len);
    if (flags_.mtbf_hours) {
      run.mtbf_gpu_hours = *flags_.mtbf_hours;
      run.mtbf_range = {};
    }
    run.preemption_node_hours = flags_.preemption_hours.value_or(0);
    run.restart_s = flags_.restart_s.value_or(run.restart_s);
    run.checkpoint_s = flags_.checkpoint_s;
    return run;
  }

  tuner::Sweep search(const SizingReport& report, const Context& context) const {
    const Interrupt interrupt;
    std::optional<Progress> line;
    tuner::SweepOptions options;
    options.stop = &interrupt.flag();
    options.near_days = flags_.goal.deadline_days;
    if (context.err.interactive) {
      options.progress = [&](const tuner::SweepProgress& progress) {
        if (!line) line.emplace(context.err, "size", progress.total);
        line->update(progress.done, note_of(progress, report.offers, flags_.goal));
      };
    }
    return tuner::sweep(report.model, report.offers, report.job, options);
  }

  SizeFlags flags_;
  std::string out_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_size_verb() {
  return std::make_unique<SizeVerb>();
}

}  // namespace shardwright::cli
