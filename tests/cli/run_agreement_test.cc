// SPDX-License-Identifier: Apache-2.0
// Ranks train one job or none, and a run goes on with the job of its checkpoint.

#include "tests/cli/run_fixture.h"

namespace shardwright::cli {
namespace {

using namespace testing;

class RunAgreementTest : public RunFixture {
 protected:
  void SetUp() override {
    RunFixture::SetUp();
    std::string text = get(folder_ / "text.txt");
    while (text.size() < 300'000) text += text;
    put("text.txt", text);
  }
  /// Writes the model with `changes`.
  std::string model_with(const std::string& name, const json& changes) const {
    json config = json::parse(get(folder_ / "model.json"));
    config.merge_patch(changes);
    return put(name, config.dump()).string();
  }
  /// The text, with one byte in its middle changed.
  std::string other_text() const {
    std::string text = get(folder_ / "text.txt");
    text[text.size() / 2] = 'x';
    return put("other.txt", text).string();
  }
};

#ifdef SHARDWRIGHT_MPIEXEC
class MpiAgreementTest : public RunAgreementTest {
 protected:
  /// A job of two processes, of which the second has other flags or variables.
  ProgramResult of_two(const Words& flags, const Words& variables = {},
                       const Words& first_flags = {}) const {
    const Words common{"--communicator", "mpi", "--steps",        "2",
                       "--overwrite",    "yes", "--rank-timeout", "20"};
    Words words{SHARDWRIGHT_MPIEXEC, "-n", "1"}, more = common;
    for (const std::string& word : small("mpi", joined(common, first_flags))) words.push_back(word);
    words.insert(words.end(), {":", "-n", "1"});
    for (const std::string& variable : variables) words.insert(words.end(), {"-x", variable});
    more.insert(more.end(), flags.begin(), flags.end());
    for (const std::string& word : small("mpi", more)) words.push_back(word);
    return run(words,
               {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                "OMPI_MCA_rmaps_base_oversubscribe=1",
                "OMPI_MCA_btl_vader_single_copy_mechanism=none", "LSAN_OPTIONS=detect_leaks=0"});
  }
};

TEST_F(MpiAgreementTest, RanksThatDifferAreRefusedByTheKeyBeforeTheFirstStep) {
  const struct {
    Words flags, variables;
    std::string said;
  } cases[] = {
      {{"--weight-decay", "0"}, {}, "weight-decay is 0.1 (default) on rank 0, but 0 (flag)"},
      {{}, {"SHARDWRIGHT_RUN_CLIP=2"}, "clip is 1 (default) on rank 0, but 2 (environment)"},
      {{"--steps", "3"}, {}, "steps is 2 (flag) on rank 0, but 3 (flag)"},
      {{"--save", "none"}, {}, "save is auto (default) on rank 0, but none (flag)"},
      {{"--tp", "2", "--strategy", "ddp"}, {}, "on rank 0, but ddp (flag)"},
      {{"--resume", "auto"}, {}, "resume is nothing (default) on rank 0, but given (flag)"},
      {{"--until", "allocation"}, {}, "until is end (default) on rank 0, but allocation (flag)"},
      {{"--model", model_with("theta.json", {{"rope_theta", 5000}})}, {}, "config.rope_theta"},
      {{"--data", other_text()}, {}, "crc32 of the data"},
  };
  for (const auto& one : cases) {
    const ProgramResult result = of_two(one.flags, one.variables);
    EXPECT_EQ(result.exit_code, 3) << one.said << result.err;
    EXPECT_THAT(result.err, HasSubstr(one.said));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "mpi" / "metrics.jsonl"));
  }
}

TEST_F(MpiAgreementTest, RanksStartFromTheSameWeights) {
  for (const char* seed : {"1", "5"}) {
    ASSERT_EQ(run(small(seed, {"--steps", "1", "--seed", seed})).exit_code, 0);
  }
  std::filesystem::copy(at("1/model"), at("copy"));
  const Words weights{"--weights", at("1/model")};
  for (const char* layout : {"--tp", "--pp"}) {
    const ProgramResult others =
        of_two({"--weights", at("5/model"), layout, "2"}, {}, joined(weights, {layout, "2"}));
    EXPECT_EQ(others.exit_code, 3) << others.err;
    EXPECT_THAT(others.err, HasSubstr("crc32 of the weights"));
    const ProgramResult same =
        of_two({"--weights", at("copy"), layout, "2"}, {}, joined(weights, {layout, "2"}));
    EXPECT_EQ(same.exit_code, 0) << same.err;
  }
}

TEST_F(MpiAgreementTest, AJobThatIsRefusedLeavesTheFinishedRunThere) {
  const ProgramResult finished = of_two({});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const std::string settings = get(folder_ / "mpi" / "run.ini");
  EXPECT_EQ(of_two({"--weight-decay", "0"}).exit_code, 3);
  EXPECT_EQ(get(folder_ / "mpi" / "run.ini"), settings);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "mpi" / "model" / "config.json"));
  EXPECT_EQ(of_two({"--seed", "3"}).exit_code, 3);
  EXPECT_EQ(of_two({}).exit_code, 0);
}

