// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "profiles/ledger/ledger.h"
#include "tests/support/not_empty.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace shardwright::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;

/// The first rows of the shipped ledger: YaFSDP on Llama 2 7B.
ProgramResult leave_one_out(const std::vector<std::string>& flags) {
  const auto path = shardwright::testing::temp_folder() / "leave_one_out.csv";
  std::ifstream in(profiles::shipped_ledger());
  std::ofstream out(path);
  std::string line;
  for (int i = 0; i <= 6 && std::getline(in, line); ++i) out << line << "\n";
  out.close();
  std::vector<std::string> arguments{SHARDWRIGHT_BINARY, "validate", "--ledger", path.string(),
                                     "--leave-one-out"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return run_program(arguments);
}

TEST(LeaveOneOut, AddsItsObjectToTheSummary) {
  const ProgramResult result = leave_one_out({"--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document.at("schema"), "shardwright.validation/1.0");
  const json& summary = document.at("summary");
  for (const char* way : {"leave_one_out", "leave_cell_out", "leave_source_out"}) {
    const json& errors = summary.at(way);
    EXPECT_EQ(errors.at("n"), 6);
    EXPECT_GT(errors.at("worst"), 0);
    EXPECT_LE(errors.at("mape"), errors.at("worst"));
    const json& source = errors.at("by_source").at("YaFSDP README");
    for (const char* figure : {"n", "mape", "median", "worst"}) {
      EXPECT_EQ(source.at(figure), errors.at(figure)) << way << " " << figure;
    }
    EXPECT_EQ(errors.at("interval").at("n"), 6);
    EXPECT_EQ(errors.at("interval").at("cells"), 1);
    EXPECT_NEAR(errors.at("interval").at("share_of_cells").get<double>(),
                errors.at("interval").at("inside").get<double>() / 6, 1e-12);
    // Held out: not what the constants fitted to all say.
    EXPECT_NE(errors.at("mape"), summary.at("time").at("mape"));
  }
  // Of the fit that was just made, not of the one that ships.
  EXPECT_NEAR(summary.at("by_framework")[0].at("source_left_out").at("mape").get<double>(),
              summary.at("leave_source_out").at("mape").get<double>(), 1e-9);
  const json& left_out = summary.at("leave_one_out");
  ASSERT_EQ(left_out.at("rows").size(), 6U);
  double sum = 0;
  for (const json& row : left_out.at("rows")) {
    sum += std::abs(row.at("time_error").get<double>());
    EXPECT_GT(row.at("predicted_iter_time_s"), 0);
  }
  EXPECT_NEAR(left_out.at("mape").get<double>(), sum / 6, 1e-12);
  for (const json& constant : not_empty(left_out.at("constants"))) {
    EXPECT_LE(constant.at("held_out")[0], constant.at("value"));
    EXPECT_GE(constant.at("held_out")[1], constant.at("value"));
  }
}

TEST(LeaveOneOut, PrintsTheWaysBesideEachOther) {
  const ProgramResult result = leave_one_out({});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("run out"));
  EXPECT_THAT(result.out, HasSubstr("cell out"));
  EXPECT_THAT(result.out, HasSubstr("source out"));
  EXPECT_THAT(result.out, HasSubstr("network efficiency"));
  EXPECT_THAT(result.out, HasSubstr("90 % interval"));
}

TEST(LeaveOneOut, LeavesOutConstantsThatTheUserSet) {
  const ProgramResult result = leave_one_out({"--json", "--set", "cluster.nic_efficiency=0.9"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  const json& left_out = document.at("summary").at("leave_one_out");
  for (const json& constant : not_empty(left_out.at("constants"))) {
    EXPECT_THAT(constant.at("name").get<std::string>(), ::testing::Not(HasSubstr("network")));
  }
}

}  // namespace
}  // namespace shardwright::cli
