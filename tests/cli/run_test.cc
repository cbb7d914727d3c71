// SPDX-License-Identifier: Apache-2.0
// Guards `shardwright run` as a user meets it: files, settings, resuming after any kind of end.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/machine/program_path.h"
#include "cli/run/settings.h"
#include "kernels/random.h"
#include "sim/core/error.h"
#include "tests/support/not_empty.h"
#include "tests/support/run_program.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_program;
using Words = std::vector<std::string>;

std::string get(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class RunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              (std::string("shardwright-run-") + test->name() + std::to_string(::getpid()));
    fs::create_directories(folder_);
    put("model.json", R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
      "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
      "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
      "architectures": ["LlamaForCausalLM"]})");
    std::string text;
    for (int i = 0; i < 3000; ++i) text += fmt::format("{} ", i * 7919 % 1000);
    put("text.txt", text);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path put(const std::string& name, std::string_view bytes) const {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return path;
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  /// A small run into folder_/out; pairs of `more` replace or add flags.
  Words small(const std::string& out, const Words& more = {}) const {
    Words words{SHARDWRIGHT_BINARY,
                "run",
                "--device",
                "host",
                "--model",
                at("model.json"),
                "--data",
                at("text.txt"),
                "--ranks",
                "2",
                "--steps",
                "8",
                "--seq-len",
                "32",
                "--micro-batch",
                "2",
                "--lr",
                "1e-2",
                "--threads",
                "1",
                "--out",
                at(out)};
    for (std::size_t i = 0; i < more.size();) {
      const auto known = std::find(words.begin(), words.end(), more[i]);
      const bool has_value = i + 1 < more.size() && !more[i + 1].starts_with("--");
      if (known != words.end() && has_value) {
        *(known + 1) = more[i + 1];
      } else {
        words.push_back(more[i]);
        if (has_value) words.push_back(more[i + 1]);
      }
      i += has_value ? 2 : 1;
    }
    return words;
  }
  static ProgramResult run(const Words& words, const Words& environment = {}) {
    return run_program(words, environment);
  }
  std::string model_of(const std::string& out) const {
    return get(folder_ / out / "model" / "model.safetensors");
  }

  fs::path folder_;
};

