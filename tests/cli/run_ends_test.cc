// SPDX-License-Identifier: Apache-2.0
// Guards how `shardwright run` ends and goes on: killed, told to stop, unread, unable to write,
// beside another one.
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/random.h"
#include "tests/cli/run_fixture.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using namespace testing;

class RunEndsTest : public RunFixture {
 protected:
  /// Runs `words` until the shell finds that `reached` holds, then does `then`; ends as the run
  /// does. What never happens is not awaited for ever.
  static ProgramResult run_until(const Words& words, const std::string& reached,
                                 const std::string& then) {
    std::string command;
    for (const std::string& word : words) command += "'" + word + "' ";
    command += fmt::format(
        "& run=$!; i=0; until {} || [ $i -ge 20000 ]; do i=$((i+1)); sleep 0.01; done; {}; "
        "wait $run",
        reached, then);
    return run({"/bin/sh", "-c", command});
  }
  /// The last step that `out` saved.
  std::int64_t saved_step(const std::string& out) const {
    std::int64_t step = 0;
    std::error_code missing;
    for (const auto& entry : fs::directory_iterator(folder_ / out / "checkpoints", missing)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-")) step = std::max(step, std::stol(name.substr(5)));
    }
    return step;
  }
};

// A constant rate, so that it does not matter how many steps a run is told to take in all.
Words steps(std::int64_t count, const char* save_every) {
  return {"--steps",      fmt::format("{}", count),
          "--save-every", save_every,
          "--resume",     "auto",
          "--schedule",   "constant"};
}

TEST_F(RunEndsTest, KilledAtAnyMomentItResumesToTheSameWeights) {
  const kernels::RandomStream random{1, kernels::RandomSite::kDelay, 0};
  const std::string newest =
      fmt::format("$(ls '{}' 2>/dev/null | grep ^step- | tail -n 1)", at("killed/checkpoints"));
  for (std::uint64_t attempt = 0; attempt < 6; ++attempt) {
    // At first at any moment, then some time after each has come further than the one before.
    const std::string reached =
        attempt == 0 ? "true"
                     : fmt::format("[ \"{}\" \\> 'step-{:06}' ]", newest, saved_step("killed"));
    const std::string kill =
        fmt::format("sleep {:.3f}; kill -KILL $run", 0.3 * random.uniform(attempt));
    const ProgramResult result = run_until(small("killed", steps(1000000, "3")), reached, kill);
    ASSERT_EQ(result.exit_code, 137) << result.err;
  }
  const std::int64_t done = saved_step("killed");
  ASSERT_GE(done, 5 * 3);
  const ProgramResult last = run(small("killed", steps(done + 3, "3")));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  ASSERT_EQ(run(small("whole", steps(done + 3, "3"))).exit_code, 0);
  EXPECT_EQ(model_of("killed"), model_of("whole"));
}

// Ctrl-C's polite sister, a terminal that is gone, and what `sbatch --signal=USR1@120` and other
// recipes send.
TEST_F(RunEndsTest, TerminatedItSavesAndGoesOn) {
  for (const std::string signal : {"TERM", "HUP", "USR1", "USR2", "ALRM"}) {
    const std::int64_t before = saved_step("out");
    const ProgramResult stopped = run_until(
        small("out", steps(1000000, "1000")),
        fmt::format("[ $(cat '{}' 2>/dev/null | wc -l) -gt {} ]", at("out/metrics.jsonl"), before),
        "kill -" + signal + " $run");
    EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("interrupted at step"));
    EXPECT_THAT(stopped.err, HasSubstr("--resume auto"));
    EXPECT_EQ(stopped.err.find("resumed from") != std::string::npos, before > 0);
    EXPECT_FALSE(fs::exists(folder_ / "out" / "model"));
    EXPECT_GT(saved_step("out"), before);
  }
  const std::int64_t done = saved_step("out");
  const ProgramResult last = run(small("out", steps(done + 3, "1000")));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  ASSERT_EQ(run(small("whole", steps(done + 3, "1000"))).exit_code, 0);
  EXPECT_EQ(model_of("out"), model_of("whole"));
}

