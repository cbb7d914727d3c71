// SPDX-License-Identifier: Apache-2.0
// What the page of an answer holds (cli/render/answer_page.h), read as a browser would.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shardwright::testing {

/// Fails the parse where the element ends early.
inline nlohmann::json answer_in(const std::string& page) {
  constexpr std::string_view kBegin = "<script type=\"application/json\" id=\"answer\">";
  const std::size_t begin = page.find(kBegin) + kBegin.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script", begin) - begin));
}

}  // namespace shardwright::testing
