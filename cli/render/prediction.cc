// SPDX-License-Identifier: Apache-2.0
#include "cli/render/prediction.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/render/sizing.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/sizing.h"
#include "cli/render/words/why.h"
#include "cli/text.h"
#include "sim/core/layout.h"
#include "sim/core/plan_json.h"
#include "sim/core/units.h"
#include "sim/cost/attention_cost.h"
#include "tuner/size/sizing.h"

namespace shardwright::cli {

namespace {

constexpr int kBarColumns = 40;

/// "16 racks, 64 GPUs of each in one NVLink domain"; empty where nodes are no racks.
std::string rack_words(const sim::Job& inputs, const Plan& plan) {
  const std::int64_t each = rack_gpus(plan, inputs.profile.cluster);
  if (each == 0) return "";
  const std::int64_t racks = (plan.gpus - 1) / each + 1;
  return fmt::format("{}, {} GPUs of {} in one NVLink domain\n", counted(racks, "rack"), each,
                     racks == 1 ? "it" : "each");
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
  Table table({"", left(""), left("")});
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
  Table table({"", right(""), right(""), ""});
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
  Table table({"", right(""), ""});
  for (int i = 0; i < kMemoryCategories; ++i) {
    const Bytes part = memory.breakdown_bytes[static_cast<std::size_t>(i)];
    if (part <= 0) continue;
    const double share = static_cast<double>(part) / static_cast<double>(memory.usable_bytes);
    table.add_row(
        {category_words(static_cast<std::size_t>(i)), bytes(part), bar(share, kBarColumns, out)});
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
  Table table({"", ""});
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
  text += paragraph(software_sentence(inputs.profile), out);
  text += speed_table(inputs, prediction, out);
  text += heading(out, "Where the time goes") + time_table(prediction, out);
  for (const std::string& sentence :
       {host_sentence(prediction), routing_sentence(inputs, prediction)}) {
    if (!sentence.empty()) text += paragraph(sentence, out);
  }
  text += stages_text(prediction, out);
  text += heading(out, "Memory of a GPU at its peak") + memory_table(prediction, out);
  text += heading(out, "What this rests on") + origins_table(inputs, prediction, out);
  return text + extrapolation_words({prediction});
}

std::string comparison_text(const sim::Job& inputs, const std::vector<sim::Prediction>& predictions,
                            const Terminal& out) {
  std::vector<Column> columns{""};
  for (const sim::Prediction& prediction : predictions) {
    columns.push_back(right(std::string(name_of(prediction.plan.strategy))));
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
  row("the step is", [](const auto& p) { return Cell(name_of(p.host.regime())); });
  row("sent per GPU", [](const auto& p) { return Cell(bytes(p.communication.total())); });
  table.add_rule();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto part = [i](const sim::Prediction& p) {
      return p.memory.breakdown_bytes[static_cast<std::size_t>(i)];
    };
    const auto has = [&](const sim::Prediction& p) { return part(p) > 0; };
    if (std::none_of(predictions.begin(), predictions.end(), has)) continue;
    row(category_words(static_cast<std::size_t>(i)),
        [&](const auto& p) { return Cell(bytes(part(p))); });
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
  text += paragraph(software_sentence(inputs.profile), out);
  text += table.render(out);
  text += fmt::format("MFU and HFU are of {} {}; intervals hold {:.0f} %.\n",
                      peak_words(predictions.front().time),
                      peak_type_words(inputs.profile.cluster.gpu, predictions.front().plan),
                      100 * predictions.front().time.interval_level);
  const std::string foreign = foreign_strategy_sentence(predictions, inputs.profile.stack);
  if (!foreign.empty()) text += paragraph(foreign, out);
  text += "Where the numbers come from: predict with one of them says it.\n";
  return text + extrapolation_words(predictions);
}

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<CommGroup, std::string_view>, 5> kGroups = {
    {{CommGroup::kTensor, "tensor"},
     {CommGroup::kPipeline, "pipeline"},
     {CommGroup::kContext, "context"},
     {CommGroup::kExpert, "expert"},
     {CommGroup::kData, "data"}}};

double of(const std::array<double, kCommGroups>& values, CommGroup group) {
  return values[static_cast<std::size_t>(group)];
}

double sent_by(const sim::Prediction& prediction, CommGroup group) {
  return prediction.sent[static_cast<std::size_t>(group)].total();
}

/// The stage whose times are those of the whole prediction.
const sim::StagePrediction& busiest(const sim::Prediction& prediction) {
  const auto same = std::find_if(prediction.stages.begin(), prediction.stages.end(),
                                 [&](const sim::StagePrediction& stage) {
                                   return stage.compute_s == prediction.time.compute_s;
                                 });
  return same == prediction.stages.end() ? prediction.stages.front() : *same;
}

std::string stage_name(const sim::Prediction& prediction, std::size_t first, std::size_t last) {
  const std::int64_t from = prediction.stages[first].stage, to = prediction.stages[last].stage;
  return from == to ? fmt::format("{}", from) : fmt::format("{} to {}", from, to);
}

/// Stages that a table would repeat.
bool alike(const sim::StagePrediction& a, const sim::StagePrediction& b) {
  return a.layers == b.layers && a.fits == b.fits &&
         duration(a.compute_s) == duration(b.compute_s) &&
         bytes(a.peak_reserved_bytes) == bytes(b.peak_reserved_bytes);
}

/// What nodes that are not equally fast add to the step.
double variation_s(const sim::Prediction& prediction) {
  const sim::StagePrediction& s = busiest(prediction);
  const double parts =
      s.compute_s + s.exposed_communication_s + s.host_s + s.optimizer_s + s.bubble_s;
  const double rest = prediction.time.iteration_s - parts;
  return rest < 1e-9 * prediction.time.iteration_s ? 0 : rest;
}

}  // namespace

std::string stages_text(const sim::Prediction& prediction, const Terminal& out) {
  const std::vector<sim::StagePrediction>& stages = prediction.stages;
  std::string text;
  if (stages.size() > 1) {
    text += heading(out, "Stages of the pipeline");
    Table table({"stage", "layers", "compute", "waits for data", "bubble", "memory", ""});
    for (std::size_t i = 0; i < stages.size();) {
      std::size_t last = i;
      while (last + 1 < stages.size() && alike(stages[i], stages[last + 1])) ++last;
      const sim::StagePrediction& s = stages[i];
      table.add_row({stage_name(prediction, i, last),
                     s.layers,
                     duration(s.compute_s),
                     duration(s.exposed_communication_s),
                     duration(s.bubble_s),
                     bytes(s.peak_reserved_bytes),
                     {s.fits ? "fits" : "does not fit", s.fits ? Style::kGreen : Style::kRed}});
      i = last + 1;
    }
    text += table.render(out);
    text += fmt::format("The bubble takes {} of the stages' time over {} micro-batches.\n",
                        percent(prediction.pipeline.bubble), prediction.pipeline.micro_batches);
  }
  Table table({"group", "sent per GPU", "waited for"});
  int groups = 0;
  for (const auto& [group, name] : kGroups) {
    const double sent = sent_by(prediction, group);
    if (sent <= 0) continue;
    table.add_row({std::string(name), bytes(sent), duration(of(prediction.exposed_s, group))});
    ++groups;
  }
  if (groups > 1) text += heading(out, "Communication by group") + table.render(out);
  return text;
}

void add_stages(const sim::Prediction& prediction, Json& document) {
  for (const auto& [group, name] : kGroups) {
    document["communication_bytes"][std::string(name)] = sent_by(prediction, group);
  }
  Json exposed = Json::object();
  for (const auto& [group, name] : kGroups) {
    exposed[std::string(name)] = of(prediction.exposed_s, group);
  }
  document["exposed_communication_by_group"] = std::move(exposed);
  document["pipeline"] = {{"bubble", prediction.pipeline.bubble},
                          {"micro_batches", prediction.pipeline.micro_batches},
                          {"steady_state_after", prediction.pipeline.steady_state_after}};
  Json stages = json_list(prediction.stages, [&](const sim::StagePrediction& s) -> Json {
    return {{"stage", s.stage},
            {"layers", s.layers},
            {"time_s",
             {{"compute", s.compute_s},
              {"exposed_communication", s.exposed_communication_s},
              {"host", s.host_s},
              {"optimizer", s.optimizer_s},
              {"bubble", s.bubble_s}}},
            {"peak_allocated_bytes", s.peak_allocated_bytes},
            {"peak_reserved_bytes", s.peak_reserved_bytes},
            {"fits", s.fits}};
  });
  document["stages"] = std::move(stages);
}

std::vector<Loss> losses_of(const sim::Prediction& prediction) {
  std::vector<Loss> losses;
  const sim::StagePrediction& stage = busiest(prediction);
  losses.push_back({"bubble of the pipeline", stage.bubble_s});
  for (const auto& [group, name] : kGroups) {
    losses.push_back(
        {fmt::format("exposed {} communication", name), of(prediction.exposed_s, group)});
  }
  losses.push_back({"host", stage.host_s});
  losses.push_back({"optimizer", stage.optimizer_s});
  losses.push_back({"nodes that vary", variation_s(prediction)});
  std::erase_if(losses, [](const Loss& loss) { return loss.seconds <= 0; });
  std::stable_sort(losses.begin(), losses.end(),
                   [](const Loss& a, const Loss& b) { return a.seconds > b.seconds; });
  return losses;
}

std::string losses_text(const sim::Prediction& prediction, const Terminal& out) {
  Table table({"beside computing", "time", "of the step"});
  for (const Loss& loss : losses_of(prediction)) {
    table.add_row(
        {loss.what, duration(loss.seconds), percent(loss.seconds / prediction.time.iteration_s)});
  }
  return heading(out, "What the busiest stage waits for") + table.render(out);
}

Json losses_json(const sim::Prediction& prediction) {
  return json_list(losses_of(prediction), [&](const Loss& loss) -> Json {
    return {{"what", loss.what},
            {"seconds", loss.seconds},
            {"share", loss.seconds / prediction.time.iteration_s}};
  });
}

namespace {

/// What `size` counts for steps of this size, because it chooses them for the GPUs and not for the
/// tokens.
double tokens_where_chosen(const WholeRunAnswer& answer) {
  return tuner::tokens_factor(answer.tokens_per_step, tuner::uncounted_tokens(answer.conditions),
                              answer.conditions.critical_tokens);
}

std::string tokens_taken_words(const WholeRunAnswer& answer) {
  constexpr double kSeen = 1.005;
  const double factor = answer.cost.tokens_factor, chosen = tokens_where_chosen(answer);
  std::string taken =
      factor > 1 ? fmt::format(": {:.2f} times the tokens, which days and dollars include", factor)
                 : std::string(", and the tokens are taken as chosen for steps of this size");
  if (chosen < kSeen * factor) return taken;
  return taken +
         fmt::format("; size, which chooses the batch, counts {:.2f} times the tokens", chosen);
}

}  // namespace

std::string whole_run_text(const WholeRunAnswer& answer, const Terminal& out) {
  const tuner::RunCost& cost = answer.cost;
  const tuner::RunConditions& conditions = answer.conditions;
  std::string text =
      heading(out, fmt::format("The whole run, {} tokens", tokens_words(conditions.tokens)));
  Table table({"", right(""), ""});
  table.add_row(
      {"steps alone", days_words(cost.ideal_days), cost.ideal_usd ? dollars(*cost.ideal_usd) : ""});
  table.add_row({"as published runs went",
                 {days_words(cost.days), Style::kBold},
                 cost.usd ? dollars(*cost.usd) : "the price is unknown"});
  table.add_row({"interval",
                 fmt::format("{} to {}", days_words(cost.days_interval[0]),
                             days_words(cost.days_interval[1])),
                 cost.usd_interval ? fmt::format("{} to {}", dollars((*cost.usd_interval)[0]),
                                                 dollars((*cost.usd_interval)[1]))
                                   : ""});
  text += table.render(out);
  std::vector<std::string> sentences;
  const profiles::Production& production = conditions.production;
  if (production.known()) {
    sentences.push_back(fmt::format(
        "Published trainings like it took {:.2f} times their ideal steps; the interval holds "
        "{:.0f} % of "
        "them and what offers of the same kind ask. Fitted on {}; {} of {} trainings inside when "
        "refitted without their family.",
        cost.production.middle, 100 * production.level, production.source,
        production.family_out.inside, production.family_out.n));
  }
  if (answer.price.known()) {
    const auto& origin = answer.price.origin;
    sentences.push_back(fmt::format("On demand at {:.2f} USD per GPU hour: {}{}{}.",
                                    answer.price.usd_per_gpu_hour, origin.source,
                                    origin.date.empty() ? "" : ", ", origin.date));
  }
  sentences.push_back(
      fmt::format("A step takes {:.3g} M tokens; the critical batch is about {:.3g} M ({}){}.",
                  answer.tokens_per_step / 1e6, conditions.critical_tokens / 1e6,
                  conditions.critical_words, tokens_taken_words(answer)));
  if (const auto kwh = answer.energy.kwh(answer.gpu, cost.gpu_hours))
    sentences.push_back(energy_words(answer.energy, answer.gpu, *kwh));
  return text + sentences_text(sentences, out);
}

Json whole_run_json(const WholeRunAnswer& answer) {
  const tuner::RunCost& cost = answer.cost;
  return {{"tokens", answer.conditions.tokens},
          {"days", cost.days},
          {"days_interval", cost.days_interval},
          {"interval_level", answer.conditions.production.level},
          {"cost_usd", or_null(cost.usd)},
          {"cost_usd_interval", or_null(cost.usd_interval)},
          {"gpu_hours", cost.gpu_hours},
          {"energy", energy_json(answer.energy, answer.gpu, cost.gpu_hours)},
          {"step_only", {{"days", cost.ideal_days}, {"cost_usd", or_null(cost.ideal_usd)}}},
          {"production_factor", cost.production.middle},
          {"tokens_factor", cost.tokens_factor},
          {"tokens_factor_in_size", tokens_where_chosen(answer)},
          {"critical_tokens_per_step", answer.conditions.critical_tokens},
          {"whole_run_mfu", cost.whole_mfu}};
}

std::string jitter_sentence(const sim::Jitter& jitter) {
  const std::string stages = jitter.bubble_s > 0 ? fmt::format(" and {} longer for other stages",
                                                               quantity(jitter.bubble_s, "s"))
                                                 : "";
  return fmt::format(
      "With kernels that vary by {} from rank to rank and run to run, the slowest of {} ranks "
      "takes "
      "{}{} ({:+.1f} %); on average a rank waits {} in collectives for the last one to join{}.",
      percent(jitter.kernel_spread), jitter.ranks, jitter.settled ? "" : "at least ",
      quantity(jitter.iteration_s, "s"), 100 * jitter.slowdown, quantity(jitter.waiting_s, "s"),
      stages);
}

nlohmann::ordered_json jitter_json(const sim::Jitter& jitter) {
  return {{"kernel_spread", jitter.kernel_spread},  {"ranks", jitter.ranks},
          {"iteration_time_s", jitter.iteration_s}, {"slowdown", jitter.slowdown},
          {"waiting_s", jitter.waiting_s},          {"bubble_s", jitter.bubble_s},
          {"exposed_s", jitter.exposed_s},          {"settled", jitter.settled}};
}

namespace {

Json memory_json(const sim::MemoryPrediction& memory) {
  Json breakdown = Json::object();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    breakdown[std::string(name_of(category))] = memory.breakdown_bytes[static_cast<std::size_t>(i)];
  }
  return {{"fits", memory.fits},
          {"peak_allocated_bytes", memory.peak_allocated_bytes},
          {"peak_active_bytes", memory.peak_active_bytes},
          {"peak_reserved_bytes", memory.peak_reserved_bytes},
          {"runtime_bytes", memory.runtime_bytes},
          {"total_bytes", memory.total_bytes},
          {"usable_bytes", memory.usable_bytes},
          {"interval_bytes", {memory.interval_bytes[0], memory.interval_bytes[1]}},
          {"verdict", name_of(memory.verdict)},
          {"peak_at", memory.peak_at},
          {"allocator_retries", memory.allocator_retries},
          {"breakdown_bytes", std::move(breakdown)}};
}

Json inputs_json(const sim::Job& inputs, const Plan& plan) {
  const Cluster& cluster = inputs.profile.cluster;
  Json json{{"model", inputs.model_name},
            {"parameters", count_parameters(inputs.model).total(inputs.model.layers)},
            {"layers", inputs.model.layers},
            {"cluster", inputs.cluster_name},
            {"gpu", cluster.gpu.id},
            {"gpus_per_node", cluster.gpus_per_node},
            {"peak_flops", cluster.gpu.peak_bf16_flops},
            {"plan", plan_to_json(plan)},
            {"plan_words", plan_words(plan)},
            {"usual_length", or_null(inputs.usual_length)},
            {"set", inputs.overrides}};
  if (const auto attention = sim::planned_attention(inputs.model, plan, inputs.profile)) {
    json["attention"] = {{"kernel", name_of(attention->form)}, {"why", attention->why}};
  }
  if (const std::int64_t each = rack_gpus(plan, inputs.profile.cluster); each > 0) {
    json["racks"] = (plan.gpus - 1) / each + 1;
    json["gpus_of_each_rack"] = each;
  }
  return json;
}

Json novelty_json(const profiles::Profile& profile, const sim::Prediction& prediction) {
  return json_list(novelty_words(profile, prediction), [&](const NoveltyWords& words) -> Json {
    return {{"axis", words.axis},
            {"class", words.what},
            {"adds", words.adds},
            {"measure", words.measure}};
  });
}

}  // namespace

Json prediction_json(const sim::Job& inputs, const sim::Prediction& prediction) {
  const sim::TimePrediction& time = prediction.time;
  Json document = {{"schema", "shardwright.prediction/1.0"},
                   {"iteration_time_s", time.iteration_s},
                   {"iteration_time_interval_s", {time.interval_s[0], time.interval_s[1]}},
                   {"interval_level", time.interval_level},
                   {"tokens_per_gpu_s", time.tokens_per_gpu_s},
                   {"tokens_per_s", time.tokens_per_s},
                   {"model_tflops_per_gpu", time.model_flops_per_gpu / 1e12},
                   {"mfu", time.mfu},
                   {"hfu", time.hfu},
                   {"time_s",
                    {{"compute", time.compute_s},
                     {"exposed_communication", time.exposed_communication_s},
                     {"host", time.host_s},
                     {"optimizer", time.optimizer_s},
                     {"other", time.other_s()}}},
                   {"communication_bytes",
                    {{"all_gather", prediction.communication.all_gather},
                     {"reduce_scatter", prediction.communication.reduce_scatter},
                     {"all_reduce", prediction.communication.all_reduce},
                     {"all_to_all", prediction.communication.all_to_all},
                     {"point_to_point", prediction.communication.point_to_point}}},
                   {"memory", memory_json(prediction.memory)},
                   {"extrapolated", prediction.extrapolated},
                   {"novelty", novelty_json(inputs.profile, prediction)},
                   {"inputs", inputs_json(inputs, prediction.plan)}};
  for (const NumberOrigin& origin : number_origins(inputs.profile, prediction))
    document["origins"].push_back({{"what", origin.what}, {"words", origin.words}});
  document["runs_here"] = runs_here_json(runs_here(inputs, prediction.plan));
  add_stages(prediction, document);
  document["host"] = host_json(prediction);
  document["regime"] = name_of(prediction.regime);
  document["routing"] = prediction.routing ? routing_json(inputs, prediction) : Json(nullptr);
  return document;
}

Json comparison_json(const sim::Job& inputs, const std::vector<sim::Prediction>& predictions) {
  Json document{{"schema", "shardwright.prediction/1.0"}, {"predictions", Json::array()}};
  Json saved = Json::array();
  for (const sim::Prediction& prediction : predictions) {
    document["predictions"].push_back(prediction_json(inputs, prediction));
    saved.push_back(1 - predictions.front().time.iteration_s / prediction.time.iteration_s);
  }
  document["time_saved_by_first"] = std::move(saved);
  return document;
}

}  // namespace shardwright::cli
