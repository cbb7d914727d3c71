// SPDX-License-Identifier: Apache-2.0
// The simulated allocator against recordings of PyTorch 2.6.0's own library (libc10_cuda.so), which
// scripts/allocator_golden/record makes: every address, every gauge after every step, peaks and
// retries.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "sim/memory/allocator.h"
#include "tests/support/parameter_name.h"

namespace shardwright::sim {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> recordings() {
  std::vector<std::string> names;
  for (const auto& file : fs::directory_iterator(SHARDWRIGHT_TEST_DATA "/allocator")) {
    names.push_back(file.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

AllocatorOptions read_options(const std::string& line) {
  std::istringstream fields(line);
  std::string name;
  Bytes limit_mib = 0;
  Bytes max_split_mib = 0;
  AllocatorOptions options;
  fields >> name >> limit_mib >> name >> max_split_mib >> name >> options.expandable_segments;
  EXPECT_TRUE(fields) << line;
  options.limit_bytes = limit_mib << 20;
  if (max_split_mib > 0) options.max_split_bytes = max_split_mib << 20;
  return options;
}

class AllocatorGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(AllocatorGolden, DoesWhatPyTorchDid) {
  std::ifstream file(SHARDWRIGHT_TEST_DATA "/allocator/" + GetParam() + ".txt");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  CachingAllocator allocator(read_options(line));
  std::map<long, CachingAllocator::BlockId> live;
  int steps = 0;
  while (std::getline(file, line) && !line.starts_with("peaks")) {
    ++steps;
    std::istringstream fields(line.substr(0, line.find(';')));
    char verb = 0;
    long handle = 0;
    fields >> verb;
    if (verb == 'a') {
      Bytes size = 0;
      int stream = 0;
      Nanoseconds now = 0;
      std::string equals, address;
      fields >> handle >> size >> stream >> now >> equals >> address;
      ASSERT_TRUE(fields) << line;
      const auto block = allocator.allocate(size, stream, now);
      ASSERT_EQ(block ? std::to_string(allocator.block_address(*block)) : "none", address) << line;
      if (block) live[handle] = *block;
    } else if (verb == 'f') {
      fields >> handle;
      std::vector<CachingAllocator::StreamUse> uses;
      for (CachingAllocator::StreamUse use{}; fields >> use.stream >> use.done_at;) {
        uses.push_back(use);
      }
      allocator.free(live.at(handle), uses);
      live.erase(handle);
    } else {
      ASSERT_EQ(verb, 'e') << line;
      allocator.empty_cache();
    }
    const AllocatorStats& stats = allocator.stats();
    std::ostringstream gauges;
    gauges << "; " << stats.allocated.now << ' ' << stats.active.now << ' ' << stats.reserved.now;
    ASSERT_EQ(gauges.str(), line.substr(line.find(';'))) << line;
  }
  EXPECT_GT(steps, 100) << "the recording is too short to show anything";

  const AllocatorStats& stats = allocator.stats();
  std::ostringstream peaks;
  peaks << "peaks " << stats.allocated.peak << ' ' << stats.active.peak << ' '
        << stats.reserved.peak;
  EXPECT_EQ(peaks.str(), line);
  std::ostringstream counters;
  counters << "retries " << stats.num_alloc_retries << " ooms " << stats.num_ooms;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(counters.str(), line);
}

INSTANTIATE_TEST_SUITE_P(Recordings, AllocatorGolden, ::testing::ValuesIn(recordings()),
                         parameter_name);

}  // namespace
}  // namespace shardwright::sim
