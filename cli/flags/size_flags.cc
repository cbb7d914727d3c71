// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/size_flags.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "cli/flags/command_line.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"

namespace shardwright::cli {

void add_price(tuner::Prices& prices, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(fmt::format("--price is '{}', expected NAME=USD, for example h100-80g=2.10", text),
                ExitCode::kUsage);
  }
  const std::string amount = text.substr(equals == text.npos ? 0 : equals + 1);
  const std::optional<double> usd = parse_double(plain_number(amount).value_or(amount));
  if (!usd || *usd <= 0 || *usd > 1e6) {
    throw Error(
        fmt::format("--price is '{}', but a GPU hour must cost more than 0 and at most "
                    "1,000,000 USD",
                    text));
  }
  const std::string name = text.substr(0, equals);
  if (!prices.emplace(name, *usd).second)
    throw Error(fmt::format("--price is given twice for '{}', expected once", name));
}

void PriceFlags::declare(Command& command, const std::string& group) {
  command
      .add_repeated(
          "--price", [this](const std::string& text) { add_price(given, text); },
          "US dollars per GPU hour of a cluster or a GPU; repeatable (default: what offers of the "
          "kind ask, by the cluster files, with date and source)")
      .type_name("NAME=USD")
      .group(group);
  command
      .add_file("--prices", file,
                "prices that `prices import` wrote; they count before those of the cluster files")
      .group(group);
}

profiles::PriceFile PriceFlags::imported() const {
  return file ? profiles::load_price_file(*file) : profiles::PriceFile();
}

void EnergyFlags::declare(Command& command) {
  constexpr const char* kEnergy = "Energy";
  command
      .add("--pue", pue,
           "power of the building over that of its nodes (default: energy.json's, 1.2)", {1, 5})
      .group(kEnergy);
  command
      .add("--grid-kg", grid_kg_per_kwh,
           "kg of CO2 that the grid emits for a kWh (default: energy.json's, 0.48, of the world)",
           {0, 5})
      .group(kEnergy);
}

profiles::Energy EnergyFlags::energy(std::optional<double> limit_watts) const {
  profiles::Energy energy = profiles::load_energy();
  energy.limit_watts = limit_watts;
  energy.pue = pue.value_or(energy.pue);
  energy.grid_kg_per_kwh = grid_kg_per_kwh.value_or(energy.grid_kg_per_kwh);
  return energy;
}

namespace {

constexpr const char* kGoal = "The goal";
constexpr const char* kLosses = "Failures and checkpoints";
constexpr std::int64_t kMostSizedGpus = 1 << 20;

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

profiles::PriceKind parse_price_kind(const std::string& word) {
  const std::optional<profiles::PriceKind> kind = profiles::price_kind_from(word);
  if (!kind) {
    throw Error(fmt::format("--price-kind is '{}', expected on-demand, reserved or spot{}", word,
                            did_you_mean(word, profiles::price_kind_names())));
  }
  return *kind;
}

std::vector<std::string> parse_clusters(const std::string& text) {
  if (text == "all") return tuner::clusters_on_offer();
  std::vector<std::string> names;
  for (std::string& name : split_commas(text)) {
    if (name.empty()) {
      throw Error(fmt::format(
          "--clusters is '{}', expected all, or names joined by commas such as dgx-h100,p5", text));
    }
    if (std::find(names.begin(), names.end(), name) != names.end())
      throw Error(fmt::format("--clusters is '{}', but it names {} twice", text, name));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

void SizeFlags::declare(Command& command) {
  plan.declare(command, true);
  command.at("--cluster").description("the only cluster, instead of --clusters");
  command.at("--gpus").description("the only number of GPUs to try");
  command.at("--attention").description("attention kernel (default: flash)");
  command.at("--seq-len")
      .description(
          "tokens of a sequence, as 8192 or 8k (default: as long as the model takes, at most "
          "8192)");
  command.at("--plan").group("");  // refused in words of its own
  command.add("--tokens", tokens, "tokens to train on, as 2e12 or 2T; required", {1, 1e18})
      .group(kGoal);
  command
      .add_parsed(
          "--deadline",
          [this](const std::string& text) { goal.deadline_days = parse_days("--deadline", text); },
          "time that the run may take: 36h, 30d, 6w, 1y")
      .type_name("TIME")
      .group(kGoal);
  command.add("--budget", goal.budget_usd, "US dollars that the run may cost, as $5M", {1, 1e15})
      .group(kGoal);
  command
      .add("--clusters", clusters,
           "all that ship, or names and files joined by commas (default: all)")
      .type_name("all|NAME[,NAME]")
      .group(kGoal);
  command.add("--max-gpus", max_gpus, "most GPUs to try (default: 16384)", {1, kMostSizedGpus})
      .group(kGoal);
  command
      .add("--global-batch", global_batch,
           "sequences per optimizer step, of all GPUs (default: what stays below the critical "
           "batch)",
           {1, std::int64_t{1} << 40})
      .group(kGoal);
  prices.declare(command, kGoal);
  command
      .add_parsed(
          "--price-kind", [this](const std::string& word) { price_kind = parse_price_kind(word); },
          "the one kind of price that all clusters are compared by (default: on-demand)")
      .type_name("on-demand|reserved|spot")
      .group(kGoal);
  command
      .add_parsed(
          "--compare", [this](const std::string& words) { compare = parse_pair(words); },
          "two strategies: GPUs and dollars a month that one saves at equal throughput")
      .type_name("NAME,NAME")
      .group(kGoal);
  command
      .add("--mtbf-hours", mtbf_hours,
           "hours that one GPU runs between interruptions of the job (default: 32000)",
           {1e-3, 1e12})
      .group(kLosses);
  command
      .add("--preemption-hours", preemption_hours,
           "hours that a spot node runs before it is taken away; with --price-kind spot (default: "
           "it is not)",
           {1e-3, 1e12})
      .group(kLosses);
  command
      .add("--restart-s", restart_s, "seconds from an interruption to the next step (default: 900)",
           {0, 1e9})
      .group(kLosses);
  command
      .add("--checkpoint-s", checkpoint_s,
           "seconds that writing a checkpoint holds training up (default: its size over what "
           "the storage takes)",
           {1e-3, 1e9})
      .group(kLosses);
  energy.declare(command);
}

std::vector<std::string> cluster_names(const SizeFlags& flags) {
  if (!flags.plan.cluster) return parse_clusters(flags.clusters.value_or("all"));
  if (flags.clusters) {
    throw Error("--cluster and --clusters are both given, expected one of them.", ExitCode::kUsage);
  }
  return {*flags.plan.cluster};
}

}  // namespace shardwright::cli
