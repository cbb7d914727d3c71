// SPDX-License-Identifier: Apache-2.0
// The processor of this machine, as traces and doctor name it.
#pragma once

#include <string>

#include "sim/core/units.h"

namespace shardwright::cli {

struct Processor {
  std::string name{};  // "AMD EPYC 7742 64-Core Processor"
  int cores = 1;
  Bytes memory_bytes = 0;
};

Processor this_processor();

}  // namespace shardwright::cli