TEST_F(RunEndsTest, GoesOnWhenNobodyReadsItsLinesAnyMore) {
  std::string command = "{ ";
  for (const std::string& word : small("out", {"--steps", "200"})) command += "'" + word + "' ";
  command += fmt::format("2>&1; echo $? > '{}'; }} | head -n 1", at("code"));
  EXPECT_EQ(run({"/bin/sh", "-c", command}).exit_code, 0);
  EXPECT_EQ(get(folder_ / "code"), "0\n");
  EXPECT_FALSE(model_of("out").empty());
}

TEST_F(RunEndsTest, TriesItsOutputsBeforeTheFirstStep) {
  for (const Words& wrong :
       {Words{"--trace", "/nowhere/at/all/t.json"}, Words{"--trace", at("text.txt") + "/t.json"}}) {
    expect_end(run(small("out", wrong)), 3, {wrong[1]});
    EXPECT_FALSE(fs::exists(folder_ / "out" / "metrics.jsonl"));
  }
}

TEST_F(RunEndsTest, FollowsNoLinkOfAnotherUserOutOfItsFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes links of others";
  fs::create_directories(folder_ / "elsewhere" / ".writing-of-a-friend");
  fs::create_directories(folder_ / "out");
  const fs::path link = folder_ / "out" / "checkpoints";
  fs::create_directory_symlink(folder_ / "elsewhere", link);
  ASSERT_EQ(::lchown(link.c_str(), 12345, 12345), 0);
  expect_end(run(small("out", {"--save-every", "1"})), 3, {"checkpoints: is a link"});
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere" / ".writing-of-a-friend"));
}

// `tar x` and `git clone` make links and pipes in the name of whoever unpacks a stranger's folder.
TEST_F(RunEndsTest, FollowsNothingInItsFolder) {
  fs::create_directories(folder_ / "elsewhere" / ".writing-of-a-friend");
  const fs::path victim = put("victim", "precious");
  const auto out = [&](const std::string& name) {
    fs::remove_all(folder_ / "out");
    fs::create_directories((folder_ / "out" / name).parent_path());
    return folder_ / "out" / name;
  };
  const auto refuses = [&](const std::string& name, const std::string& what) {
    const ProgramResult refused = run(
        small("out", {"--save-every", "1", "--trace", at("out/trace.json"), "--resume", "auto"}));
    EXPECT_EQ(refused.exit_code, 3) << name << refused.out << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(name + ": is " + what));
  };
  for (const std::string name :
       {"metrics.jsonl", "run.ini", "plan.json", "trace.json", "model/config.json"}) {
    fs::create_symlink(victim, out(name));
    refuses(name, "a link");
    EXPECT_EQ(get(victim), "precious");
  }
  for (const std::string name : {"checkpoints", "model"}) {
    fs::create_directory_symlink(folder_ / "elsewhere", out(name));
    refuses(name, "a link");
    EXPECT_TRUE(fs::exists(folder_ / "elsewhere" / ".writing-of-a-friend"));
  }
  for (const std::string name : {"metrics.jsonl", "trace.json"}) {
    ASSERT_EQ(::mkfifo(out(name).c_str(), 0600), 0);
    refuses(name, "a pipe");
  }
  // Where --out itself leads is for the user to say.
  fs::create_directories(folder_ / "large-disk");
  fs::create_directory_symlink(folder_ / "large-disk", out("") / "..linked");
  const ProgramResult through = run(small("out/..linked"));
  EXPECT_EQ(through.exit_code, 0) << through.err;
  EXPECT_TRUE(fs::exists(folder_ / "large-disk" / "model" / "model.safetensors"));
}

TEST_F(RunEndsTest, LeavesNoLitterOfKilledRuns) {
  fs::create_directories(folder_ / "out" / "checkpoints" / ".writing-step-000002");
  const std::vector<std::string> litter = {
      "checkpoints/.shared-0123456789abcdef", "checkpoints/..shared-0123456789abcdef.17-0.tmp",
      "checkpoints/.probe.17-0.tmp", ".metrics.jsonl.17-0.tmp", ".run.ini.17-1.tmp"};
  for (const std::string& name : litter) put("out/" + name, "");
  put("out/.own.notes.tmp", "of the user");
  ASSERT_EQ(run(small("out")).exit_code, 0);
  for (const std::string& name : litter) EXPECT_FALSE(fs::exists(folder_ / "out" / name)) << name;
  EXPECT_FALSE(fs::exists(folder_ / "out" / "checkpoints" / ".writing-step-000002"));
  EXPECT_TRUE(fs::exists(folder_ / "out" / ".own.notes.tmp"));
}

