#include "cli/verb_compare.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "cli/render/json_text.h"
#include "cli/render/quantity.h"
#include "cli/render/run_lines.h"
#include "cli/render/table.h"
#include "cli/trace_comparison.h"

namespace shardwright::cli {
namespace {

std::string difference_text(double measured_s, double predicted_s) {
  if (predicted_s <= 0) return measured_s > 0 ? "not predicted" : "";
  if (measured_s <= 0) return "not measured";
  return deviation_text(measured_s, predicted_s);
}

class CompareVerb : public Verb {
 public:
  std::string name() const override { return "compare"; }
  std::string summary() const override {
    return "predicted against measured, operation by operation";
  }

  void declare_flags(CLI::App& command) override {
    command.add_option("PREDICTED", predicted_, "the trace of predict --trace")->required();
    command.add_option("MEASURED", measured_, "the trace of run --trace")->required();
    add_number(command, "--tolerance", tolerance_,
               "exit with 6 when the step time is off by more than this fraction", {0, 1e6});
    command.add_option("--out", out_, "write both into one Chrome trace")->type_name("FILE");
    add_count(command, "--top", top_, "operations to list", {0, 1'000'000});
    command.add_flag("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    const TraceComparison comparison = compare_traces(read_chrome_trace(predicted_), predicted_,
                                                      read_chrome_trace(measured_), measured_);
    if (!out_.empty()) {
      merge_chrome_traces({predicted_, measured_}, {"predicted", "measured"}, out_);
      fmt::print(stderr, "Both are in {}; open it at ui.perfetto.dev.\n", out_);
    }
    if (json_) {
      print_json(comparison);
    } else {
      print_text(comparison, context.out);
    }
    if (tolerance_ && std::abs(comparison.error()) > *tolerance_) {
      fmt::print(stderr, "The step time is off by {}, more than {}.\n", percent(comparison.error()),
                 percent(*tolerance_));
      return ExitCode::kOutsideTolerance;
    }
    return ExitCode::kDone;
  }

 private:
  void print_json(const TraceComparison& comparison) const {
    using Json = nlohmann::ordered_json;
    Json document{{"schema", "shardwright.comparison/1.0"},
                  {"step_time_s",
                   {{"predicted", comparison.predicted_step_s},
                    {"measured", comparison.measured_step_s},
                    {"error", comparison.error()}}},
                  {"measured_ranks", comparison.measured_ranks},
                  {"only_predicted", comparison.only_predicted},
                  {"only_measured", comparison.only_measured},
                  {"classes", Json::array()},
                  {"operations", Json::array()}};
    for (const ComparedClass& c : comparison.classes) {
      document["classes"].push_back({{"phase", c.phase},
                                     {"kind", c.kind},
                                     {"operations", c.operations},
                                     {"predicted_s", c.predicted_s},
                                     {"measured_s", c.measured_s},
                                     {"difference_s", c.difference_s()}});
    }
    for (const ComparedOperation& o : top_operations(comparison)) {
      document["operations"].push_back({{"id", o.id},
                                        {"name", o.name},
                                        {"predicted_s", o.predicted_s},
                                        {"measured_s", o.measured_s},
                                        {"difference_s", o.difference_s()}});
    }
    fmt::print("{}\n", json_text(document));
  }

  std::vector<ComparedOperation> top_operations(const TraceComparison& comparison) const {
    const auto count =
        std::min<std::size_t>(static_cast<std::size_t>(top_), comparison.operations.size());
    return {comparison.operations.begin(),
            comparison.operations.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  void print_text(const TraceComparison& comparison, const Terminal& out) const {
    Table classes({{"class of operations"},
                   {"operations"},
                   {"predicted", Align::kRight},
                   {"measured", Align::kRight},
                   {"difference", Align::kRight}});
    double predicted = 0, measured = 0;
    for (const ComparedClass& c : comparison.classes) {
      classes.add_row({c.phase + " " + c.kind, fmt::format("{}", c.operations),
                       quantity(c.predicted_s, "s"), quantity(c.measured_s, "s"),
                       difference_text(c.measured_s, c.predicted_s)});
      predicted += c.predicted_s;
      measured += c.measured_s;
    }
    classes.add_rule();
    classes.add_row({"all operations", fmt::format("{}", comparison.operations.size()),
                     quantity(predicted, "s"), quantity(measured, "s"),
                     difference_text(measured, predicted)});
    classes.add_row({"step", "", quantity(comparison.predicted_step_s, "s"),
                     quantity(comparison.measured_step_s, "s"),
                     difference_text(comparison.measured_step_s, comparison.predicted_step_s)});
    fmt::print("{}", classes.render(out));
    if (comparison.measured_ranks > 1) {
      fmt::print("Measured: the mean of {} ranks.\n", comparison.measured_ranks);
    }
    if (comparison.only_predicted + comparison.only_measured > 0) {
      fmt::print("Without a counterpart: {} predicted and {} measured operations.\n",
                 comparison.only_predicted, comparison.only_measured);
    }
    if (top_ == 0) return;
    fmt::print("{}", heading(out, "Largest differences, operation by operation"));
    Table operations({{"operation"},
                      {"predicted", Align::kRight},
                      {"measured", Align::kRight},
                      {"difference", Align::kRight}});
    for (const ComparedOperation& o : top_operations(comparison)) {
      operations.add_row({o.name, quantity(o.predicted_s, "s"), quantity(o.measured_s, "s"),
                          difference_text(o.measured_s, o.predicted_s)});
    }
    fmt::print("{}", operations.render(out));
  }

  std::string predicted_, measured_, out_;
  std::optional<double> tolerance_;
  std::int64_t top_ = 5;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_compare_verb() {
  return std::make_unique<CompareVerb>();
}

}  // namespace shardwright::cli
