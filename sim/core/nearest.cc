// SPDX-License-Identifier: Apache-2.0
#include "sim/core/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace shardwright {
namespace {

// Optimal string alignment distance, O(|a| |b|); words are short.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> cost((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return cost[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return at(a.size(), b.size());
}

}  // namespace

std::optional<std::string> nearest(std::string_view word,
                                   const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best == nullptr || best_distance * 3 > std::max(best->size(), word.size()))
    return std::nullopt;
  return *best;
}

std::vector<std::string> nearest_few(std::string_view word, std::vector<std::string> candidates,
                                     std::size_t count) {
  const auto rank = [word](const std::string& candidate) {
    const bool related =
        candidate.find(word) != std::string::npos || word.find(candidate) != std::string_view::npos;
    return std::pair(related ? 0 : 1, edit_distance(word, candidate));
  };
  std::vector<std::pair<std::pair<int, std::size_t>, std::string>> ranked;
  for (std::string& candidate : candidates) {
    const auto key = rank(candidate);
    ranked.emplace_back(key, std::move(candidate));
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> result;
  for (auto& [key, candidate] : ranked) {
    if (result.size() == count) break;
    result.push_back(std::move(candidate));
  }
  return result;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::optional<std::string> match = nearest(word, candidates);
  return match ? fmt::format(", did you mean '{}'?", *match) : std::string{};
}

}  // namespace shardwright
