#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/flags/offers.h"
#include "cli/flags/plan_flags.h"
#include "cli/flags/search_request.h"
#include "cli/render/json/json_text.h"
#include "cli/render/sizing.h"
#include "cli/render/text/progress.h"
#include "cli/render/text/quantity.h"
#include "cli/run/interrupt.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_dir.h"
#include "sim/core/hf_config.h"
#include "sim/core/nearest.h"
#include "tuner/critical_batch.h"

namespace shardwright::cli {
namespace {

constexpr const char* kGoal = "The goal";
constexpr const char* kLosses = "Failures and checkpoints";
constexpr std::int64_t kMostGpus = 1 << 20;

std::array<Strategy, 2> parse_pair(const std::string& text) {
  const std::size_t comma = text.find(',');
  std::array<Strategy, 2> pair{};
  const std::array<std::string, 2> words{text.substr(0, comma),
                                         comma == text.npos ? "" : text.substr(comma + 1)};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::optional<Strategy> strategy = strategy_from(words[i]);
    if (!strategy) {
      throw Error(fmt::format(
          "--compare is '{}', expected two strategies joined by a comma, such as yafsdp,fsdp1{}",
          text, did_you_mean(words[i], strategy_names())));
    }
    pair[i] = *strategy;
  }
  if (pair[0] == pair[1])
    throw Error(fmt::format("--compare is '{}', expected two different strategies", text));
  return pair;
}

/// "1024 x dgx-h100, 17.3 days, 999 k USD; 410 k plans/s": the best so far.
std::string note_of(const tuner::SweepProgress& progress, const std::vector<tuner::Offer>& offers,
                    const tuner::Goal& goal) {
  const double rate = static_cast<double>(progress.considered) / std::max(progress.seconds, 1e-3);
  const std::string speed = fmt::format("{:.0f} k plans/s", rate / 1e3);
  if (progress.options->empty()) return speed;
  const tuner::Choice choice = tuner::choose(*progress.options, goal);
  const tuner::Sized& option =
      (*progress.options)[choice.recommended ? *choice.recommended : *choice.fastest];
  std::string note =
      fmt::format("{} x {}, {}", option.gpus(), offers[option.offer].name, days_words(option.days));
  if (option.usd) note += ", " + dollars(*option.usd);
  return fmt::format("{}; {}", note, speed);
}

class SizeVerb : public Verb {
 public:
  std::string name() const override { return "size"; }
  std::string summary() const override {
    return "the kind and number of GPUs for a goal: tokens, deadline, budget";
  }

