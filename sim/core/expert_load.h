// SPDX-License-Identifier: Apache-2.0
// How evenly tokens choose experts.
//
// Recipes that force balance give every expert equally many rows. Trained routers do not, and the
// ranks that share the experts wait, in every layer, for the one that got most. How uneven the
// choice is stands either in a number, the Gini coefficient of the experts' rows, which a
// framework's file gives for what kind of model has been published (MoeSoftware), or in a file of
// loads that were measured, layer by layer. What is left out: that loads change from batch to batch
// (on real text they hardly do: arXiv 2605.20982), and experts that a framework moves or copies to
// even them out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

enum class Routing : std::uint8_t {
  kBalanced,  // forced
  kReal,      // of a router that was trained to balance, as published models' are
  kUnaided,   // that was not
  kMeasured
};

struct ExpertLoad {
  using Layers = std::vector<std::vector<double>>;

  Routing routing = Routing::kReal;
  std::string file;                      // of what was measured
  std::shared_ptr<const Layers> layers;  // rows of each expert, by layer; of one: all are as that

  bool operator==(const ExpertLoad& other) const {
    return routing == other.routing && file == other.file;
  }
};

/// "balanced", "real", "no-aux-loss", or the path of a file of measured loads, which is read.
/// Throws Error that calls the knob `given_as`.
ExpertLoad expert_load(std::string_view given_as, const std::string& text);
std::string to_text(const ExpertLoad& load);

/// What the rank with most rows has of them, over the mean of the ranks that share the experts.
struct BusiestRank {
  double of_layer = 1;   // in a layer, the mean of all of them: which rank it is differs
  double of_layers = 1;  // in all layers together: what memory keeps
};

/// Of loads whose experts, `experts` of them on `ranks` ranks, have this Gini coefficient in each
/// of `layers` layers, one independent of another.
BusiestRank busiest_rank(double gini, std::int64_t experts, std::int64_t ranks,
                         std::int64_t layers);
/// Of loads that were measured.
BusiestRank busiest_rank(const ExpertLoad::Layers& layers, std::int64_t ranks);

}  // namespace shardwright
