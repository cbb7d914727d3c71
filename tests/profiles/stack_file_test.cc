// SPDX-License-Identifier: Apache-2.0
// Guards profiles/stack_file.h: the dates that names of releases tell.
#include "profiles/stack_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "profiles/step_parameters.h"
#include "sim/core/base/error.h"
#include "tests/support/files.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ReleaseDate, ReadsTheDatesThatReleasesName) {
  EXPECT_THAT(release_date("NeMo 26.08"), ElementsAre(2026, 8));
  EXPECT_THAT(release_date("NeMo 26.04.01"), ElementsAre(2026, 4, 1));
  EXPECT_THAT(release_date("NeMo 24.07 with vboost"), ElementsAre(2024, 7));
  EXPECT_THAT(release_date("torchtitan before 2024-06-12"), ElementsAre(2024, 6, 12));
  EXPECT_THAT(release_date("2025"), ElementsAre(2025));
  EXPECT_THAT(release_date("llm-foundry 2023-05, bf16 PURE"), ElementsAre(2023, 5));
  EXPECT_THAT(release_date("TE 2.11, torch 2.10"), IsEmpty());
  EXPECT_THAT(release_date("mcore 0.24.07"), IsEmpty());
  EXPECT_THAT(release_date("torchtitan #382, loss in 20 chunks"), IsEmpty());
  EXPECT_THAT(release_date("99999999999999999999"), IsEmpty());
  EXPECT_THAT(release_date("5.0"), IsEmpty());
  EXPECT_THAT(release_date(""), IsEmpty());
}

using ::testing::AllOf;
using testing::get;
using ::testing::HasSubstr;
using testing::refusal_of;
namespace fs = std::filesystem;

class StepParametersFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    file_ = shardwright::testing::temp_folder() / (std::string("steps_") + test->name() + ".json");
  }
  void TearDown() override { fs::remove(file_); }

  StepParameters load(const std::string& text) {
    std::ofstream(file_, std::ios::binary) << text;
    return load_step_parameters(file_);
  }
  std::string error_of(const std::string& text) {
    return refusal_of([&] { load(text); });
  }
  /// One parameter; `change` replaces `what` in it.
  static std::string one(const std::string& what = "", const std::string& change = "") {
    std::string text = R"({"schema": "shardwright.step_parameters/1.0", "parameters": [
      {"name": "n", "meaning": "m", "applies_to": {"stack": ["hf-eager"]},
       "targets": {"stack.host.step_s": 1}, "bounds": [0.01, 0.3],
       "prior": {"value": 0.1, "spread": 0.3, "source": "s"}}]})";
    if (!what.empty()) text.replace(text.find(what), what.size(), change);
    return text;
  }

  fs::path file_;
};

TEST_F(StepParametersFile, ThatShipsHasEveryConstantFittedWithinItsInterval) {
  const StepParameters shipped = load_step_parameters(shipped_step_parameters());
  for (const StepParameter& p : not_empty(shipped.parameters)) {
    ASSERT_TRUE(p.fitted.has_value()) << p.name;
    EXPECT_LE(p.fitted->interval[0], p.fitted->value) << p.name;
    EXPECT_GE(p.fitted->interval[1], p.fitted->value) << p.name;
    EXPECT_GT(p.fitted->held_out.n, 0) << p.name;
  }
}

// The rule of the fit: a constant belongs to a GPU, a cluster or a stack and to nothing smaller.
TEST_F(StepParametersFile, RefusesConstantsOfAnythingButAGpuAClusterOrAStack) {
  EXPECT_EQ(error_of(one()), "accepted");
  EXPECT_THAT(error_of(one(R"({"stack": ["hf-eager"]})", R"({"strategy": ["yafsdp"]})")),
              AllOf(HasSubstr("strategy"), HasSubstr("gpu, cluster, stack")));
  EXPECT_THAT(error_of(one(R"({"stack": ["hf-eager"]})", R"({"model": ["x"], "stack": ["y"]})")),
              HasSubstr("model"));
  EXPECT_THAT(error_of(one(R"(["hf-eager"])", "[]")), HasSubstr("at least one name"));
}

TEST_F(StepParametersFile, RefusesPathsThatTheScopesFilesDoNotHold) {
  EXPECT_THAT(error_of(one("stack.host.step_s", "cost.gemm.e")),
              AllOf(HasSubstr("cost.gemm.e"), HasSubstr("begin with stack.")));
  EXPECT_THAT(error_of(one(R"({"stack.host.step_s": 1})", "{}")), HasSubstr("at least one path"));
}