  void declare_flags(Command& command) override {
    flags_.declare(command, true);
    command.at("--cluster").description("the only cluster, instead of --clusters");
    command.at("--gpus").description("the only number of GPUs to try");
    command.at("--attention").description("attention kernel (default: flash)");
    command.at("--plan").group("");  // refused in words of its own
    command.add("--tokens", tokens_, "tokens to train on, as 2e12; required", {1, 1e18})
        .group(kGoal);
    command
        .add_parsed(
            "--deadline",
            [this](const std::string& text) {
              goal_.deadline_days = parse_days("--deadline", text);
            },
            "time that the run may take: 36h, 30d, 6w")
        .type_name("TIME")
        .group(kGoal);
    command.add("--budget", goal_.budget_usd, "US dollars that the run may cost", {1, 1e15})
        .group(kGoal);
    command
        .add("--clusters", clusters_,
             "all that ship, or names and files joined by commas (default: all)")
        .type_name("all|NAME[,NAME]")
        .group(kGoal);
    command.add("--max-gpus", max_gpus_, "most GPUs to try (default: 16384)", {1, kMostGpus})
        .group(kGoal);
    command
        .add("--global-batch", global_batch_,
             "sequences per optimizer step, of all GPUs (default: what stays below the critical "
             "batch)",
             {1, std::int64_t{1} << 40})
        .group(kGoal);
    command
        .add_repeated(
            "--price", [this](const std::string& text) { add_price(prices_, text); },
            "US dollars per GPU hour of a cluster or a GPU; repeatable (default: list prices of "
            "the cluster files, dated and uncertain)")
        .type_name("NAME=USD")
        .group(kGoal);
    command
        .add_parsed(
            "--compare", [this](const std::string& text) { compare_ = parse_pair(text); },
            "two strategies: GPUs and dollars a month that one saves at equal throughput")
        .type_name("NAME,NAME")
        .group(kGoal);
    command
        .add("--mtbf-hours", mtbf_hours_,
             "hours that one GPU runs between interruptions of the job (default: 50677)",
             {1e-3, 1e12})
        .group(kLosses);
    command
        .add("--restart-s", restart_s_,
             "seconds from an interruption to the next step (default: 900)", {0, 1e9})
        .group(kLosses);
    command
        .add("--checkpoint-s", checkpoint_s_,
             "seconds that writing a checkpoint holds training up (default: its size over what "
             "the storage takes)",
             {1e-3, 1e9})
        .group(kLosses);
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    SizingReport report;
    prepare(report);
    report.sweep = search(report, context);
    report.choice = tuner::choose(report.sweep.options, report.goal);
    report.best_of_each = tuner::best_of_each(report.sweep.options, report.goal);
    if (const std::optional<std::size_t> focus = focus_of(report.choice)) {
      const std::size_t offer = report.option(*focus).offer;
      report.scaling = tuner::scaling_of(report.model, report.offers[offer], offer, report.sweep);
      if (compare_) {
        report.savings = tuner::compare_strategies(report.model, report.offers, offer, report.job,
                                                   report.option(*focus).gpus(), *compare_);
      }
    }
    if (json_) {
      fmt::print("{}\n", json_text(sizing_json(report)));
    } else if (!report.sweep.options.empty()) {
      fmt::print("{}", sizing_text(report, context.out));
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
  static std::optional<std::size_t> focus_of(const tuner::Choice& choice) {
    for (const auto& index : {choice.recommended, choice.cheapest_in_time, choice.fastest}) {
      if (index) return index;
    }
    return std::nullopt;
  }

  std::vector<std::string> names() const {
    if (!flags_.cluster) return cluster_names(clusters_.value_or("all"));
    if (clusters_) {
      throw Error("--cluster and --clusters are both given, expected one of them.",
                  ExitCode::kUsage);
    }
    return {*flags_.cluster};
  }

  void prepare(SizingReport& report) const {
    if (flags_.plan_file) {
      throw Error(
          "size takes no --plan, because it searches one for each size; give the knobs to "
          "hold fixed as flags.",
          ExitCode::kUsage);
    }
    if (!flags_.model || flags_.model->empty()) {
      throw Error("--model is missing: give a shipped name such as llama-3-70b, or a path.",
                  ExitCode::kUsage);
    }
    if (!tokens_) {
      throw Error("--tokens is missing: give the tokens to train on, such as 2e12.",
                  ExitCode::kUsage);
    }
    report.model_name = *flags_.model;
    report.model = load_model(profiles::data_dir() / "models", report.model_name);
    report.overrides = flags_.overrides;
    report.offers =
        load_offers(names(), flags_.stack.value_or(Plan{}.stack), flags_.overrides, prices_);
    for (const tuner::Offer& offer : report.offers)
      report.price_sources.push_back(price_source(offer, prices_));
    report.goal = goal_;
    report.operations = profiles::load_operations();
    tuner::SizingJob& job = report.job;
    job.fixed = request_from(flags_, report.model);
    job.fixed.global_batch = global_batch_;
    // Eager attention is neither faster nor smaller anywhere.
    if (!job.fixed.attention) job.fixed.attention = AttentionKind::kFlash;
    job.tokens = *tokens_;
    job.critical_tokens = tuner::critical_tokens(report.model, job.tokens, report.operations);
    job.gpus = flags_.gpus;
    job.max_gpus = max_gpus_;
    job.mtbf_gpu_hours = mtbf_hours_.value_or(report.operations.mtbf_gpu_hours);
    job.restart_s = restart_s_.value_or(report.operations.restart_s);
    job.gpu_bytes_per_s = report.operations.gpu_bytes_per_s;
    job.checkpoint_s = checkpoint_s_;
  }

  tuner::Sweep search(const SizingReport& report, const Context& context) const {
    const Interrupt interrupt;
    std::optional<Progress> line;
    tuner::SweepOptions options;
    options.stop = &interrupt.flag();
    options.near_days = goal_.deadline_days;
    if (context.err.interactive) {
      options.progress = [&](const tuner::SweepProgress& progress) {
        if (!line) line.emplace(context.err, "size", progress.total);
        line->update(progress.done, note_of(progress, report.offers, goal_));
      };
    }
    return tuner::sweep(report.model, report.offers, report.job, options);
  }

  PlanFlags flags_;
  std::optional<double> tokens_;
  tuner::Goal goal_;
  std::optional<std::string> clusters_;
  std::int64_t max_gpus_ = 16384;
  std::optional<std::int64_t> global_batch_;
  Prices prices_;
  std::optional<std::array<Strategy, 2>> compare_;
  std::optional<double> mtbf_hours_, restart_s_, checkpoint_s_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_size_verb() {
  return std::make_unique<SizeVerb>();
}

}  // namespace shardwright::cli
