// SPDX-License-Identifier: Apache-2.0
#include "sim/core/expert_load.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/words.h"

namespace shardwright {
namespace {

constexpr auto kRoutingWords = words_up_to<Routing::kUnaided>("balanced", "real", "no-aux-loss");
constexpr std::string_view kLoadSchema = "shardwright.expert-load/1.0";

/// Of the largest of `count` numbers that a standard normal distribution gives.
double expected_largest(std::int64_t count) {
  constexpr double kStep = 1.0 / 16;
  constexpr int kSteps = 128;  // to eight deviations on either side
  double sum = 0;
  for (int step = -kSteps; step <= kSteps; ++step) {
    const double x = step * kStep;
    const double below = std::erfc(-x / std::numbers::sqrt2) / 2;
    // Of the distribution of the largest, below^count.
    const double positive = x < 0 ? 0 : x > 0 ? 1 : 0.5;
    sum += kStep * (positive - std::pow(below, static_cast<double>(count)));
  }
  return sum;
}

ExpertLoad::Layers read_layers(const std::string& path) {
  const JsonFile file = JsonFile::load(path);
  const JsonReader root = file.root();
  if (root.require<std::string>("schema") != kLoadSchema) {
    root.fail("schema", fmt::format("\"{}\"", kLoadSchema));
  }
  ExpertLoad::Layers layers;
  for (const JsonReader& layer : root.require_array("layers")) {
    std::vector<double> rows = layer.require_list<double>("rows");
    const bool counts =
        std::all_of(rows.begin(), rows.end(), [](double r) { return std::isfinite(r) && r >= 0; });
    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
    if (!counts || sum <= 0 || !std::isfinite(sum)) {
      layer.fail("rows",
                 "a number of at least 0 for each expert, one of them above 0, with a finite sum");
    }
    if (!layers.empty() && rows.size() != layers.front().size()) {
      layer.fail("rows", fmt::format("{} experts, as in the first layer", layers.front().size()));
    }
    layers.push_back(std::move(rows));
  }
  if (layers.empty()) root.fail("layers", "a layer with its experts' rows, or all of them");
  return layers;
}

double largest_over_mean(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) / sum;
}

}  // namespace

ExpertLoad expert_load(std::string_view given_as, const std::string& text) {
  if (const auto routing = value_in<Routing>(kRoutingWords, text)) return {*routing, {}, {}};
  if (text.find_first_of("./") == text.npos) {  // no path
    throw Error(
        fmt::format("{} is '{}', expected balanced, real, no-aux-loss or the path of a "
                    "file of measured loads.",
                    given_as, text));
  }
  return {Routing::kMeasured, text, std::make_shared<const ExpertLoad::Layers>(read_layers(text))};
}

std::string to_text(const ExpertLoad& load) {
  return load.routing == Routing::kMeasured ? load.file
                                            : std::string(name_in(kRoutingWords, load.routing));
}

BusiestRank busiest_rank(double gini, std::int64_t experts, std::int64_t ranks,
                         std::int64_t layers) {
  BusiestRank busiest;
  if (gini <= 0 || ranks <= 1) return busiest;
  const double all = static_cast<double>(experts), here = all / static_cast<double>(ranks);
  // A normal distribution has a Gini coefficient of its coefficient of variation over sqrt(pi).
  const double of_expert = gini * std::sqrt(std::numbers::pi);
  // Of the mean of some of them, drawn without putting back: all of them together vary not.
  const double of_rank = of_expert * std::sqrt((all - here) / ((all - 1) * here));
  const double largest = expected_largest(ranks) * of_rank;
  busiest.of_layer += largest;
  busiest.of_layers += largest / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, layers)));
  return busiest;
}

BusiestRank busiest_rank(const ExpertLoad::Layers& layers, std::int64_t ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<double> together(count, 0.0);
  double sum = 0;
  for (const std::vector<double>& rows : layers) {
    std::vector<double> of_ranks(count, 0.0);
    const double all = std::accumulate(rows.begin(), rows.end(), 0.0);
    for (std::size_t expert = 0; expert < rows.size(); ++expert)
      of_ranks[expert * count / rows.size()] += rows[expert] / all;
    for (std::size_t rank = 0; rank < count; ++rank) together[rank] += of_ranks[rank];
    sum += largest_over_mean(of_ranks);
  }
  return {sum / static_cast<double>(layers.size()), largest_over_mean(together)};
}

}  // namespace shardwright
