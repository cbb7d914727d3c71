// SPDX-License-Identifier: Apache-2.0
// Every input of the corpus, among them all that were once a finding, and mutations of it. With
// sanitizers this is a short run of what scripts/fuzz does for long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/core/base/read_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/support/parameter_name.h"

namespace shardwright::fuzz {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 20;

std::vector<std::filesystem::path> corpus_of(const std::string& target) {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path folder = std::filesystem::path(SHARDWRIGHT_FUZZ_CORPUS) / target;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Corpus : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(Corpus, IsReadOrRefused) {
  int inputs = 0;
  for (const std::filesystem::path& file : corpus_of(GetParam().name)) {
    const std::string input = read_file(file, kMostBytes);
    accepts(GetParam(), input);
    ++inputs;
    if (GetParam().mutate == nullptr) continue;
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      accepts(GetParam(), GetParam().mutate(input, kMostBytes, seed));
    }
  }
  EXPECT_GT(inputs, 0);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, ::testing::ValuesIn(fuzz_targets()), parameter_name);

TEST(FuzzCorpus, EveryFolderHasATarget) {
  std::vector<std::string> names;
  for (const FuzzTarget& target : fuzz_targets()) names.emplace_back(target.name);
  for (const auto& entry : std::filesystem::directory_iterator(SHARDWRIGHT_FUZZ_CORPUS)) {
    EXPECT_THAT(names, ::testing::Contains(entry.path().filename().string()));
  }
}

TEST(FuzzMutation, OfJsonIsOtherJsonWithinItsSize) {
  const std::string plan = R"({"gpus":8})";
  const std::string text =
      R"({"traceEvents":[{"id":1,"ts":2.5},{"id":2,"ts":3.5}],"plan":"{\"gpus\":8}"})";
  int changed = 0, from_within = 0;
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const std::string other = mutate_json(text, 4096, seed);
    EXPECT_TRUE(nlohmann::json::accept(other)) << other;
    EXPECT_LE(other.size(), 4096U);
    if (other != text) ++changed;
    const nlohmann::json document = nlohmann::json::parse(other);
    if (!document.is_object() || !document.contains("plan")) continue;
    if (!document.at("plan").is_string()) continue;
    const std::string inner = document.at("plan").get<std::string>();
    if (inner != plan && nlohmann::json::accept(inner)) ++from_within;
  }
  EXPECT_GT(changed, 250);
  EXPECT_GT(from_within, 0);
}

TEST(FuzzMutation, LeavesWhatItCannotMend) {
  EXPECT_EQ(mutate_json("{no json", 4096, 1), "{no json");
  const std::string deep(100'000, '[');
  EXPECT_EQ(mutate_json(deep, deep.size(), 1), deep);
  EXPECT_LE(mutate_json("[1,2,3]", 8, 7).size(), 8U);
}

}  // namespace
}  // namespace shardwright::fuzz
