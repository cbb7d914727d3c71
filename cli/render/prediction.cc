// SPDX-License-Identifier: Apache-2.0
#include "cli/render/prediction.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

#include "cli/render/stages.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/render/words/model_parallel.h"
#include "cli/render/words/origins.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/why.h"
#include "cli/text.h"
#include "sim/core/layout.h"
#include "sim/core/units.h"
#include "sim/cost/attention_cost.h"

namespace shardwright::cli {
namespace {

constexpr int kBarColumns = 40;

/// "16 racks, 64 GPUs of each in one NVLink domain"; empty where nodes are no racks.
std::string rack_words(const sim::Job& inputs, const Plan& plan) {
  const std::int64_t each = rack_gpus(plan, inputs.profile.cluster);
  if (each == 0) return "";
  const std::int64_t racks = (plan.gpus - 1) / each + 1;
  return fmt::format("{} rack{}, {} GPUs of {} in one NVLink domain\n", racks,
                     racks == 1 ? "" : "s", each, racks == 1 ? "it" : "each");
}

/// Where it is not the library's: empty where that is as one expects.
std::string attention_words(const sim::Job& inputs, const Plan& plan) {
  const auto attention = sim::planned_attention(inputs.model, plan, inputs.profile);
  if (!attention || attention->form <= AttentionForm::kCudnnOrdered) return "";
  return fmt::format("attention by {}: {}\n", name_of(attention->form), attention->why);
}

std::string what_is_trained(const sim::Job& inputs, const Plan& plan, const Terminal& out) {
  constexpr std::size_t kLineColumns = 100;
  const Cluster& cluster = inputs.profile.cluster;
  const std::string head =
      printable(fmt::format("{} on {} x {} ({}), framework {}", inputs.model_name, plan.gpus,
                            cluster.gpu.id, inputs.cluster_name, plan.stack),
                out.utf8);
  const std::string batch =
      fmt::format("{} x {} x {} (seq_len x micro-batch x grad-accum) per GPU and step,",
                  plan.seq_len, plan.micro_batch, plan.grad_accum);
  const std::string checkpoints =
      plan.recompute == Recompute::kNone || plan.ckpt_layers == 0
          ? "no layer checkpointed"
          : fmt::format("{} of {} layers checkpointed ({})", plan.ckpt_layers, inputs.model.layers,
                        recompute_name(plan));
  const bool fits = batch.size() + 1 + checkpoints.size() <= kLineColumns;
  std::string text = head + "\n";
  if (const std::string layout = model_parallel_words(plan); !layout.empty()) text += layout + "\n";
  text += rack_words(inputs, plan);
  if (const std::string part = part_of_node_words(cluster, plan.gpus); !part.empty())
    text += part + "\n";
  text += attention_words(inputs, plan);
  text += batch + (fits ? " " : "\n") + checkpoints + "\n";
  if (plan.document_length() < plan.seq_len)
    text += fmt::format("packed of documents of {} tokens, which attend to themselves alone\n",
                        plan.packed_length);
  if (inputs.usual_length) text += *inputs.usual_length + "\n";
  return text;
}

std::string interval_words(const sim::TimePrediction& time) {
  return fmt::format("{:.0f} % interval {} to {}", 100 * time.interval_level,
                     duration(time.interval_s[0]), duration(time.interval_s[1]));
}

double hours_of_a_trillion_tokens(const sim::Prediction& prediction) {
  return 1e12 / prediction.time.tokens_per_s / 3600;
}

/// What 10^12 tokens cost, where the price is known.
std::string price_words(const sim::Job& inputs, const sim::Prediction& prediction) {
  const double price = inputs.profile.cluster.usd_per_gpu_hour;
  if (price <= 0) return "";
  const double gpu_hours =
      hours_of_a_trillion_tokens(prediction) * static_cast<double>(prediction.plan.gpus);
  return fmt::format("{} USD at {:.2f} USD per GPU hour", thousands(gpu_hours * price), price);
}

/// Processors reach thousandths of what GPUs do.
double peak_unit(const sim::TimePrediction& time) {
  return time.peak_flops < 1e12 ? 1e9 : 1e12;
}

/// "989 TFLOP/s".
std::string peak_words(const sim::TimePrediction& time) {
  const double unit = peak_unit(time);
  return fmt::format("{:.0f} {}FLOP/s", time.peak_flops / unit, unit < 1e12 ? "G" : "T");
}

/// "247.3 of 989 TFLOP/s".
std::string share_of_peak(const sim::TimePrediction& time) {
  return fmt::format("{:.1f} of {}", time.model_flops_per_gpu / peak_unit(time), peak_words(time));
}

std::string speed_table(const sim::Job& inputs, const sim::Prediction& prediction,
                        const Terminal& out) {
  const sim::TimePrediction& time = prediction.time;
  Table table({{""}, {"", Align::kLeft}, {"", Align::kLeft}});
  table.add_row(
      {"iteration time", {duration(time.iteration_s), Style::kBold}, interval_words(time)});
  table.add_row({"tokens/s", fmt::format("{} per GPU", thousands(time.tokens_per_gpu_s)),
                 fmt::format("{} in all", thousands(time.tokens_per_s))});
  table.add_row({"MFU", percent(time.mfu),
                 fmt::format("{} {} per {}, for the model", share_of_peak(time),
                             peak_type_words(inputs.profile.cluster.gpu, prediction.plan),
                             inputs.profile.cluster.gpu.is_processor() ? "rank" : "GPU")});
  table.add_row({"HFU", percent(time.hfu), "of the same peak, counting recomputation"});
  table.add_row(
      {"10^12 tokens",
       fmt::format("{} days of steps", thousands(hours_of_a_trillion_tokens(prediction) / 24)),
       price_words(inputs, prediction)});
  return table.render(out);
}

struct TimePart {
  const char* name;
  double sim::TimePrediction::*seconds;
};
constexpr TimePart kTimeParts[] = {
    {"compute", &sim::TimePrediction::compute_s},
    {"exposed communication", &sim::TimePrediction::exposed_communication_s},
    {"host", &sim::TimePrediction::host_s},
    {"optimizer", &sim::TimePrediction::optimizer_s}};

std::string time_table(const sim::Prediction& prediction, const Terminal& out) {
  const sim::TimePrediction& time = prediction.time;
  Table table({{""}, {"", Align::kRight}, {"", Align::kRight}, {""}});
  for (const TimePart& part : kTimeParts) {
    const double value = time.*part.seconds;
    if (value <= 0) continue;
    const double share = value / time.iteration_s;
    table.add_row({part.name, duration(value), percent(share), bar(share, kBarColumns, out)});
  }
  if (time.other_s() > 0) {
    const double share = time.other_s() / time.iteration_s;
    table.add_row(
        {"bubble", duration(time.other_s()), percent(share), bar(share, kBarColumns, out)});
  }
  std::string text = table.render(out);
  const sim::CommunicationBytes& sent = prediction.communication;
  std::vector<std::string> parts;
  if (sent.all_gather > 0) parts.push_back(bytes(sent.all_gather) + " in all-gathers");
  if (sent.reduce_scatter > 0) parts.push_back(bytes(sent.reduce_scatter) + " in reduce-scatters");
  if (sent.all_reduce > 0) parts.push_back(bytes(sent.all_reduce) + " in all-reduces");
  if (sent.all_to_all > 0) parts.push_back(bytes(sent.all_to_all) + " in all-to-alls");
  if (sent.point_to_point > 0) parts.push_back(bytes(sent.point_to_point) + " point to point");
  if (!parts.empty()) text += fmt::format("Each GPU sends {}.\n", fmt::join(parts, ", "));
  return text;
}

std::string category_words(int category) {
  std::string name(name_of(static_cast<MemoryCategory>(category)));
  for (char& letter : name) {
    if (letter == '_') letter = ' ';
  }
  return name;
}

std::string fit_words(const sim::MemoryPrediction& memory) {
  const Bytes spare = memory.usable_bytes - memory.total_bytes;
  if (memory.verdict == sim::MemoryVerdict::kTight) {
    return fmt::format("tight: {} {}, up to {} too much in the interval",
                       bytes(spare < 0 ? -spare : spare), spare < 0 ? "too much" : "to spare",
                       bytes(memory.interval_bytes[1] - memory.usable_bytes));
  }
  return memory.verdict == sim::MemoryVerdict::kFits
             ? fmt::format("fits, {} to spare", bytes(spare))
             : fmt::format("does not fit, {} too much", bytes(-spare));
}

std::string memory_table(const sim::Prediction& prediction, const Terminal& out) {
  const sim::MemoryPrediction& memory = prediction.memory;
  Table table({{""}, {"", Align::kRight}, {""}});
  for (int i = 0; i < kMemoryCategories; ++i) {
    const Bytes part = memory.breakdown_bytes[static_cast<std::size_t>(i)];
    if (part <= 0) continue;
    const double share = static_cast<double>(part) / static_cast<double>(memory.usable_bytes);
    table.add_row({category_words(i), bytes(part), bar(share, kBarColumns, out)});
  }
  table.add_rule();
  table.add_row({"peak allocated", bytes(memory.peak_allocated_bytes), "at " + memory.peak_at});
  table.add_row({"peak reserved", bytes(memory.peak_reserved_bytes),
                 memory.allocator_retries == 0
                     ? ""
                     : fmt::format("the allocator runs dry {} times and frees its cache",
                                   memory.allocator_retries)});
  table.add_row({"with the runtime",
                 bytes(memory.total_bytes),
                 {fmt::format("of {}: {}", bytes(memory.usable_bytes), fit_words(memory)),
                  memory.verdict == sim::MemoryVerdict::kDoesNotFit ? Style::kRed
                  : memory.verdict == sim::MemoryVerdict::kTight    ? Style::kYellow
                                                                    : Style::kGreen}});
  return table.render(out);
}

/// That the plan does not run comes before how fast it would be; empty where it fits.
std::string misfit_words(const sim::MemoryPrediction& memory, const Terminal& out) {
  if (memory.verdict != sim::MemoryVerdict::kDoesNotFit) return "";
  const std::string sentence = fmt::format(
      "Does not fit: a GPU would need {} of its {}; the times are those of a GPU that had them.",
      bytes(memory.total_bytes), bytes(memory.usable_bytes));
  std::string text;
  for (const std::string& line : wrap(sentence, out.columns))
    text += paint(out, Style::kRed, line) + "\n";
  return text;
}

std::string origins_table(const sim::Job& inputs, const sim::Prediction& prediction,
                          const Terminal& out) {
  Table table({{""}, {""}});
  for (const NumberOrigin& origin : number_origins(inputs.profile, prediction))
    table.add_row({origin.what, origin.words});
  return table.render(out);
}

std::string extrapolation_words(const std::vector<sim::Prediction>& predictions) {
  std::set<std::string> seen;
  std::string text;
  for (const sim::Prediction& prediction : predictions) {
    for (const std::string& what : prediction.extrapolated) {
      if (!seen.insert(what).second) continue;
      std::vector<std::string_view> whose;
      for (const sim::Prediction& other : predictions) {
        const std::vector<std::string>& all = other.extrapolated;
        if (std::find(all.begin(), all.end(), what) != all.end())
          whose.push_back(name_of(other.plan.strategy));
      }
      const bool of_all = whose.size() == predictions.size();
      text += fmt::format("Extrapolated{}: {}\n",
                          of_all ? "" : fmt::format(" ({})", fmt::join(whose, ", ")), what);
    }
  }
  return text;
}

}  // namespace

std::string prediction_text(const sim::Job& inputs, const sim::Prediction& prediction,
                            const Terminal& out) {
  std::string text = paint(out, Style::kBold, name_of(prediction.plan.strategy)) + ": " +
                     what_is_trained(inputs, prediction.plan, out) + "\n" +
                     misfit_words(prediction.memory, out);
  for (const std::string& line : wrap(software_sentence(inputs.profile), out.columns))
    text += line + "\n";
  text += speed_table(inputs, prediction, out);
  text += heading(out, "Where the time goes") + time_table(prediction, out);
  for (const std::string& sentence :
       {host_sentence(prediction), routing_sentence(inputs, prediction)}) {
    if (sentence.empty()) continue;
    for (const std::string& line : wrap(sentence, out.columns)) text += line + "\n";
  }
  text += stages_text(prediction, out);
  text += heading(out, "Memory of a GPU at its peak") + memory_table(prediction, out);
  text += heading(out, "What this rests on") + origins_table(inputs, prediction, out);
  return text + extrapolation_words({prediction});
}

std::string comparison_text(const sim::Job& inputs, const std::vector<sim::Prediction>& predictions,
                            const Terminal& out) {
  std::vector<Column> columns{{""}};
  for (const sim::Prediction& prediction : predictions) {
    columns.push_back({std::string(name_of(prediction.plan.strategy)), Align::kRight});
  }
  Table table(std::move(columns));
  const auto row = [&](std::string title, const std::function<Cell(const sim::Prediction&)>& cell) {
    std::vector<Cell> cells{std::move(title)};
    for (const sim::Prediction& prediction : predictions) cells.push_back(cell(prediction));
    table.add_row(std::move(cells));
  };
  const double first_s = predictions.front().time.iteration_s;
  row("software",
      [&](const auto& p) { return Cell(strategy_software(p.plan, inputs.profile.stack)); });
  row("iteration time", [](const auto& p) { return Cell(duration(p.time.iteration_s)); });
  row("interval", [](const auto& p) {
    return Cell(
        fmt::format("{} to {}", duration(p.time.interval_s[0]), duration(p.time.interval_s[1])));
  });
  row(fmt::format("time {} saves", name_of(predictions.front().plan.strategy)), [&](const auto& p) {
    return &p == &predictions.front() ? Cell("") : Cell(percent(1 - first_s / p.time.iteration_s));
  });
  row("tokens/s per GPU", [](const auto& p) { return Cell(thousands(p.time.tokens_per_gpu_s)); });
  row("tokens/s in all", [](const auto& p) { return Cell(thousands(p.time.tokens_per_s)); });
  row("MFU", [](const auto& p) { return Cell(percent(p.time.mfu)); });
  row("HFU", [](const auto& p) { return Cell(percent(p.time.hfu)); });
  table.add_rule();
  for (const TimePart& part : kTimeParts) {
    const auto has = [&](const sim::Prediction& p) { return p.time.*part.seconds > 0; };
    if (std::none_of(predictions.begin(), predictions.end(), has)) continue;
    row(part.name, [&](const auto& p) { return Cell(duration(p.time.*part.seconds)); });
  }
  row("the step is", [](const auto& p) { return Cell(std::string(name_of(p.host.regime()))); });
  row("sent per GPU", [](const auto& p) { return Cell(bytes(p.communication.total())); });
  table.add_rule();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto part = [i](const sim::Prediction& p) {
      return p.memory.breakdown_bytes[static_cast<std::size_t>(i)];
    };
    const auto has = [&](const sim::Prediction& p) { return part(p) > 0; };
    if (std::none_of(predictions.begin(), predictions.end(), has)) continue;
    row(category_words(i), [&](const auto& p) { return Cell(bytes(part(p))); });
  }
  row("peak allocated", [](const auto& p) { return Cell(bytes(p.memory.peak_allocated_bytes)); });
  row("peak reserved", [](const auto& p) { return Cell(bytes(p.memory.peak_reserved_bytes)); });
  row("with the runtime", [](const auto& p) { return Cell(bytes(p.memory.total_bytes)); });
  row(fmt::format("fits {}", bytes(predictions.front().memory.usable_bytes)), [](const auto& p) {
    return p.memory.verdict == sim::MemoryVerdict::kTight ? Cell("tight", Style::kYellow)
           : p.memory.verdict == sim::MemoryVerdict::kFits
               ? Cell("yes", Style::kGreen)
               : Cell(bytes(p.memory.total_bytes - p.memory.usable_bytes) + " too much",
                      Style::kRed);
  });
  std::string text = what_is_trained(inputs, predictions.front().plan, out) + "\n";
  for (const std::string& line : wrap(software_sentence(inputs.profile), out.columns))
    text += line + "\n";
  text += table.render(out);
  text += fmt::format("MFU and HFU are of {} {}; intervals hold {:.0f} %.\n",
                      peak_words(predictions.front().time),
                      peak_type_words(inputs.profile.cluster.gpu, predictions.front().plan),
                      100 * predictions.front().time.interval_level);
  for (const std::string& line :
       wrap(foreign_strategy_sentence(predictions, inputs.profile.stack), out.columns))
    text += line.empty() ? "" : line + "\n";
  text += "Where the numbers come from: predict with one of them says it.\n";
  return text + extrapolation_words(predictions);
}

}  // namespace shardwright::cli
