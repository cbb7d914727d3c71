// SPDX-License-Identifier: Apache-2.0

#include "profiles/ledger/ledger.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

/// The first rows of the shipped ledger: YaFSDP on Llama 2 7B; `what` of the first becomes `other`.
std::string some_runs(const std::string& what = "", const std::string& other = "") {
  const auto path = temp_folder() / "leave_one_out.csv";
  std::ifstream in(profiles::shipped_ledger());
  std::ofstream out(path);
  std::string line;
  for (int i = 0; i <= 6 && std::getline(in, line); ++i) {
    if (i == 1 && !what.empty()) line.replace(line.find(what), what.size(), other);
    out << line << "\n";
  }
  return path.string();
}

ProgramResult leave_one_out(const std::string& ledger, const Words& flags) {
  return run_program(
      joined({SHARDWRIGHT_BINARY, "validate", "--ledger", ledger, "--leave-one-out"}, flags));
}

TEST(LeaveOneOut, AddsItsObjectToTheSummary) {
  const json document = document_of(leave_one_out(some_runs(), {"--json"}));
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
  EXPECT_NEAR(summary.at("by_framework")[0].at("source_left_out").at("mape").get<double>(),
              summary.at("leave_source_out").at("mape").get<double>(), 1e-9);
  const json& left_out = summary.at("leave_one_out");
  ASSERT_EQ(left_out.at("rows").size(), 6U);
  double sum = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    const json &row = left_out.at("rows")[i], &predicted = document.at("rows")[i];
    sum += std::abs(row.at("time_error").get<double>());
    EXPECT_EQ(row.at("id"), predicted.at("id"));
    EXPECT_NEAR(row.at("in_sample_error").get<double>(), predicted.at("time_error").get<double>(),
                1e-3);
    EXPECT_NEAR(row.at("predicted_iter_time_s").get<double>() /
                    predicted.at("measured_iter_time_s").get<double>(),
                1 + row.at("time_error").get<double>(), 1e-9);
  }
  EXPECT_NEAR(left_out.at("mape").get<double>(), sum / 6, 1e-12);
  for (const json& constant : not_empty(left_out.at("constants"))) {
    EXPECT_LE(constant.at("held_out")[0], constant.at("value"));
    EXPECT_GE(constant.at("held_out")[1], constant.at("value"));
  }
}

TEST(LeaveOneOut, PrintsTheWaysBesideEachOther) {
  const ProgramResult result = leave_one_out(some_runs(), {});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("run out"), HasSubstr("cell out"), HasSubstr("source out"),
                    HasSubstr("network efficiency"), HasSubstr("90 % interval")));
}

TEST(LeaveOneOut, NamesTheRunThatWasLeftOutOfNoFitAndTheCommandThatRecordsIt) {
  const std::string command = "python3 -m profiles.research steps --ledger ";
  for (const auto& [what, other] : {std::pair{"m001,", "mine,"}, {",0.81,", ",0.9,"}}) {
    const std::string ledger = some_runs(what, other);
    const ProgramResult result = leave_one_out(ledger, {});
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr(std::string(other) == "mine," ? "mine" : "m001"),
                      HasSubstr(command + ledger), HasSubstr(ledger + ".left_out.json")));
  }
}

TEST(LeaveOneOut, TakesWhatIsRecordedBesideALedger) {
  const std::string ledger = some_runs();
  const std::string beside = ledger + ".left_out.json";
  std::ofstream(beside) << "{}";
  const ProgramResult result = leave_one_out(ledger, {});
  std::filesystem::remove(beside);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr(beside));
}

TEST(LeaveOneOut, RefusesConstantsThatTheUserSet) {
  const ProgramResult result = leave_one_out(some_runs(), {"--set", "cluster.nic_efficiency=0.9"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--leave-one-out"), HasSubstr("--set")));
}

}  // namespace
}  // namespace shardwright::cli
