// SPDX-License-Identifier: Apache-2.0
// Measures what a model's operations take: real steps of the model with two of its layers, traced
// and imported as observations.
//
// A scene is a plan that is run for a few steps. The scenes vary the number of ranks (products on a
// whole device and on a part of it, collectives of several sizes), the tokens of a micro-batch
// (large and small products) and the length of sequences (attention). So every operation is timed
// as it runs in training, by the executor that trains, on whatever device the site gives.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/measure/measuring_site.h"
#include "profiles/observation.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/product_choices.h"

namespace shardwright::cli {

struct Scene {
  Plan plan;
  int steps = 0;  // traced, after two that warm up
};

/// Scenes that fit the site's memory and time, at least one. `quick` leaves out the largest shapes
/// and takes fewer steps. Throws Error when not even the smallest fits.
std::vector<Scene> scenes_of(const Model& model, const MeasuringSite& site, bool quick);

struct Measured {
  profiles::ObservationSet observations;
  ProductChoices
      products;  // on GPUs: the algorithm that each product was fastest with, and ran with
};

/// Runs the scenes one after the other; `begun(i)` is called before each.
Measured measure_model(Model model, const std::vector<Scene>& scenes, MeasuringSite& site,
                       const std::function<void(std::size_t)>& begun);

/// "2 ranks, 4 x 128 tokens".
std::string describe(const Scene& scene);

}  // namespace shardwright::cli
