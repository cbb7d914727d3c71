// SPDX-License-Identifier: Apache-2.0
#include "cli/render/scores/choices.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

constexpr std::size_t kGroupsShown = 8;

}  // namespace

std::string choices_text(const sim::ChoiceScore& score, bool rows, const Terminal& out) {
  if (score.groups.empty()) return {};
  Table table({{"model"},
               {"on"},
               {"release"},
               {"layouts", Align::kRight},
               {"rank correlation", Align::kRight},
               {"first choice loses", Align::kRight},
               {"any layout loses", Align::kRight}});
  const std::size_t shown =
      rows ? score.groups.size() : std::min(kGroupsShown, score.groups.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const sim::ChoiceGroup& group = score.groups[i];
    table.add_row({group.model, fmt::format("{} {}", group.gpus, group.gpu), group.release,
                   fmt::format("{}", group.layouts), fmt::format("{:+.2f}", group.kendall_tau),
                   percent(group.regret), percent(group.random_regret)});
  }
  std::string text =
      heading(out, "Choices among measured layouts of one model on one cluster, worst first") +
      table.render(out);
  if (shown < score.groups.size())
    text += fmt::format("{} more with --rows.\n", score.groups.size() - shown);
  return text +
         paragraph(fmt::format("In {} groups the layout that is predicted to be the fastest takes "
                               "{} longer than the one that was, {} at worst; any of the measured "
                               "layouts {} on average. Mean rank correlation (Kendall): {:.2f}.",
                               score.groups.size(), percent(score.regret_mean),
                               percent(score.regret_worst), percent(score.random_regret_mean),
                               score.kendall_tau),
                   out);
}

nlohmann::ordered_json choices_json(const sim::ChoiceScore& score) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const sim::ChoiceGroup& group : score.groups) {
    groups.push_back({{"source", group.source},
                      {"model", group.model},
                      {"gpu", group.gpu},
                      {"gpus", group.gpus},
                      {"seq_len", group.seq_len},
                      {"global_batch", group.sequences},
                      {"precision", group.precision},
                      {"release", group.release},
                      {"layouts", group.layouts},
                      {"kendall_tau", group.kendall_tau},
                      {"regret", group.regret},
                      {"random_regret", group.random_regret},
                      {"chosen", group.chosen},
                      {"best", group.best}});
  }
  return {{"groups", score.groups.size()},
          {"kendall_tau", score.kendall_tau},
          {"regret_mean", score.regret_mean},
          {"regret_worst", score.regret_worst},
          {"random_regret_mean", score.random_regret_mean},
          {"by_group", std::move(groups)}};
}

}  // namespace shardwright::cli