TEST_F(RunEndsTest, ATraceThatCannotBeWrittenDoesNotCostTheModel) {
  expect_end(run(small("out", {"--trace", "/dev/full"})), 1, {"/dev/full: cannot"});
  EXPECT_FALSE(model_of("out").empty());
}

TEST_F(RunEndsTest, OneProcessWritesIntoAFolder) {
  const Words endless = small("out", {"--steps", "1000000"});
  const Words second = small("out", {"--steps", "4"});
  std::string beside;
  for (const std::string& word : second) beside += "'" + word + "' ";
  const ProgramResult first =
      run_until(endless, fmt::format("[ -s '{}' ]", at("out/metrics.jsonl")),
                fmt::format("{}; echo $? $run > '{}'; kill -TERM $run", beside, at("code")));
  EXPECT_EQ(first.exit_code, 75) << first.err;
  std::istringstream words(get(folder_ / "code"));
  int code = 0, pid = 0;
  words >> code >> pid;
  EXPECT_EQ(code, 1);
  EXPECT_THAT(first.err, HasSubstr(fmt::format("process {} on ", pid)));
  EXPECT_THAT(first.err, HasSubstr("is writing its run there"));
}

TEST_F(RunEndsTest, OverwritesAFinishedRunOnlyWhenToldTo) {
  ASSERT_EQ(run(small("out")).exit_code, 0);
  const std::string model = model_of("out");
  expect_end(run(small("out", {"--seed", "7"})), 3, {"a finished run is there", "--overwrite yes"});
  EXPECT_EQ(model_of("out"), model);
  ASSERT_EQ(run(small("out", {"--seed", "7", "--overwrite", "yes"})).exit_code, 0);
  EXPECT_NE(model_of("out"), model);
}

TEST_F(RunEndsTest, ADamagedCheckpointIsRefusedOrPassedOver) {
  ASSERT_EQ(run(small("out", {"--save-every", "4"})).exit_code, 0);
  const std::string whole = model_of("out");
  const fs::path newest = folder_ / "out" / "checkpoints" / "step-000008";
  const fs::path file = newest / "rank-00001-of-00002.safetensors";
  fs::resize_file(file, fs::file_size(file) - 7);
  expect_end(run(small("out", {"--resume", newest.string()})), 3,
             {"rank-00001-of-00002.safetensors", "cut short"});
  expect_end(run(small("out", {"--resume", "auto"})), 0,
             {"the one before it is tried", "step-000004"});
  EXPECT_EQ(model_of("out"), whole);
}

TEST_F(RunEndsTest, WantOfMemoryIsNoDamageOfCheckpoints) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers want address space without limits";
#endif
  const auto limited = [&](int mib, const Words& words) {
    std::string command = fmt::format("ulimit -v {}; exec ", mib * 1024);
    for (const std::string& word : words) command += "'" + word + "' ";
    return run({"/bin/sh", "-c", command});
  };
  ASSERT_EQ(run(small("out", {"--save-every", "2"})).exit_code, 0);
  int low = 1, high = 1 << 16;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    const int code = limited(middle, {SHARDWRIGHT_BINARY, "--version"}).exit_code;
    (code == 0 ? high : low) = middle;
  }
  // From where the program can be loaded to where it has all that it wants.
  int refused = 0;
  for (int mib = high, well = 0; well < 5; mib += 2) {
    const ProgramResult result =
        limited(mib, small("out", {"--steps", "9", "--save", "none", "--resume", "auto"}));
    ASSERT_LE(result.exit_code, 1) << mib << " MiB: " << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("the one before it is tried"))) << mib << " MiB";
    well = result.exit_code == 0 ? well + 1 : 0;
    refused += result.exit_code;
  }
  EXPECT_GT(refused, 0);
}

TEST_F(RunEndsTest, ARankThatFailsEndsAllAndSaysWhy) {
  ASSERT_EQ(run(small("out", {"--steps", "1"})).exit_code, 0);
  put_model(3, 2, 1);  // a layer more than there are weights for
  const ProgramResult result = run(small("other", {"--weights", at("out/model"), "--ranks", "3"}));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("error: rank [0-2] of 3: .*layers.2"));
}

}  // namespace
}  // namespace shardwright::cli
