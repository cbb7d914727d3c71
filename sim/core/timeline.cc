// SPDX-License-Identifier: Apache-2.0
#include "sim/core/timeline.h"

#include <fmt/format.h>

namespace shardwright {

std::string name_of(const PassSpan& span, bool with_chunk) {
  std::string name(name_of(span.work));
  if (span.micro_batch >= 0) name += fmt::format(" {}", span.micro_batch);
  if (with_chunk && span.chunk >= 0) name += fmt::format(", chunk {}", span.chunk);
  return name;
}

}  // namespace shardwright
