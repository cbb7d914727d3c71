// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/profiles/profile_diff.h"
#include "cli/profiles/profile_validation.h"
#include "profiles/data_dir.h"
#include "sim/core/base/error.h"
#include "tests/support/not_empty.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;
using testing::temp_folder;

std::string write(const std::string& name, const json& document) {
  const fs::path path = temp_folder() / (name + ".json");
  std::ofstream(path) << document.dump(1);
  return path.string();
}

json sourced(double value) {
  return {{"value", value}, {"source", "a measurement"}, {"date", "2026-11-21"}};
}

/// A profile as calibrate writes it.
json calibrated(const std::string& id) {
  const json errors{{"n", 12}, {"mape", 0.03}, {"median", 0.02}, {"p90", 0.06}};
  return {{"schema", "shardwright.cluster/1.1"},
          {"id", id},
          {"description", "eight H100 in a cellar, one node"},
          {"base", "dgx-h100"},
          {"set", {{"cost.gemm.e", sourced(0.7)}, {"stack.host.forward_launch_s", sourced(2e-5)}}},
          {"measured_products", json::array()},
          {"calibration",
           {{"date", "2026-11-21"},
            {"parent", "dgx-h100"},
            {"stack", "torch-eager"},
            {"level", 0.9},
            {"sources",
             {{{"file", "rank0.json.gz"},
               {"format", "kineto"},
               {"gpu", "NVIDIA H100 80GB HBM3"},
               {"world_size", 8},
               {"software", "NCCL 2.21.5"},
               {"date", "2026-11-20"}}}},
            {"groups",
             {{{"group", "products"},
               {"rows", 12},
               {"observations", 900},
               {"before", errors},
               {"in_sample", errors},
               {"held_out", errors},
               {"log_error_quantiles", {-0.05, -0.02, 0.0, 0.02, 0.05}},
               {"half_width", 0.04}}}},
            {"values",
             {{{"path", "cost.gemm.e"},
               {"before", 0.83},
               {"after", 0.7},
               {"interval", {0.69, 0.71}},
               {"rows", 12}}}},
            {"rows", json::array()}}}};
}

std::vector<std::string> sentences(const std::vector<Finding>& findings, bool errors) {
  std::vector<std::string> list;
  for (const Finding& finding : findings) {
    if (finding.error == errors) list.push_back(finding.sentence);
  }
  return list;
}

TEST(ProfileKindOf, NamesAndFiles) {
  EXPECT_EQ(profile_kind("dgx-h100"), ProfileKind::kCluster);
  EXPECT_EQ(profile_kind("h100-80g"), ProfileKind::kGpu);
  EXPECT_EQ(profile_kind("torch-eager"), ProfileKind::kStack);
  EXPECT_EQ(profile_kind(write("mine", calibrated("mine"))), ProfileKind::kCluster);
  EXPECT_THROW(profile_kind("dgx-h1000"), Error);
  EXPECT_THROW(profile_kind(write("other", {{"schema", "shardwright.plan/1.0"}})), Error);
}

TEST(ProfileDiffOf, TheSameProfileDoesNotDiffer) {
  const ProfileDiff diff = diff_profiles("dgx-h100", "dgx-h100", "native", "");
  EXPECT_TRUE(diff.changes.empty());
  EXPECT_GT(diff.values, 100);
  for (const OperationChange& change : not_empty(diff.operations))
    EXPECT_EQ(change.a_s, change.b_s);
}

TEST(ProfileDiffOf, SaysWhichValuesDifferAndWhatTheyAmountTo) {
  const ProfileDiff diff =
      diff_profiles("dgx-h100", write("mine", calibrated("mine")), "torch-eager", "");
  ASSERT_EQ(diff.changes.size(), 2U);
  EXPECT_EQ(diff.changes[0].path, "stack.host.forward_launch_s");
  EXPECT_NEAR(diff.changes[0].ratio, 2e-5 / 7e-6, 1e-9);
  EXPECT_EQ(diff.changes[1].path, "cost.gemm.e");
  EXPECT_EQ(diff.changes[1].source, "a measurement");
  for (const OperationChange& change : not_empty(diff.operations)) {
    if (change.what.starts_with("a product of 8192")) {
      EXPECT_GT(change.b_s, 1.05 * change.a_s);
    } else if (change.what.find("forward") != std::string::npos &&
               change.what.starts_with("launching")) {
      EXPECT_NEAR(change.b_s, 0.02, 1e-9);
    } else if (change.what.find("gather") != std::string::npos) {
      EXPECT_EQ(change.a_s, change.b_s);
    }
  }
}

TEST(ProfileDiffOf, StacksAreComparedOnACluster) {
  const ProfileDiff diff = diff_profiles("torch-eager", "torch-compile", "", "dgx-h100");
  EXPECT_FALSE(diff.changes.empty());
  EXPECT_THROW(diff_profiles("dgx-h100", "torch-eager", "native", "dgx-h100"), Error);
}

