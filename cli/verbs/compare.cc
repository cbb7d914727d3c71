// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/render/measured/trace_comparison.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/text.h"
#include "cli/verbs/verbs.h"
#include "sim/trace/step_trace.h"
#include "sim/trace/trace_comparison.h"

namespace shardwright::cli {
namespace {

using sim::ComparedClass;
using sim::ComparedOperation;
using sim::kCauses;
using sim::Slow;
using sim::TraceComparison;

std::string difference_text(double measured_s, double predicted_s) {
  if (predicted_s <= 0) return measured_s > 0 ? "not predicted" : "";
  if (measured_s == predicted_s) return "0 %";
  if (measured_s <= 0) return "not measured";
  return deviation_text(measured_s, predicted_s);
}

class CompareVerb : public Verb {
 public:
  CompareVerb() : Verb("compare", "predicted against measured, operation by operation") {}

  void declare_flags(Command& command) override {
    command.add("PREDICTED", predicted_, "the trace of predict --trace").required();
    command.add("MEASURED", measured_, "the trace of run --trace").required();
    command.add("--tolerance", tolerance_,
                "exit with 6 when the step time is off by more than this fraction", {0, 1e6});
    command.add_file("--out", out_, "write both into one Chrome trace").writes();
    command.add("--rank", rank_, "compare this rank, not the median of all", {0, 1 << 24});
    command.add("--top", top_, "operations to list", {0, 1'000'000});
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    const TraceComparison comparison = sim::compare_traces(read(predicted_), read(measured_));
    if (!out_.empty()) {
      sim::merge_chrome_traces({predicted_, measured_}, {"predicted", "measured"}, out_);
      notify(fmt::format("Both are in {}; open it at ui.perfetto.dev.", out_));
    }
    if (json_) {
      fmt::print(results(), "{}\n", json_text(trace_comparison_json(comparison, top_)));
    } else {
      print_text(comparison, context.out);
    }
    if (tolerance_ && std::abs(comparison.error()) > *tolerance_) {
      fmt::print(messages(), "The step time is off by {}, more than {}.\n",
                 percent(comparison.error()), percent(*tolerance_));
      return ExitCode::kOutsideTolerance;
    }
    return ExitCode::kDone;
  }

 private:
  sim::StepTrace read(const std::string& file) const {
    sim::StepTrace trace = sim::read_step_trace(file);
    return rank_ ? sim::of_rank(std::move(trace), *rank_) : trace;
  }

  static std::string share_text(const TraceComparison& comparison, double seconds) {
    return comparison.difference_s() == 0 ? "" : percent(comparison.share(seconds), 0);
  }

  static std::string signed_time(double seconds) {
    if (seconds == 0) return "0 s";
    return (seconds < 0 ? "-" : "+") + quantity(std::abs(seconds), "s");
  }

  void print_text(const TraceComparison& comparison, const Terminal& out) const {
    if (!comparison.plan_differences.empty()) {
      fmt::print(results(),
                 "{} is of another plan than {}, so classes of operations are compared:\n",
                 measured_, predicted_);
      for (const std::string& difference : comparison.plan_differences) {
        fmt::print(results(), "  {}\n", printable(difference, true));
      }
    }
    fmt::print(results(), "Step: {} predicted, {} measured, {}.\n",
               quantity(comparison.predicted_step_s, "s"),
               quantity(comparison.measured_step_s, "s"),
               difference_text(comparison.measured_step_s, comparison.predicted_step_s));
    print_causes(comparison, out);
    fmt::print(results(), "{}", compared_pipeline_text(comparison, out));
    fmt::print(results(), "{}", compared_communication_text(comparison, out));
    print_classes(comparison, out);
    print_notes(comparison);
    if (top_ == 0 || comparison.operations.empty()) return;
    fmt::print(results(), "{}", heading(out, "Largest differences, operation by operation"));
    Table operations({"operation", right("predicted"), right("measured"), right("difference")});
    for (const ComparedOperation& o : top_operations(comparison, top_)) {
      operations.add_row({o.name, quantity(o.predicted_s, "s"), quantity(o.measured_s, "s"),
                          difference_text(o.measured_s, o.predicted_s)});
    }
    fmt::print(results(), "{}", operations.render(out));
  }

  static void print_causes(const TraceComparison& comparison, const Terminal& out) {
    if (comparison.difference_s() == 0) return;
    fmt::print(results(), "{}", heading(out, "Where the difference comes from"));
    Table causes({"cause", right("difference"), right("of the error")});
    for (std::size_t i = 0; i < kCauses; ++i) {
      const double seconds = comparison.causes_s[i];
      if (std::abs(comparison.share(seconds)) < 0.0005) continue;
      causes.add_row({name_of(static_cast<sim::Cause>(i)), signed_time(seconds),
                      share_text(comparison, seconds)});
    }
    fmt::print(results(), "{}", causes.render(out));
  }

  static void print_classes(const TraceComparison& comparison, const Terminal& out) {
    fmt::print(results(), "{}", heading(out, "By phase and class of operations"));
    Table classes({"", "operations", right("predicted"), right("measured"), right("difference"),
                   right("of the error")});
    const auto add = [&](const std::string& title, const ComparedClass& c) {
      classes.add_row({title, c.operations, quantity(c.predicted_s, "s"),
                       quantity(c.measured_s, "s"), difference_text(c.measured_s, c.predicted_s),
                       share_text(comparison, c.exposed_difference_s)});
    };
    double predicted = 0, measured = 0, exposed = 0;
    for (const ComparedClass& c : comparison.phases) {
      add(std::string(name_of(c.phase)), c);
      predicted += c.predicted_s;
      measured += c.measured_s;
      exposed += c.exposed_difference_s;
    }
    classes.add_rule();
    for (const ComparedClass& c : comparison.classes) {
      add(fmt::format("{} {}", name_of(c.phase), name_of(*c.kind)), c);
    }
    classes.add_rule();
    classes.add_row({"all operations", comparison.operations.size(), quantity(predicted, "s"),
                     quantity(measured, "s"), difference_text(measured, predicted),
                     share_text(comparison, exposed)});
    fmt::print(results(), "{}", classes.render(out));
  }

  static void print_medians(const char* side, std::int64_t ranks, std::int64_t steps) {
    if (ranks == 1 && steps == 1) return;
    fmt::print(results(), "{}: medians of {} and {}.\n", side, counted(ranks, "rank"),
               counted(steps, "step"));
  }

  static void print_notes(const TraceComparison& comparison) {
    print_medians("Predicted", comparison.predicted_ranks, comparison.predicted_steps);
    print_medians("Measured", comparison.measured_ranks, comparison.measured_steps);
    for (const Slow& rank : comparison.slow_ranks) {
      fmt::print(results(),
                 "Straggler: the kernels of rank {} take {} longer than those of most.\n",
                 rank.number, percent(rank.by));
    }
    for (const Slow& step : comparison.slow_steps) {
      fmt::print(results(), "Step {} took {} longer than most.\n", step.number, percent(step.by));
    }
    if (comparison.only_predicted + comparison.only_measured > 0) {
      fmt::print(results(), "Without a counterpart: {} predicted and {} measured operations.\n",
                 comparison.only_predicted, comparison.only_measured);
    }
    for (const std::string& sentence : comparison.left_out) {
      fmt::print(results(), "{}\n", printable(sentence, true));
    }
  }

  std::string predicted_, measured_, out_;
  std::optional<double> tolerance_;
  std::optional<std::int64_t> rank_;
  std::int64_t top_ = 5;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_compare_verb() {
  return std::make_unique<CompareVerb>();
}

}  // namespace shardwright::cli
