// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "exec/comm/sha256.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::exec {
namespace {

std::string text_of(const JobFacts& facts, bool with_origins) {
  nlohmann::json rows = nlohmann::json::array();
  for (const JobFact& fact : facts) {
    rows.push_back({fact.key, fact.value});
    if (with_origins) rows.back().push_back(fact.origin);
  }
  return rows.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Digest digest_of(const JobFacts& facts) {
  const std::string text = text_of(facts, false);
  return sha256(std::as_bytes(std::span(text)));
}

std::string shown(const JobFact& fact) {
  constexpr std::size_t kMost = 80;
  const std::string value = fact.value.size() > kMost ? fact.value.substr(0, kMost) + "..."
                            : fact.value.empty()      ? "nothing"
                                                      : fact.value;
  return fact.origin.empty() ? value : fmt::format("{} ({})", value, fact.origin);
}

/// Of two texts with origins that differ in a key or value.
std::string difference(std::string_view first, std::string_view other, std::size_t rank) {
  const nlohmann::json mine = parse_json(first), theirs = parse_json(other);
  const auto at = [](const nlohmann::json& rows, std::size_t i) {
    if (i >= rows.size()) return JobFact{};
    return JobFact{rows[i].at(0), rows[i].at(1), rows[i].at(2)};
  };
  std::size_t i = 0;
  while (at(mine, i).key == at(theirs, i).key && at(mine, i).value == at(theirs, i).value) ++i;
  const JobFact here = at(mine, i), there = at(theirs, i);
  if (here.key != there.key) {
    return fmt::format("rank 0 has '{}' where rank {} has '{}'; expected ranks of one version",
                       here.key, rank, there.key);
  }
  return fmt::format("{} is {} on rank 0, but {} on rank {}; expected the same on all ranks",
                     here.key, shown(here), shown(there), rank);
}

}  // namespace

std::string hash_of(const JobFacts& facts) {
  return hex_of(digest_of(facts));
}

void require_agreement(Communicator& world, const JobFacts& mine) {
  const std::vector<Digest> hashes = exchange_all(world, digest_of(mine));
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const Digest& hash) {
    return !same_digest(hash, hashes.front());
  });
  if (other == hashes.end()) return;
  // Seldom, and then all texts go around.
  const std::vector<std::string> texts = exchange_texts(world, text_of(mine, true));
  const auto rank = static_cast<std::size_t>(other - hashes.begin());
  throw Error(difference(texts.front(), texts[rank], rank));
}

}  // namespace shardwright::exec