TEST(ProfileValidation, ACalibratedProfileIsFitToBeShared) {
  const auto findings = validate_profile(write("mine", calibrated("mine")));
  EXPECT_THAT(sentences(findings, true), ::testing::IsEmpty());
}

TEST(ProfileValidation, NamesEachFault) {
  struct Case {
    const char* pointer;
    json value;
    const char* sentence;
  };
  const Case cases[] = {
      {"/id", "yours", "The id is \"yours\""},
      {"/description", "short", "too short"},
      {"/set/cost.gemm.e", 0.7, "set.cost.gemm.e has no source"},
      {"/set/cost.gemm.e/date", "yesterday", "the date is \"yesterday\""},
      {"/set/cost.gemm.e/value", 3.5, "cost.gemm.e"},
      {"/set/cost.gemm.e/value", 1.9, "less than the"},
      {"/set/no.such.value", sourced(1), "no.such.value"},
      {"/calibration/sources/0/file", "/home/me/rank0.json.gz", "folder of your machine"},
      {"/calibration/sources", json::array(), "names no source"},
      {"/calibration/groups/0/held_out/median", 0.4, "misses its own measurements"},
      {"/unknown", 1, "unknown"},
      {"/schema", "shardwright.cluster/2.0", "newer"},
  };
  for (const Case& c : cases) {
    json document = calibrated("mine");
    document[json::json_pointer(c.pointer)] = c.value;
    const auto findings = validate_profile(write("mine", document));
    EXPECT_THAT(sentences(findings, true), Contains(HasSubstr(c.sentence))) << c.pointer;
  }
}

TEST(ProfileValidation, WhatWasContributedIsValid) {
  const fs::path folder = profiles::data_dir() / "contributed";
  ASSERT_TRUE(fs::exists(folder / "README.md"));
  for (const auto& entry : not_empty(fs::directory_iterator(folder))) {
    if (entry.path().extension() != ".json") continue;
    EXPECT_THAT(sentences(validate_profile(entry.path().string()), true), ::testing::IsEmpty())
        << entry.path();
  }
}

TEST(ProfileVerb, SpeaksToPeopleAndPrograms) {
  const std::string mine = write("mine", calibrated("mine"));
  const ProgramResult diff = run_program(
      {SHARDWRIGHT_BINARY, "profile", "diff", "dgx-h100", mine, "--stack", "torch-eager"});
  EXPECT_EQ(diff.exit_code, 0) << diff.err;
  std::string said = diff.out;  // lines break anywhere
  std::replace(said.begin(), said.end(), '\n', ' ');
  EXPECT_THAT(said, AllOf(HasSubstr("2 of "), HasSubstr("launching 1000 kernels forward"),
                          HasSubstr("2.9 times as long"), HasSubstr("cost.gemm.e")));
  const ProgramResult as_json = run_program({SHARDWRIGHT_BINARY, "profile", "diff", "dgx-h100",
                                             mine, "--stack", "torch-eager", "--json"});
  EXPECT_EQ(json::parse(as_json.out).at("schema"), "shardwright.profile_diff/1.0");
  EXPECT_EQ(json::parse(as_json.out).at("changes").size(), 2U);

  EXPECT_EQ(run_program({SHARDWRIGHT_BINARY, "profile", "validate", mine}).exit_code, 0);
  json bad = calibrated("bad");
  bad.erase("description");
  const ProgramResult refused =
      run_program({SHARDWRIGHT_BINARY, "profile", "validate", mine, write("bad", bad)});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.out, HasSubstr("description"));
  EXPECT_EQ(run_program({SHARDWRIGHT_BINARY, "profile", "diff", mine}).exit_code, 2);
  EXPECT_EQ(run_program({SHARDWRIGHT_BINARY, "profile", "destroy", mine}).exit_code, 2);
  EXPECT_EQ(run_program({SHARDWRIGHT_BINARY, "profile", "validate", "dgx-h100"}).exit_code, 3);
}

TEST(ProfileVerb, InspectShowsWhatAProfileWasMadeOf) {
  const ProgramResult shown =
      run_program({SHARDWRIGHT_BINARY, "inspect", "profile", write("mine", calibrated("mine"))});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("rank0.json.gz"), HasSubstr("NCCL 2.21.5"), HasSubstr("products"),
                    HasSubstr("cost.gemm.e"), HasSubstr("0.69 to 0.71"), HasSubstr("torch-eager")));
  const ProgramResult plain = run_program({SHARDWRIGHT_BINARY, "inspect", "profile", "dgx-h100"});
  EXPECT_THAT(plain.out, HasSubstr("carries no calibration"));
}

}  // namespace
}  // namespace shardwright::cli
