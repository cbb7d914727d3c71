// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/one_line.h"

#include <algorithm>

namespace shardwright::exec {

constexpr std::size_t kMostSentenceBytes = 4096;

std::string one_line(std::string text) {
  text.resize(std::min(text.size(), kMostSentenceBytes));
  unsigned char before = 0;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool latin_control = before == 0xc2 && byte >= 0x80 && byte < 0xa0;
    const bool control = byte < 0x20 || byte == 0x7f || latin_control;
    if (control) c = byte == '\n' || byte == '\t' ? ' ' : '?';
    before = byte;
  }
  return text;
}

}  // namespace shardwright::exec
