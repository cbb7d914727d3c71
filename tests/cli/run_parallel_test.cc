// SPDX-License-Identifier: Apache-2.0
// `shardwright run` with tensor ranks: what it says of them, what it refuses, and that a run goes
// on with another number of them.

#include "tests/cli/run_fixture.h"
#include "tests/support/answer_page.h"

namespace shardwright::cli {
namespace {

class RunParallel : public testing::RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    put_model(2, 4, 4);
  }
};

TEST_F(RunParallel, TensorRanksMakeTheModelOfOneRankWithTheirSums) {
  const ProgramResult four = run(small("four", {"--ranks", "4", "--tp", "2"}));
  ASSERT_EQ(four.exit_code, 0) << four.err;
  EXPECT_THAT(four.out + four.err, AllOf(HasSubstr("4 ranks as threads of the host (tp 2, dp 2)"),
                                         HasSubstr("a step has 4 sequences of 32 tokens")));
  const ProgramResult one = run(
      small("one", {"--ranks", "1", "--grad-accum", "2", "--sum-shape", "2", "--sums", "exact"}));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.out + one.err, Not(HasSubstr("(tp")));
  EXPECT_EQ(model_of("four"), model_of("one"));
}

TEST_F(RunParallel, AResumedRunKeepsTheSumsOfItsCheckpoint) {
  ASSERT_EQ(run(small("whole", {"--ranks", "4", "--tp", "2"})).exit_code, 0);
  ASSERT_EQ(run(small("out", {"--ranks", "4", "--tp", "2", "--save-every", "4"})).exit_code, 0);
  const std::string step4 = at("out/checkpoints/step-000004");
  const auto resumed = [&](const std::string& out, const Words& more) {
    Words all = joined({"--resume", step4}, more);
    return run(small(out, all));
  };
  const ProgramResult one = resumed("one", {"--ranks", "1", "--grad-accum", "2"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_THAT(one.err,
              AllOf(HasSubstr("sums over features have 2 parts as in " + step4),
                    HasSubstr("--sum-shape gives others"), Not(HasSubstr("from here on"))));
  EXPECT_EQ(model_of("one"), model_of("whole"));
  // Leaves of two ranks are no leaves of four.
  expect_end(resumed("tp4", {"--ranks", "4", "--tp", "4", "--grad-accum", "2"}), 0,
             {"sums over features have 4 parts from here on, up to the "
              "checkpoint they had 2"});
  const ProgramResult other =
      resumed("other", {"--ranks", "1", "--grad-accum", "2", "--sum-shape", "1"});
  EXPECT_THAT(other.err, HasSubstr("sums over features have 1 part from here on"));
  EXPECT_NE(model_of("other"), model_of("whole"));
}

TEST_F(RunParallel, WrongLayoutsAreRefusedInOneSentence) {
  EXPECT_THAT(refusal({"--ranks", "3", "--tp", "3"}, 3),
              AllOf(HasSubstr("tp is 3"), HasSubstr("4 heads, expected")));
  EXPECT_THAT(refusal({"--sp", "on"}, 3), HasSubstr("sp is on, but tp is 1, expected off"));
  EXPECT_THAT(refusal({"--tp", "2", "--precision", "fp8", "--fp8-recipe", "rowwise"}, 3),
              AllOf(HasSubstr("precision is fp8, but tp is 2"), HasSubstr("expected")));
  EXPECT_THAT(refusal({"--tp", "2", "--sums", "library"}, 3),
              HasSubstr("--sums is 'library', but it must be auto or exact"));
  EXPECT_THAT(refusal({"--ranks", "4", "--tp", "2", "--sum-shape", "3"}, 3),
              HasSubstr("expected a power of two that tp divides, 2"));
}

TEST_F(RunParallel, TracesOfPipelinesAreComparedAndCalibrated) {
  ASSERT_EQ(run(small("out", {"--ranks", "4", "--tp", "2", "--pp", "2", "--grad-accum", "4",
                              "--micro-batch", "1", "--trace", at("trace.json")}))
                .exit_code,
            0);
  const auto answer = [&](Words words) {
    words.insert(words.begin(), SHARDWRIGHT_BINARY);
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto compared =
      nlohmann::json::parse(answer({"compare", at("trace.json"), at("trace.json"), "--json"}));
  for (const char* group : {"tensor", "pipeline"}) {
    for (const char* part : {"exposed_by_group", "transfer_by_group", "waiting_by_group"}) {
      for (const nlohmann::json& stage : compared.at("stages").at("measured"))
        EXPECT_GE(stage.at(part).at(group), 0) << group;
    }
    EXPECT_GT(compared.at("transfer_by_group").at("measured").at(group), 0) << group;
  }
  EXPECT_EQ(compared.at("only_measured"), 0);
  const std::string profile = at("profile.json");
  answer({"calibrate", "--trace", at("trace.json"), "--base", "host", "--out", profile});
  EXPECT_THAT(get(profile), HasSubstr("\"receive\""));
  answer({"report", "--measured", at("trace.json"), "--out", at("report.html")});
  const nlohmann::json drawn =
      ::shardwright::testing::answer_in(get(at("report.html"))).at("measured");
  EXPECT_EQ(drawn.at("processes").size(), 2U);
  EXPECT_FALSE(drawn.at("layer").empty());
}

}  // namespace
}  // namespace shardwright::cli