TEST_F(RunTest, WritesEverythingThatIsPromised) {
  const ProgramResult result =
      run(small("out", {"--json", "--eval-every", "4", "--save-every", "3", "--trace",
                        at("step.json"), "--cluster", "l4-pcie8"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json summary = json::parse(result.out);
  EXPECT_EQ(summary["schema"], "shardwright.run/1.0");
  EXPECT_EQ(summary["last_step"], 8);
  EXPECT_EQ(summary["peak_memory_bytes"], summary["planned_memory_bytes"]);
  EXPECT_GT(summary["predicted_step_time_s"].get<double>(), 0);
  EXPECT_THAT(result.err, HasSubstr("exactly as planned"));

  std::ifstream metrics(folder_ / "out" / "metrics.jsonl");
  std::string line;
  std::vector<json> steps;
  while (std::getline(metrics, line)) steps.push_back(json::parse(line));
  ASSERT_EQ(steps.size(), 8u);
  for (const char* key :
       {"step", "loss", "grad_norm", "lr", "tokens", "step_time_s", "tokens_per_s"}) {
    EXPECT_TRUE(steps[0].contains(key)) << key;
  }
  EXPECT_TRUE(steps[3].contains("eval_loss") && steps[7].contains("eval_loss"));
  EXPECT_LT(steps[7]["loss"], steps[0]["loss"]);
  EXPECT_TRUE(fs::exists(folder_ / "out" / "checkpoints" / "step-000008" / "checkpoint.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "checkpoints" / "step-000003")) << "two are kept";
  const json config = json::parse(get(folder_ / "out" / "model" / "config.json"));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["hidden_size"], 32);
  EXPECT_TRUE(json::parse(get(folder_ / "out" / "trace.json")).contains("traceEvents"));
  EXPECT_EQ(get(folder_ / "out" / "trace.json"), get(folder_ / "step.json"));

  // The run file that it wrote repeats the run, also as other processes' environment says.
  const ProgramResult again =
      run({SHARDWRIGHT_BINARY, "run", "--config", at("out/run.ini"), "--trace", ""},
          {"SHARDWRIGHT_RUN_OUT=" + at("again")});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(model_of("again"), model_of("out"));
  EXPECT_THAT(again.out, HasSubstr("eval loss"));
}

TEST_F(RunTest, KeepsNoCheckpointWhereOnlyTimeMatters) {
  const ProgramResult result = run(small("out", {"--save", "none", "--save-every", "3", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json summary = json::parse(result.out);
  EXPECT_EQ(summary["last_step"], 8);
  EXPECT_EQ(summary["checkpoint"], nullptr);
  EXPECT_EQ(summary["model"], nullptr);
  EXPECT_TRUE(fs::is_empty(folder_ / "out" / "checkpoints"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "model"));
}

TEST_F(RunTest, RanksAndStreamsDoNotChangeTheModel) {
  ASSERT_EQ(run(small("two")).exit_code, 0);
  ASSERT_EQ(run(small("one", {"--ranks", "1", "--grad-accum", "2"})).exit_code, 0);
  ASSERT_EQ(run(small("threads", {"--streams", "shuffled", "--strategy", "fsdp2"})).exit_code, 0);
  EXPECT_EQ(model_of("one"), model_of("two"));
  EXPECT_EQ(model_of("threads"), model_of("two"));

  const fs::path mpirun = program_path("mpirun");
  const ProgramResult doctor = run({SHARDWRIGHT_BINARY, "doctor", "--json"});
  const json executors = json::parse(doctor.out)["built_with"]["executors"];
  if (mpirun.empty() || std::find(executors.begin(), executors.end(), "mpi") == executors.end()) {
    GTEST_SKIP() << "no MPI";
  }
  Words words{mpirun.string(), "-n", "2"};
  const Words small_run = small("mpi");
  words.insert(words.end(), small_run.begin(), small_run.end());
  const ProgramResult mpi =
      run(words,
          {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
           "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_btl_vader_single_copy_mechanism=none"});
  ASSERT_EQ(mpi.exit_code, 0) << mpi.err;
  EXPECT_EQ(model_of("mpi"), model_of("two"));
}

TEST_F(RunTest, KilledAtAnyMomentItResumesToTheSameWeights) {
  // A constant rate, so that it does not matter how many steps a run is told to take in all.
  const auto flags = [](std::int64_t steps) {
    return Words{
        "--steps", fmt::format("{}", steps), "--save-every", "3", "--resume", "auto", "--schedule",
        "constant"};
  };
  const kernels::RandomStream random{1, kernels::RandomSite::kDelay, 0};
  for (std::uint64_t attempt = 0; attempt < 6; ++attempt) {
    Words words{"/usr/bin/timeout", "-s", "KILL",
                fmt::format("{:.3f}", 0.05 + 0.3 * random.uniform(attempt))};
    const Words endless = small("killed", flags(1000000));
    words.insert(words.end(), endless.begin(), endless.end());
    const ProgramResult result = run(words);
    ASSERT_EQ(result.exit_code, 137) << result.err;
  }
  std::int64_t done = 0;
  for (const auto& entry : not_empty(fs::directory_iterator(folder_ / "killed" / "checkpoints"))) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) done = std::max(done, std::stol(name.substr(5)));
  }
  const ProgramResult last = run(small("killed", flags(done + 3)));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  ASSERT_EQ(run(small("whole", flags(done + 3))).exit_code, 0);
  EXPECT_EQ(model_of("killed"), model_of("whole"));
}

TEST_F(RunTest, TerminatedItSavesAndGoesOn) {
  const Words flags{"--steps", "400", "--save-every", "1000", "--resume", "auto"};
  ASSERT_EQ(run(small("whole", flags)).exit_code, 0);
  // As soon as the first step is done: Ctrl-C's polite sister, a terminal that is gone, and what
  // `sbatch --signal=USR1@120` sends.
  for (const std::string signal : {"TERM", "HUP", "USR1"}) {
    std::string command;
    for (const std::string& word : small(signal, flags)) command += "'" + word + "' ";
    command +=
        fmt::format("& run=$!; while ! [ -s '{}' ]; do sleep 0.01; done; kill -{} $run; wait $run",
                    at(signal + "/metrics.jsonl"), signal);
    const ProgramResult stopped = run({"/bin/sh", "-c", command});
    EXPECT_EQ(stopped.exit_code, 75) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("interrupted at step"));
    EXPECT_THAT(stopped.err, HasSubstr("--resume auto"));
    EXPECT_FALSE(fs::exists(folder_ / signal / "model"));
    const ProgramResult last = run(small(signal, flags));
    ASSERT_EQ(last.exit_code, 0) << last.err;
    EXPECT_THAT(last.err, HasSubstr("resumed from"));
    EXPECT_EQ(model_of(signal), model_of("whole"));
  }
}

TEST_F(RunTest, GoesOnWhenNobodyReadsItsLinesAnyMore) {
  std::string command = "{ ";
  for (const std::string& word : small("out", {"--steps", "200"})) command += "'" + word + "' ";
  command += fmt::format("2>&1; echo $? > '{}'; }} | head -n 1", at("code"));
  EXPECT_EQ(run({"/bin/sh", "-c", command}).exit_code, 0);
  EXPECT_EQ(get(folder_ / "code"), "0\n");
  EXPECT_FALSE(model_of("out").empty());
}

TEST_F(RunTest, TriesItsOutputsBeforeTheFirstStep) {
  for (const Words& wrong :
       {Words{"--trace", "/nowhere/at/all/t.json"}, Words{"--trace", at("text.txt") + "/t.json"}}) {
    const ProgramResult refused = run(small("out", wrong));
    EXPECT_EQ(refused.exit_code, 3) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(wrong[1]));
    EXPECT_FALSE(fs::exists(folder_ / "out" / "metrics.jsonl"));
  }
}

TEST_F(RunTest, ATraceThatCannotBeWrittenDoesNotCostTheModel) {
  const ProgramResult result = run(small("out", {"--trace", "/dev/full"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("/dev/full: cannot"));
  EXPECT_FALSE(model_of("out").empty());
}

TEST_F(RunTest, OneProcessWritesIntoAFolder) {
  const Words endless = small("out", {"--steps", "1000000"});
  const Words second = small("out", {"--steps", "4"});
  std::string command;
  for (const std::string& word : endless) command += "'" + word + "' ";
  command +=
      fmt::format("& run=$!; while ! [ -s '{}' ]; do sleep 0.01; done; ", at("out/metrics.jsonl"));
  for (const std::string& word : second) command += "'" + word + "' ";
  command += fmt::format("; echo $? $run > '{}'; kill -TERM $run; wait $run", at("code"));
  const ProgramResult first = run({"/bin/sh", "-c", command});
  EXPECT_EQ(first.exit_code, 75) << first.err;
  std::istringstream words(get(folder_ / "code"));
  int code = 0, pid = 0;
  words >> code >> pid;
  EXPECT_EQ(code, 1);
  EXPECT_THAT(first.err, HasSubstr(fmt::format("process {} on ", pid)));
  EXPECT_THAT(first.err, HasSubstr("is writing its run there"));
}

TEST_F(RunTest, OverwritesAFinishedRunOnlyWhenToldTo) {
  ASSERT_EQ(run(small("out")).exit_code, 0);
  const std::string model = model_of("out");
  const ProgramResult refused = run(small("out", {"--seed", "7"}));
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("a finished run is there"));
  EXPECT_THAT(refused.err, HasSubstr("--overwrite yes"));
  EXPECT_EQ(model_of("out"), model);
  ASSERT_EQ(run(small("out", {"--seed", "7", "--overwrite", "yes"})).exit_code, 0);
  EXPECT_NE(model_of("out"), model);
}

TEST_F(RunTest, ShowsNoTerminalCommandsOfAStrangersFile) {
  ASSERT_EQ(run(small("whole")).exit_code, 0);
  std::string plan = get(folder_ / "whole" / "plan.json");
  const std::size_t first_key = plan.find("\"strategy\"");
  ASSERT_NE(first_key, std::string::npos);
  put("plan.json", plan.insert(first_key, R"("\u001b]0;owned\u0007": 1, )"));
  const ProgramResult refused = run(small("out", {"--plan", at("plan.json")}));
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("]0;owned"));
  EXPECT_EQ(refused.err.find_first_of("\x1b\x07"), std::string::npos);
}

TEST_F(RunTest, ADamagedCheckpointIsRefusedOrPassedOver) {
  ASSERT_EQ(run(small("out", {"--save-every", "4"})).exit_code, 0);
  const std::string whole = model_of("out");
  const fs::path newest = folder_ / "out" / "checkpoints" / "step-000008";
  const fs::path file = newest / "rank-00001-of-00002.safetensors";
  fs::resize_file(file, fs::file_size(file) - 7);
  const ProgramResult refused = run(small("out", {"--resume", newest.string()}));
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("rank-00001-of-00002.safetensors"));
  EXPECT_THAT(refused.err, HasSubstr("cut short"));
  const ProgramResult earlier = run(small("out", {"--resume", "auto"}));
  ASSERT_EQ(earlier.exit_code, 0) << earlier.err;
  EXPECT_THAT(earlier.err, HasSubstr("the one before it is tried"));
  EXPECT_THAT(earlier.err, HasSubstr("step-000004"));
  EXPECT_EQ(model_of("out"), whole);
}

TEST_F(RunTest, ARankThatFailsEndsAllAndSaysWhy) {
  std::vector<std::uint16_t> tokens(4000, 1);
  tokens[2000] = 999;
  std::vector<std::int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 4000;
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  bytes.append(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
  const auto begin = std::chrono::steady_clock::now();
  const ProgramResult result = run(
      small("out", {"--data", put("bad.bin", bytes).string(), "--steps", "500", "--ranks", "3"}));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              ::testing::ContainsRegex("error: rank [0-2] of 3: .*bad.bin: token 2000 is 999"));
}

TEST_F(RunTest, ReadsPairsForFineTuning) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += fmt::format("{{\"prompt\": \"{} + 1 = \", \"response\": \"{}.\"}}\n", i, i + 1);
  }
  const ProgramResult result =
      run(small("out", {"--data", put("pairs.jsonl", lines).string(), "--hold-out", "0.2"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("48 documents of"));
}

TEST_F(RunTest, StartsFromTheModelThatItWrote) {
  ASSERT_EQ(run(small("out")).exit_code, 0);
  const ProgramResult again =
      run(small("again", {"--model", at("out/model"), "--weights", at("out/model"), "--steps", "1",
                          "--lr", "1e-30", "--weight-decay", "0", "--json"}));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(model_of("again"), model_of("out"));
  const ProgramResult other =
      run(small("other", {"--weights", at("out/model"), "--model", "pythia-70m"}));
  EXPECT_EQ(other.exit_code, 3);
}

TEST_F(RunTest, ReadsTokenFilesOfTheScript) {
  const fs::path python = program_path("python3");
  if (python.empty()) GTEST_SKIP() << "no python3";
  const std::string scripts = SHARDWRIGHT_SCRIPTS;
  const ProgramResult made =
      run({python.string(), scripts + "/make_tokens", at("text.tok"), "--bytes", at("text.txt")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  ASSERT_EQ(run(small("text")).exit_code, 0);
  const ProgramResult tokens = run(small("tokens", {"--data", at("text.tok")}));
  ASSERT_EQ(tokens.exit_code, 0) << tokens.err;
  EXPECT_THAT(tokens.err, HasSubstr("tokens of a vocabulary of 256"));
  EXPECT_EQ(model_of("tokens"), model_of("text"));
  const ProgramResult curve =
      run({python.string(), scripts + "/loss_curve", at("text/metrics.jsonl")});
  EXPECT_EQ(curve.exit_code, 0) << curve.err;
  EXPECT_THAT(curve.out, HasSubstr("E"));
}

TEST_F(RunTest, EverySettingShowsItsOrigin) {
  put("run.ini", fmt::format("# a run\nmodel = {}\ndata = {}\nlr = 0.5\nsteps = 7  # few\n",
                             at("model.json"), at("text.txt")));
  const Words environment{"SHARDWRIGHT_RUN_LR=0.25", "SHARDWRIGHT_RUN_CLIP=2"};
  const ProgramResult shown =
      run({SHARDWRIGHT_BINARY, "inspect", "run", at("run.ini"), "--json"}, environment);
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  const json settings = json::parse(shown.out)["settings"];
  EXPECT_EQ(settings["steps"], json({{"value", "7"}, {"origin", at("run.ini")}}));
  EXPECT_EQ(settings["lr"], json({{"value", "0.25"}, {"origin", "environment"}}));
  EXPECT_EQ(settings["warmup"], json({{"value", "0"}, {"origin", "default"}}));
  const ProgramResult flags =
      run({SHARDWRIGHT_BINARY, "run", "--config", at("run.ini"), "--clip", "3", "--show-settings"},
          environment);
  EXPECT_THAT(flags.out, HasSubstr("\nclip = 3  # flag\n"));
  EXPECT_THAT(flags.out, HasSubstr("\nlr = 0.25  # environment\n"));

  // What is shown is a run file of the same settings.
  put("again.ini", flags.out);
  const ProgramResult again =
      run({SHARDWRIGHT_BINARY, "run", "--config", at("again.ini"), "--show-settings"});
  const auto values = [](const std::string& ini) {
    std::vector<std::string> lines;
    std::istringstream text(ini);
    for (std::string line; std::getline(text, line);)
      lines.push_back(line.substr(0, line.find('#')));
    return lines;
  };
  ASSERT_GT(values(flags.out).size(), setting_table().size());
  EXPECT_EQ(values(again.out), values(flags.out));

  // A plan gives what nobody else does.
  ASSERT_EQ(run(small("out", {"--prefetch", "2"})).exit_code, 0);
  const ProgramResult planned =
      run({SHARDWRIGHT_BINARY, "run", "--plan", at("out/plan.json"), "--data", at("text.txt"),
           "--seq-len", "16", "--show-settings"});
  EXPECT_THAT(planned.out, HasSubstr("\nprefetch = 2  # " + at("out/plan.json")));
  EXPECT_THAT(planned.out, HasSubstr("\nseq-len = 16  # flag"));
  const ProgramResult checkpoint = run(
      {SHARDWRIGHT_BINARY, "inspect", "checkpoint", at("out/checkpoints/step-000008"), "--json"});
  EXPECT_EQ(json::parse(checkpoint.out)["step"], 8);
}

TEST_F(RunTest, WrongSettingsAreRefusedByName) {
  const auto refusal = [&](const Words& more, int code, const Words& environment = {}) {
    const ProgramResult result = run(small("out", more), environment);
    EXPECT_EQ(result.exit_code, code) << result.err;
    return result.err;
  };
  EXPECT_THAT(refusal({"--steps", "x"}, 2), HasSubstr("--steps is 'x'"));
  EXPECT_THAT(refusal({"--strategy", "yafdsp"}, 3), HasSubstr("did you mean 'yafsdp'"));
  // Whatever this build and machine have: without a visible GPU there is one sentence.
  EXPECT_THAT(refusal({"--device", "cuda"}, 5, {"CUDA_VISIBLE_DEVICES="}),
              HasSubstr("device is 'cuda', but "));
  EXPECT_THAT(refusal({"--communicator", "nccl"}, 5), HasSubstr("the device is host"));
  EXPECT_THAT(refusal({"--attention-kernel", "flash"}, 3), HasSubstr("must be auto on the host"));
  EXPECT_THAT(refusal({"--data", at("none.txt")}, 3), HasSubstr("none.txt: cannot open"));
  EXPECT_THAT(refusal({}, 3, {"RANK=1"}), HasSubstr("half set: RANK=1 is there"));
  EXPECT_THAT(refusal({}, 3, {"SHARDWRIGHT_RUN_STEP=3"}),
              HasSubstr("did you mean 'SHARDWRIGHT_RUN_STEPS'"));
  EXPECT_THAT(refusal({"--config", put("a.ini", "stepz = 3\n").string()}, 3),
              HasSubstr("'stepz' is no setting of run, did you mean 'steps'"));
  EXPECT_THAT(refusal({"--config", put("b.ini", "buffers = few\n").string()}, 2),
              HasSubstr("buffers in "));
  // Boost would never return from this one.
  EXPECT_THAT(
      refusal({"--config", put("c.ini", "steps = 3\n\na%invalid_line%b # x\n").string()}, 3),
      HasSubstr("c.ini: line 3 is 'a%invalid_line%b', but it must be KEY = VALUE"));
  EXPECT_THAT(refusal({"--strategy", "ddp,fsdp2"}, 3), HasSubstr("--strategy is 'ddp,fsdp2'"));
  EXPECT_THAT(refusal({"--ckpt-layers", "99"}, 3), HasSubstr("--ckpt-layers is 99, but"));
  EXPECT_THAT(refusal({"--resume", at("nowhere")}, 3), HasSubstr("nowhere: no such folder"));
  const ProgramResult no_data = run({SHARDWRIGHT_BINARY, "run", "--model", at("model.json")});
  EXPECT_EQ(no_data.exit_code, 2);
  EXPECT_THAT(no_data.err, HasSubstr("--data is missing"));
}

TEST_F(RunTest, DamagedRunFilesDoNoHarm) {
  const std::string whole = "model = a\nsteps = 7  # few\nlr = 1e-3\n[x]\nclip = 1\n";
  const kernels::RandomStream random{3, kernels::RandomSite::kShuffle, 0};
  std::uint64_t draws = 0;
  const auto below = [&](std::size_t bound) { return random.below(draws++, bound); };
  for (int round = 0; round < 300; ++round) {
    std::string damaged = whole;
    for (std::size_t changes = below(4) + 1; changes > 0; --changes) {
      const std::size_t place = below(damaged.size());
      damaged[place] = static_cast<char>(below(256));
    }
    const std::string path = put("x.ini", damaged).string();
    RunSettings settings;
    settings.set_flag(kConfig, path);
    try {
      settings.resolve({});
      settings.count("steps", {});
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path));
    }
  }
}

TEST_F(RunTest, ComparesAPredictedStepWithAMeasuredOne) {
  ASSERT_EQ(run(small("out", {"--trace", at("out/trace.json")})).exit_code, 0);
  ASSERT_EQ(run({SHARDWRIGHT_BINARY, "predict", "--plan", at("out/plan.json"), "--cluster",
                 "l4-pcie8", "--trace", at("predicted.json")})
                .exit_code,
            0);
  const Words compare{
      SHARDWRIGHT_BINARY, "compare", at("predicted.json"), at("out/trace.json"), "--out",
      at("both.json"),    "--json"};
  const ProgramResult result = run(compare);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document["schema"], "shardwright.comparison/1.2");
  EXPECT_EQ(document["measured_ranks"], 2);
  EXPECT_EQ(document["only_predicted"], 0);
  EXPECT_GT(document["classes"].size(), 15u);
  double measured = 0;
  for (const json& entry : document["classes"]) measured += entry["measured_s"].get<double>();
  EXPECT_GT(measured, 0);
  Words strict = compare;
  strict.insert(strict.end(), {"--tolerance", "0.01"});
  EXPECT_EQ(run(strict).exit_code, 6);
  const json both = json::parse(get(folder_ / "both.json"));
  std::set<std::string> names;
  for (const json& event : not_empty(both["traceEvents"])) {
    if (event["name"] == "process_name") names.insert(event["args"]["name"]);
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"predicted, yafsdp", "measured, rank 0", "measured, rank 1"}));
  const ProgramResult wrong =
      run({SHARDWRIGHT_BINARY, "compare", at("model.json"), at("out/trace.json")});
  EXPECT_EQ(wrong.exit_code, 3);
  EXPECT_THAT(wrong.err, HasSubstr("traceEvents"));
}

}  // namespace
}  // namespace shardwright::cli
