// SPDX-License-Identifier: Apache-2.0
#include "cli/machine/processor.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace shardwright::cli {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

Processor this_processor() {
  Processor processor;
  processor.name = processor_name();
  processor.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  processor.memory_bytes = Bytes{sysconf(_SC_PHYS_PAGES)} * Bytes{sysconf(_SC_PAGE_SIZE)};
  return processor;
}

}  // namespace shardwright::cli
