// SPDX-License-Identifier: Apache-2.0
// `shardwright run --clock virtual`: times of a cluster on a few cores, and bits that no clock
// changes.

#include "tests/cli/run_fixture.h"

namespace shardwright::cli {
namespace {

class RunClocks : public testing::RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    put_model(4, 4, 4);
  }
  static const Words kLayout;
};
const Words RunClocks::kLayout = {"--ranks", "8", "--tp", "2", "--pp", "2", "--grad-accum", "4"};

TEST_F(RunClocks, LeaveBitsAsTheyAre) {
  const ProgramResult timed = run(small("virtual", joined(kLayout, {"--clock", "virtual"})));
  ASSERT_EQ(timed.exit_code, 0) << timed.err;
  EXPECT_THAT(timed.out + timed.err, HasSubstr("predicted for cpu-cores (virtual clocks)"));
  ASSERT_EQ(run(small("wall", kLayout)).exit_code, 0);
  EXPECT_EQ(model_of("virtual"), model_of("wall"));
}

// The same arithmetic, farther apart.
TEST_F(RunClocks, TakeWhatTheNetworkTakes) {
  const auto step_s = [&](const std::string& network) {
    const json answer =
        document_of(run(small(network, joined(kLayout, {"--clock", "virtual", "--network", network,
                                                        "--save", "none", "--json"}))));
    EXPECT_EQ(answer.at("predicted_for"), network + " (virtual clocks)");
    EXPECT_GT(answer.at("predicted_step_time_s"), 0);
    return answer.at("predicted_step_time_s").get<double>();
  };
  EXPECT_LT(step_s("dgx-h100"), step_s("rtx-4090-pcie8"));
}

TEST_F(RunClocks, TheirTraceIsComparedWithItsPrediction) {
  const std::string trace = at("trace.json"), predicted = at("predicted.json");
  ASSERT_EQ(run(small("out", joined(kLayout, {"--clock", "virtual", "--trace", trace}))).exit_code,
            0);
  ASSERT_EQ(
      run({SHARDWRIGHT_BINARY, "predict", "--plan", at("out/plan.json"), "--trace", predicted})
          .exit_code,
      0);
  const ProgramResult compared = run({SHARDWRIGHT_BINARY, "compare", predicted, trace, "--json"});
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  EXPECT_EQ(run({SHARDWRIGHT_BINARY, "compare", trace, predicted}).exit_code, 3) << "turned round";
  const auto answer = nlohmann::json::parse(compared.out);
  EXPECT_EQ(answer.at("plan_differences").size(), 0u);
  // Steps of a trace follow one another; none is as long as all of them.
  const auto traced = nlohmann::json::parse(get(trace)).at("otherData");
  EXPECT_EQ(traced.at("streams"), "virtual");
  const double measured_s = answer.at("step_time_s").at("measured");
  double longest_s = 0;
  const auto steps = nlohmann::json::parse(traced.at("step_time_s").get<std::string>());
  for (const auto& step : steps) longest_s = std::max(longest_s, step.get<double>());
  EXPECT_LE(measured_s, longest_s * 1.0001);
}

TEST_F(RunClocks, WrongSettingsAreRefusedInOneSentence) {
  EXPECT_THAT(refusal({"--clock", "sun"}, 3),
              AllOf(HasSubstr("--clock is 'sun'"), HasSubstr("wall, virtual")));
  EXPECT_THAT(refusal({"--network", "dgx-h100"}, 3), HasSubstr("none without --clock virtual"));
  EXPECT_THAT(refusal({"--clock", "virtual", "--network", "host"}, 3),
              HasSubstr("a cluster whose ranks have a device each"));
  EXPECT_THAT(refusal({"--clock", "virtual", "--network", "dgx-h999"}, 3), HasSubstr("dgx-h999"));
  EXPECT_THAT(refusal({"--clock", "virtual", "--streams", "threads"}, 3),
              HasSubstr("wall unless streams are inline"));
}

}  // namespace
}  // namespace shardwright::cli