TEST_F(StepParametersFile, RefusesBoundsAndPriorsThatMakeNoSense) {
  EXPECT_THAT(error_of(one("[0.01, 0.3]", "[0.3, 0.01]")), HasSubstr("bounds"));
  EXPECT_THAT(error_of(one("[0.01, 0.3]", "[0, 0.3]")), HasSubstr("bounds"));
  EXPECT_THAT(error_of(one(R"("value": 0.1)", R"("value": 0.5)")), HasSubstr("prior.value"));
  EXPECT_THAT(error_of(one(R"("spread": 0.3)", R"("spread": 0)")), HasSubstr("spread"));
  EXPECT_THAT(error_of(one(R"("meaning": "m",)", "")), HasSubstr("meaning"));
}

TEST(StepParameters, AreSeenAndSetWhereTheyApply) {
  StepParameter p;
  p.name = "p";
  p.scope = StepScope::kStack;
  p.applies_to = {"hf-eager"};
  p.targets = {{"stack.host.step_s", 2}};
  Profile profile = load_profile("dgx-a100-80g", "hf-eager");
  EXPECT_TRUE(sees(p, profile, "dgx-a100-80g", "somebody"));
  EXPECT_FALSE(sees(p, load_profile("dgx-a100-80g", "mpt-eager"), "dgx-a100-80g", "somebody"));
  apply_steps({&p}, {0.05}, profile);
  EXPECT_DOUBLE_EQ(profile.stack.host.step_s, 0.1);

  p.scope = StepScope::kCluster;
  p.applies_to = {"a3-mega"};
  EXPECT_FALSE(sees(p, profile, "dgx-a100-80g", "somebody"));
  EXPECT_TRUE(sees(p, profile, "a3-mega", "somebody"));

  // A kernel that the stack does not run is not seen.
  p.scope = StepScope::kGpu;
  p.applies_to = {"a100-80g"};
  p.targets = {{"cost.attention.triton.forward_flops", 1}};
  EXPECT_FALSE(sees(p, profile, "", "somebody"));
  EXPECT_TRUE(sees(p, load_profile("dgx-a100-80g", "mpt-eager"), "", "somebody"));

  p.targets = {{"stack.no_such", 1}};
  EXPECT_THROW(apply_steps({&p}, {1}, profile), Error);
  p.targets = {{"stack.attention_kernel", 1}};
  EXPECT_THROW(apply_steps({&p}, {1}, profile), Error);
}

// Whatever is in the file, reading it ends in a value or in one sentence.
TEST_F(StepParametersFile, NoFileDoesWorseThanAnError) {
  const std::string text = get(shipped_step_parameters());
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    std::string broken = text;
    for (int edits = 0; edits < 3; ++edits) {
      broken[random() % broken.size()] = static_cast<char>(random() % 256);
    }
    if (i % 4 == 0) broken.resize(random() % broken.size());
    try {
      load(broken);
    } catch (const Error& error) {
      EXPECT_GT(std::string(error.what()).size(), 10U);
    }
  }
}

// What only one source's runs determine is theirs alone, and theirs instead of everybody's.
TEST(StepParameters, OfASourceApplyToItAlone) {
  StepParameter all;
  all.name = "all";
  all.scope = StepScope::kStack;
  all.applies_to = {"hf-eager"};
  all.targets = {{"stack.host.step_s", 1.0}};
  all.min = 0.001;
  all.max = 1;
  all.prior = 0.03;
  StepParameter own = all;
  own.name = "own";
  own.sources = {"somebody"};
  own.fitted = FittedStep{0.08, {0.07, 0.09}, {}, {}};
  Profile profile = load_profile("dgx-a100-80g", "hf-eager");
  const double before = profile.stack.host.step_s;
  const std::vector<const StepParameter*> both = {&all, &own};
  EXPECT_EQ(seen_by(both, profile, "", "others"), (std::vector<const StepParameter*>{&all}));
  EXPECT_EQ(seen_by(both, profile, "", "somebody"), (std::vector<const StepParameter*>{&own}));

  StepParameters parameters;
  parameters.parameters = {all, own};
  apply_source_constants(parameters, "", "others", {}, profile);
  EXPECT_EQ(profile.stack.host.step_s, before);
  apply_source_constants(parameters, "", "somebody", {"stack.host.step_s=0.5"}, profile);
  EXPECT_EQ(profile.stack.host.step_s, before);
  apply_source_constants(parameters, "", "somebody", {}, profile);
  EXPECT_EQ(profile.stack.host.step_s, 0.08);
}

}  // namespace

}  // namespace shardwright::profiles
