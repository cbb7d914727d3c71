#include "cli/render/run_lines.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/render/quantity.h"

namespace shardwright::cli {
namespace {

const char* where(const RunOptions& options) {
  if (options.plan.gpus == 1) return "in this process";
  return options.transport == Transport::kMpi ? "as MPI processes" : "as threads";
}

}  // namespace

std::string deviation_text(double measured, double predicted) {
  const double ratio = measured / predicted;
  if (ratio >= 10) return fmt::format("x {:.0f}", ratio);
  return fmt::format("{:+.1f} %", 100 * (ratio - 1));
}

std::string run_head(const RunOptions& options, const exec::Data& data,
                     std::optional<double> predicted_s) {
  const Plan& plan = options.plan;
  const auto parameters =
      static_cast<double>(count_parameters(options.model).total(options.model.layers));
  std::string text =
      fmt::format("{}, {} parameters, {} on {} rank{} {} of the host, {} compute\n",
                  options.model_name, thousands(parameters), name_of(plan.strategy), plan.gpus,
                  plan.gpus == 1 ? "" : "s", where(options), name_of(plan.param_dtype));
  const std::int64_t sequences = plan.gpus * plan.micro_batch * plan.grad_accum;
  text += fmt::format("a step has {} sequences of {} tokens; data: {}\n", sequences, plan.seq_len,
                      data.train->describe());
  text += data.eval ? fmt::format("evaluation: {}\n", data.eval->describe())
                    : std::string("evaluation: none\n");
  if (predicted_s) {
    text += fmt::format("predicted for {}: {} a step\n", options.predicted_for,
                        quantity(*predicted_s, "s"));
  }
  return text;
}

RunPrinter::RunPrinter(std::FILE* steps, const Terminal& terminal, bool shown,
                       std::int64_t log_every, std::optional<double> predicted_s)
    : steps_(steps),
      terminal_(terminal),
      shown_(shown),
      log_every_(log_every),
      predicted_s_(predicted_s) {}

void RunPrinter::on_step(const exec::StepMetrics& m) {
  step_times_s_.push_back(m.step_time_s);
  const bool due = !head_shown_ || m.step % log_every_ == 0 || m.eval_loss || m.skipped;
  if (!shown_ || !due) return;
  if (!head_shown_) {
    fmt::print(
        steps_, "{}\n",
        paint(terminal_, Style::kBold,
              fmt::format("{:>6}  {:>9}  {:>9}  {:>9}  {:>9}  {:>10}  {:>8}  {:>9}", "step", "loss",
                          "grad norm", "lr", "time", "tokens/s", "vs plan", "eval loss")));
    head_shown_ = true;
  }
  std::string line =
      fmt::format("{:>6}  {:>9.5f}  {:>9.4f}  {:>9.3e}  {:>9}  {:>10}  {:>8}", m.step, m.loss,
                  m.grad_norm, m.lr, quantity(m.step_time_s, "s"), thousands(m.tokens_per_s),
                  predicted_s_ ? deviation_text(m.step_time_s, *predicted_s_) : "-");
  if (m.eval_loss) line += fmt::format("  {:>9.5f}", *m.eval_loss);
  if (m.skipped) line += "  skipped";
  fmt::print(steps_, "{}\n", line);
  std::fflush(steps_);
}

void RunPrinter::on_note(const std::string& sentence) {
  if (shown_) fmt::print(stderr, "{} {}\n", paint(terminal_, Style::kYellow, "note:"), sentence);
}

double RunPrinter::median_step_s() const {
  std::vector<double> times = step_times_s_;
  if (times.empty()) return 0;
  if (times.size() > 1) times.erase(times.begin());
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace shardwright::cli
