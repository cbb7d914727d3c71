// SPDX-License-Identifier: Apache-2.0
// `shardwright run` with an embedding that is the head, too, on several stages.

#include "tests/cli/run_fixture.h"

namespace shardwright::cli {
namespace {

class RunTiedEmbedding : public testing::RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    put_model(4, 4, 4, true);
  }
  ProgramResult expect_run(const std::string& out, const Words& more) {
    ProgramResult result = run(small(out, more));
    EXPECT_EQ(result.exit_code, 0) << out << ": " << result.err;
    return result;
  }
};

TEST_F(RunTiedEmbedding, StagesMakeTheModelOfOneRankThatSumsTheUsesApart) {
  const ProgramResult stages = expect_run("pp2", {"--pp", "2", "--grad-accum", "4"});
  EXPECT_THAT(stages.out + stages.err, HasSubstr("exactly as planned"));
  expect_run("one", {"--ranks", "1", "--grad-accum", "4", "--sum-shape", "1,1,1,2"});
  EXPECT_EQ(model_of("pp2"), model_of("one"));
  expect_run("zbv", {"--ranks", "4", "--tp", "2", "--pp", "2", "--grad-accum", "4", "--pp-schedule",
                     "zbv", "--virtual-stages", "2"});
  expect_run("leaves", {"--ranks", "1", "--grad-accum", "4", "--sum-shape", "2,1,1,2"});
  EXPECT_EQ(model_of("zbv"), model_of("leaves"));
}

TEST_F(RunTiedEmbedding, AResumptionSaysWhereSumsChange) {
  expect_run("pp2", {"--pp", "2", "--grad-accum", "4", "--save-every", "4"});
  const Words resume = {
      "--resume", at("pp2/checkpoints/step-000004"), "--ranks", "1", "--grad-accum", "4"};
  const ProgramResult one = expect_run("one", resume);
  EXPECT_THAT(one.err, HasSubstr("gradients of the tied embedding and head are summed together "
                                 "from here on, up to the checkpoint they were apart: results are "
                                 "equal but for rounding; --sum-shape 1,1,1,2 gives others"));
  Words alike = joined(resume, {"--sum-shape", "1,1,1,2"});
  const ProgramResult same = expect_run("same", alike);
  EXPECT_THAT(same.err, Not(HasSubstr("tied embedding")));
  EXPECT_EQ(model_of("same"), model_of("pp2"));
  EXPECT_NE(model_of("same"), model_of("one"));
}

}  // namespace
}  // namespace shardwright::cli