TEST_F(MpiAgreementTest, RanksMayHavePathsAndThreadsOfTheirOwn) {
  const auto copy = [&](const std::string& from, const std::string& to) {
    return put(to, get(folder_ / from)).string();
  };
  const ProgramResult result =
      of_two({"--model", copy("model.json", "m.json"), "--data", copy("text.txt", "t.txt"),
              "--threads", "2", "--log-every", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}
#endif

TEST_F(RunAgreementTest, ACheckpointIsGoneOnFromWithItsOwnModelAndDataAlone) {
  ASSERT_EQ(run(small("out")).exit_code, 0);
  const auto resumed = [&](Words more) {
    more.insert(more.end(), {"--resume", "auto", "--steps", "9"});
    return run(small("out", more));
  };
  const ProgramResult eps =
      resumed({"--model", model_with("eps.json", {{"rms_norm_eps", 0.1}, {"rope_theta", 5000}})});
  EXPECT_EQ(eps.exit_code, 3);
  EXPECT_THAT(eps.err, HasSubstr("made for another model, with rms_norm_eps 1e-05 (now 0.1), "
                                 "rope_theta nothing (now 5000); expected its own config.json"));
  const ProgramResult heads = resumed(
      {"--model", model_with("heads.json", {{"num_attention_heads", 4}, {"head_dim", 16}})});
  EXPECT_THAT(heads.err, HasSubstr("num_attention_heads 2 (now 4)"));
  const ProgramResult data = resumed({"--data", other_text()});
  EXPECT_EQ(data.exit_code, 3);
  EXPECT_THAT(data.err, HasSubstr("made with other training data: crc32 of the data was "));

  const ProgramResult moved =
      resumed({"--model", model_with("same.json", R"({"_note": "x", "torch_dtype": "float32",
                   "rope_theta": 10000, "attention_dropout": 0, "initializer_range": 0.1})"_json),
               "--data", put("copy.txt", get(folder_ / "text.txt")).string(), "--ranks", "1",
               "--grad-accum", "2", "--skip-above", "100", "--keep", "3"});
  EXPECT_EQ(moved.exit_code, 0) << moved.err;
  EXPECT_THAT(moved.err, HasSubstr("--skip-above is 100; in the run that is resumed it was 0\n"));
  EXPECT_THAT(moved.err, Not(HasSubstr("--keep")));
  EXPECT_THAT(moved.err, Not(HasSubstr("--data")));
  EXPECT_THAT(moved.err, Not(HasSubstr("--ranks")));
}

TEST_F(RunAgreementTest, AConfigMayHoldWhatPythonWritesForInfinity) {
  std::string config = get(folder_ / "model.json");
  put("model.json", config.replace(config.find('{'), 1, R"({"some_limit": Infinity, )"));
  const ProgramResult result = run(small("out", {"--steps", "2"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(RunAgreementTest, TheHashOfTheJobIsInTheCheckpointAndTheRunFile) {
  ASSERT_EQ(run(small("out", {"--steps", "2"})).exit_code, 0);
  const json job =
      json::parse(get(folder_ / "out" / "checkpoints" / "step-000002" / "checkpoint.json"))["job"];
  EXPECT_THAT(get(folder_ / "out" / "run.ini"),
              HasSubstr("# job " + job["sha256"].get<std::string>() + "\n"));
  EXPECT_EQ(job["facts"]["lr"], "1e-2");
  EXPECT_FALSE(job["facts"].contains("out"));
  ASSERT_EQ(run(small("other", {"--steps", "2", "--threads", "2"})).exit_code, 0);
  ASSERT_EQ(run(small("rate", {"--steps", "2", "--lr", "2e-2"})).exit_code, 0);
  const auto hash_of_run = [&](const std::string& name) {
    const std::string ini = get(folder_ / name / "run.ini");
    return ini.substr(ini.find("# job "), 70);
  };
  EXPECT_EQ(hash_of_run("out"), hash_of_run("other"));
  EXPECT_NE(hash_of_run("out"), hash_of_run("rate"));
}

}  // namespace
}  // namespace shardwright::cli
