// SPDX-License-Identifier: Apache-2.0
// Says in words which inputs of a prediction lie outside what published runs checked.
//
// Two kinds of input: numbers, compared with the smallest and largest among the runs, and words
// (GPU, stack, strategy, ..), which some run has or none. The same two lists record what the runs
// cover and check a prediction, so that nothing can be checked that was not recorded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "profiles/profile.h"
#include "profiles/uncertainty/uncertainty.h"
#include "sim/core/cluster.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright::sim {

/// Widens ranges and words of `uncertainty` by one run. Here and below `stack` is the stack's id;
/// that of the plan may be a path.
void add_run(profiles::Uncertainty& uncertainty, const Model& model, const Cluster& cluster,
             std::string_view stack, const Plan& plan, std::string_view source);

/// One sentence for each input outside: "seq_len 131072 is above the largest fitted, 65536",
/// "gpu b200: no training run in the ledger". Empty when nothing is known of the runs.
/// Plans whose ranks share more than data are compared with published runs that do, and so are
/// plans of frameworks of which nothing else is published.
std::vector<std::string> extrapolations(const profiles::Profile& profile, const Model& model,
                                        const Plan& plan);

/// Whether some run has this stack on this GPU; whether three cells or more have.
bool seen_on_gpu(const profiles::Uncertainty& uncertainty, std::string_view stack,
                 std::string_view gpu);
bool has_seen_often(const profiles::Uncertainty& uncertainty, std::string_view stack,
                    std::string_view gpu);
bool has_seen_gpu(const profiles::Uncertainty& uncertainty, std::string_view gpu);
bool has_seen_source(const profiles::Uncertainty& uncertainty, std::string_view source);
/// This source's runs of this model on this GPU, by this stack.
bool has_seen_cell(const profiles::Uncertainty& uncertainty, std::string_view source,
                   std::string_view stack, std::string_view gpu, std::string_view model);

}  // namespace shardwright::sim
