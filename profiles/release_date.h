// SPDX-License-Identifier: Apache-2.0
// When a piece of software was released, by what a table calls it.
#pragma once

#include <string_view>
#include <vector>

namespace shardwright::profiles {

/// The year, month and day that a release names ("torchtitan before 2024-06-12", "NeMo 26.04.01",
/// "2025"), as far as it does; empty where it names none.
std::vector<int> release_date(std::string_view release);

}  // namespace shardwright::profiles
