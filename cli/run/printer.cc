// SPDX-License-Identifier: Apache-2.0
#include "cli/run/printer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "cli/render/text/quantity.h"
#include "cli/text.h"
#include "sim/core/base/numbers.h"
#include "sim/core/units.h"

namespace shardwright::cli {
namespace {

/// " (tp 2, pp 2, dp 2)"; empty where ranks are replicas.
std::string layout_of(const Plan& plan) {
  if (plan.parallel.replica() == 1) return "";
  std::string text;
  if (plan.parallel.tp > 1) text += fmt::format("tp {}, ", plan.parallel.tp);
  if (plan.parallel.pp > 1) text += fmt::format("pp {}, ", plan.parallel.pp);
  return fmt::format(" ({}dp {})", text, plan.gpus / plan.parallel.replica());
}

/// "2 ranks as threads of the host", "4 ranks as threads on 1 x NVIDIA H200".
std::string where(const RunOptions& options) {
  const bool processes = options.launch.launcher != exec::Launcher::kNone;
  const std::string ranks = options.plan.gpus == 1
                                ? "1 rank in this process"
                                : fmt::format("{} ranks as {}", options.plan.gpus,
                                              options.transport == Transport::kMpi ? "MPI processes"
                                              : processes                          ? "processes"
                                                                                   : "threads");
  if (options.device == DeviceKind::kHost)
    return fmt::format("{} of the host{}", ranks, layout_of(options.plan));
  const auto gpus =
      std::min<std::int64_t>(static_cast<std::int64_t>(options.gpus.size()), options.plan.gpus);
  return fmt::format("{} on {} x {}{}", ranks, gpus, options.gpus.front().name,
                     layout_of(options.plan));
}

std::string share_text(std::optional<double> share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

}  // namespace

std::string run_head(const RunOptions& options, const exec::Data& data,
                     const RunReference& reference, const AttentionNote& attention) {
  const Plan& plan = options.plan;
  const auto parameters =
      static_cast<double>(count_parameters(options.model).total(options.model.layers));
  const std::string products =
      plan.numerics.precision == Precision::kFp8
          ? fmt::format(", layers multiply in fp8 ({})", name_of(plan.numerics.recipe()))
          : "";
  std::string text = fmt::format("{}, {} parameters, {} on {}, {} compute{}{}\n",
                                 printable(options.model_name, true), thousands(parameters),
                                 name_of(plan.strategy), where(options), name_of(plan.param_dtype),
                                 products, attention.why.empty() ? "" : ", " + attention.why);
  const std::int64_t replicas = plan.gpus / plan.parallel.replica();
  const std::int64_t sequences = replicas * plan.micro_batch * plan.grad_accum;
  text += fmt::format("a step has {} sequences of {} tokens; data: {}\n", sequences, plan.seq_len,
                      printable(data.train->describe(), true));
  text += data.eval ? fmt::format("evaluation: {}\n", printable(data.eval->describe(), true))
                    : std::string("evaluation: none\n");
  const sim::Utilisation& use = reference.utilisation;
  if (use.memory_bytes > 0) {
    const std::int64_t sharers =
        ceil_div(plan.gpus, static_cast<std::int64_t>(options.gpus.size()));
    text += fmt::format("memory: {} a rank as planned, {} on a GPU of {}\n",
                        bytes(reference.planned_bytes), bytes(sharers * reference.planned_bytes),
                        bytes(use.memory_bytes));
  }
  if (!use.basis.empty()) text += fmt::format("MFU refers to {}\n", use.basis);
  if (reference.predicted_s) {
    text += fmt::format("predicted for {}: {} a step\n", printable(options.predicted_for, true),
                        quantity(*reference.predicted_s, "s"));
  }
  return text;
}

void say(std::FILE* to, const std::string& line) {
  const std::string text = line.ends_with('\n') ? line : line + "\n";
  if (std::fputs(text.c_str(), to) >= 0 && std::fflush(to) == 0) return;
  if (errno == EPIPE || errno == EIO) std::clearerr(to);
}

RunPrinter::RunPrinter(std::FILE* steps, const Terminal& terminal, bool shown,
                       std::int64_t log_every, const RunReference& reference)
    : steps_(steps),
      terminal_(terminal),
      shown_(shown),
      log_every_(log_every),
      reference_(reference) {}

void RunPrinter::on_step(const exec::StepMetrics& m) {
  step_times_s_.push_back(m.step_time_s);
  const bool due = !head_shown_ || m.step % log_every_ == 0 || m.eval_loss || m.skipped;
  if (!shown_ || !due) return;
  const sim::Utilisation& use = reference_.utilisation;
  if (!head_shown_) {
    std::string head = fmt::format("{:>6}  {:>9}  {:>9}  {:>9}  {:>9}  {:>10}  {:>8}", "step",
                                   "loss", "grad norm", "lr", "time", "tokens/s", "vs plan");
    if (use.peak_flops > 0) head += fmt::format("  {:>6}", "MFU");
    if (use.product_flops > 0) head += fmt::format("  {:>7}", "of GEMM");
    head += fmt::format("  {:>9}", "eval loss");
    say(steps_, paint(terminal_, Style::kBold, head));
    head_shown_ = true;
  }
  std::string line = fmt::format(
      "{:>6}  {:>9.5f}  {:>9.4f}  {:>9.3e}  {:>9}  {:>10}  {:>8}", m.step, m.loss, m.grad_norm,
      m.lr, quantity(m.step_time_s, "s"), thousands(m.tokens_per_s),
      reference_.predicted_s ? deviation_text(m.step_time_s, *reference_.predicted_s) : "-");
  if (use.peak_flops > 0) line += fmt::format("  {:>6}", share_text(use.mfu(m.step_time_s)));
  if (use.product_flops > 0) {
    line += fmt::format("  {:>7}", share_text(use.of_products(m.step_time_s)));
  }
  if (m.eval_loss) line += fmt::format("  {:>9.5f}", *m.eval_loss);
  if (m.skipped) line += "  skipped";
  say(steps_, line);
}

void RunPrinter::on_note(const std::string& sentence) {
  if (!shown_) return;
  say(stderr,
      fmt::format("{} {}", paint(terminal_, Style::kYellow, "note:"), printable(sentence, true)));
}

double RunPrinter::median_step_s() const {
  std::vector<double> times = step_times_s_;
  if (times.size() > 1) times.erase(times.begin());
  return upper_median(std::move(times));
}

}  // namespace shardwright::cli
