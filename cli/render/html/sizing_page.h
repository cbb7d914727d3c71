// SPDX-License-Identifier: Apache-2.0
// The page for whoever signs: which GPUs, how many, for how long and for how much, in one sentence;
// then the options, the Pareto front of days and dollars, break-even prices, and what the answer
// rests on. Two pages on paper.
//
// It is written from the document that `size --json` prints, which is a contract: what the search
// learns to say appears there first.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace shardwright::cli::html {

/// `sizing`: a shardwright.sizing/1 document. `provenance`: pairs of what and whence, at the end.
std::string sizing_page(const nlohmann::ordered_json& sizing,
                        const std::vector<std::pair<std::string, std::string>>& provenance);

}  // namespace shardwright::cli::html
