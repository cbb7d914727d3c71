// SPDX-License-Identifier: Apache-2.0
// Guards `shardwright run` as a user meets it: files, settings, what is trained and compared.

#include <set>

#include "cli/machine/machine.h"
#include "cli/run/settings.h"
#include "kernels/random.h"
#include "tests/cli/run_fixture.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;
using namespace testing;

using RunTest = RunFixture;

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

TEST_F(RunTest, RefusesATraceInAFolderThatIsNotThereBeforeItWrites) {
  const ProgramResult result = run(small("out", {"--trace", at("nowhere/step.json")}));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr(at("nowhere/step.json")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  // The run's own folder is made by the run.
  EXPECT_EQ(run(small("out", {"--steps", "3", "--trace", at("out/step.json")})).exit_code, 0);
  EXPECT_THAT(run(small("out", {"--trace", at("out/run.ini"), "--overwrite", "yes"})).err,
              HasSubstr("but it must be no other file of the run"));
}

TEST_F(RunTest, KeepsNoCheckpointWhereOnlyTimeMatters) {
  const json summary =
      document_of(run(small("out", {"--save", "none", "--save-every", "3", "--json"})));
  EXPECT_EQ(summary["last_step"], 8);
  EXPECT_EQ(summary["checkpoint"], nullptr);
  EXPECT_EQ(summary["model"], nullptr);
  EXPECT_TRUE(fs::is_empty(folder_ / "out" / "checkpoints"));
  EXPECT_FALSE(fs::exists(folder_ / "out" / "model"));
}

// Master weights, moments and sums of gradients in bf16: the memory that is planned, a loss that
// falls by stochastic rounding, and a checkpoint that is resumed to the bit.
TEST_F(RunTest, TrainsWithMasterWeightsInBf16) {
  Words flags{"--param-dtype",  "bf16", "--reduce-dtype", "bf16", "--master-dtype", "bf16",
              "--moment-dtype", "bf16", "--ranks",        "1",    "--grad-accum",   "4",
              "--steps",        "12",   "--save-every",   "6",    "--json"};
  const json summary = document_of(run(small("out", flags)));
  EXPECT_EQ(summary["plan"]["master_dtype"], "bf16");
  EXPECT_EQ(summary["peak_memory_bytes"], summary["planned_memory_bytes"]);
  EXPECT_LT(summary["loss"], 5.0);  // 5.55 at the begin
  EXPECT_THAT(get(folder_ / "out" / "run.ini"), HasSubstr("master-dtype = bf16"));
  const ProgramResult wide =
      run(small("wide", {"--param-dtype", "bf16", "--ranks", "1", "--grad-accum", "4", "--json"}));
  ASSERT_EQ(wide.exit_code, 0) << wide.err;
  EXPECT_LT(summary["planned_memory_bytes"], json::parse(wide.out)["planned_memory_bytes"]);
  fs::remove_all(folder_ / "out" / "checkpoints" / "step-000012");
  const std::string model = model_of("out");
  flags.insert(flags.end(), {"--resume", "auto", "--overwrite", "yes"});
  const ProgramResult again = run(small("out", flags));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(model_of("out"), model);
}

// Layers in fp8, the rest in bf16: the memory that is planned, another loss than in bf16, and the
// same model on two ranks, on one, and from a checkpoint.
TEST_F(RunTest, TrainsWithLayersInFp8) {
  const Words flags{"--precision", "fp8", "--fp8-recipe", "rowwise", "--json"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return more;
  };
  const ProgramResult result = run(small("two", with({"--save-every", "4"})));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json summary = json::parse(result.out);
  EXPECT_EQ(summary["plan"]["precision"], "fp8");
  EXPECT_EQ(summary["plan"]["fp8_recipe"], "rowwise");
  EXPECT_EQ(summary["plan"]["param_dtype"], "bf16");
  EXPECT_EQ(summary["peak_memory_bytes"], summary["planned_memory_bytes"]);
  EXPECT_THAT(result.err, HasSubstr("bf16 compute, layers multiply in fp8 (rowwise)"));
  const ProgramResult bf16 = run(small("bf16", {"--param-dtype", "bf16", "--json"}));
  ASSERT_EQ(bf16.exit_code, 0) << bf16.err;
  const double loss = summary["loss"], wide = json::parse(bf16.out)["loss"];
  EXPECT_NE(loss, wide);
  EXPECT_NEAR(loss, wide, 0.02 * wide);

  ASSERT_EQ(run(small("one", with({"--ranks", "1", "--grad-accum", "2"}))).exit_code, 0);
  EXPECT_EQ(model_of("one"), model_of("two"));
  const std::string whole = model_of("two");
  fs::remove_all(folder_ / "two" / "checkpoints" / "step-000008");
  const ProgramResult again = run({SHARDWRIGHT_BINARY, "run", "--config", at("two/run.ini"),
                                   "--resume", "auto", "--overwrite", "yes"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(model_of("two"), whole);
}

TEST_F(RunTest, BoundsWhatCollectivesTakeByANumberOrNotAtAll) {
  expect_end(run(small("out", {"--collective-sms", "0"})), 3, {"--collective-sms is 0"});
  EXPECT_EQ(run(small("out", {"--collective-sms", "16", "--steps", "1"})).exit_code, 0);
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
  // What Open MPI's modules keep has no name any more when leaks are looked for: they are unloaded.
  const ProgramResult mpi =
      run(words, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                  "OMPI_MCA_rmaps_base_oversubscribe=1",
                  "OMPI_MCA_btl_vader_single_copy_mechanism=none", "LSAN_OPTIONS=detect_leaks=0"});
  ASSERT_EQ(mpi.exit_code, 0) << mpi.err;
  EXPECT_EQ(model_of("mpi"), model_of("two"));
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
  const std::filesystem::path data = put("\x1b]0;owned\a.txt", get(folder_ / "text.txt"));
  const ProgramResult trained =
      run(small("\x1b[31mout", {"--data", data.string(), "--trace", at("\x1b[31mtrace.json")}));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("]0;owned .txt"));
  EXPECT_EQ(trained.err.find_first_of("\x1b\x07"), std::string::npos) << trained.err;
}

TEST_F(RunTest, ReadsPairsForFineTuning) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += fmt::format("{{\"prompt\": \"{} + 1 = \", \"response\": \"{}.\"}}\n", i, i + 1);
  }
  expect_end(run(small("out", {"--data", put("pairs.jsonl", lines).string(), "--hold-out", "0.2"})),
             0, {"48 documents of"});
}

TEST_F(RunTest, PredictsWhatPredictSaysOfItsPlan) {
  for (const Words& more : {Words{}, Words{"--cluster", "l4-pcie8"}}) {
    Words words = joined(more, {"--json", "--steps", "2", "--overwrite", "yes"});
    const ProgramResult result = run(small("out", words));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const ProgramResult predicted =
        run({SHARDWRIGHT_BINARY, "predict", "--plan", at("out/plan.json"), "--json"});
    ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
    const double here = json::parse(result.out).at("predicted_step_time_s");
    EXPECT_NEAR(json::parse(predicted.out).at("iteration_time_s").get<double>(), here, 1e-9 * here);
  }
}

TEST_F(RunTest, SaysWhatAResumedRunDoesOtherwise) {
  ASSERT_EQ(run(small("out")).exit_code, 0);
  const ProgramResult same = run(small("out", {"--resume", "auto", "--steps", "8"}));
  EXPECT_THAT(same.err, Not(HasSubstr("from here on")));
  const ProgramResult other =
      run(small("out", {"--resume", "auto", "--steps", "10", "--ranks", "1", "--lr", "2e-2"}));
  EXPECT_EQ(other.exit_code, 0) << other.err;
  expect_says(other.err, {"a step has 2 sequences of 32 tokens from here on; up to the "
                          "checkpoint it had 4 of 32",
                          "spans 10 steps; before it spanned 8",
                          "--lr is 2e-2; in the run that is resumed it was 1e-2"});
  EXPECT_THAT(other.err, Not(HasSubstr("micro-batches")));
  const ProgramResult halves = run(small(
      "out", {"--resume", "auto", "--steps", "11", "--micro-batch", "1", "--grad-accum", "2"}));
  expect_says(halves.err, {"micro-batches have 1 sequence from here on, up to the checkpoint they "
                           "had 2: results are equal but for rounding"});
  expect_error(run(small("out", {"--resume", "auto", "--seq-len", "16", "--hold-out", "0.1"})), 3,
               "made with --seq-len 32 (now 16), --hold-out 0.05 (now 0.1), which divides the data "
               "into other sequences");
}

// More than a board carries, and no multiple of a tray's.
TEST_F(RunTest, TheHostHasAsManyRanksAsAreAskedFor) {
  const ProgramResult result = run(small("out", {"--ranks", "17", "--steps", "1"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("no step time is predicted")));
  EXPECT_EQ(run({SHARDWRIGHT_BINARY, "predict", "--plan", at("out/plan.json")}).exit_code, 0);
}

TEST_F(RunTest, HonoursTheInitialDeviationAndRefusesDropout) {
  const auto with = [&](const std::string& name, const json& changes) {
    json config = json::parse(get(folder_ / "model.json"));
    config.merge_patch(changes);
    put(name, config.dump());
    return small("out-" + name, {"--model", at(name), "--steps", "1", "--json"});
  };
  const ProgramResult narrow = run(with("narrow.json", {{"initializer_range", 0.02}}));
  const ProgramResult wide = run(with("wide.json", {{"initializer_range", 0.5}}));
  ASSERT_EQ(narrow.exit_code, 0) << narrow.err;
  ASSERT_EQ(wide.exit_code, 0) << wide.err;
  EXPECT_GT(json::parse(wide.out).at("loss").get<double>(),
            json::parse(narrow.out).at("loss").get<double>() + 0.1);
  const ProgramResult dropout = run(with("dropout.json", {{"attention_dropout", 0.5}}));
  EXPECT_EQ(dropout.exit_code, 3);
  EXPECT_THAT(dropout.err, HasSubstr("attention_dropout is 0.5"));
  Words without = joined(with("without.json", {{"attention_dropout", 0.5}}), {"--dropout", "none"});
  const ProgramResult dropped = run(without);
  EXPECT_EQ(dropped.exit_code, 0) << dropped.err;
  EXPECT_THAT(get(folder_ / "out-without.json/run.ini"), HasSubstr("dropout = none"));
  expect_end(run(with("ignored.json", {{"mup_width_multiplier", 2}})), 0,
             {"keys that are ignored: mup_width_multiplier"});
}

TEST_F(RunTest, CopiesTheTokenizerBesideTheModel) {
  fs::create_directories(folder_ / "hf");
  put("hf/config.json", get(folder_ / "model.json"));
  put("hf/tokenizer.json", "{}");
  put("hf/generation_config.json", R"({"top_p": 0.9})");
  put("hf/notes.txt", "not part of a model");
  const ProgramResult result = run(small("out", {"--model", at("hf"), "--steps", "1"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(get(folder_ / "out/model/tokenizer.json"), "{}");
  EXPECT_EQ(get(folder_ / "out/model/generation_config.json"), R"({"top_p": 0.9})");
  EXPECT_FALSE(fs::exists(folder_ / "out/model/notes.txt"));
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

TEST_F(RunTest, ReadsTokenFilesOfTheConverter) {
  const fs::path python = program_path("python3");
  if (python.empty()) GTEST_SKIP() << "no python3";
  const std::string scripts = SHARDWRIGHT_SCRIPTS;
  const ProgramResult made = run({python.string(), scripts + "/../cli/python/shardwright/tokens.py",
                                  at("text.tok"), "--tokenizer", "bytes", at("text.txt")});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  ASSERT_EQ(run(small("text")).exit_code, 0);
  const ProgramResult tokens = run(small("tokens", {"--data", at("text.tok")}));
  ASSERT_EQ(tokens.exit_code, 0) << tokens.err;
  EXPECT_THAT(tokens.err, HasSubstr("tokens of a vocabulary of 256"));
  EXPECT_EQ(model_of("tokens"), model_of("text"));
  expect_says(output_of(run({python.string(), scripts + "/loss_curve", at("text/metrics.jsonl")})),
              {"E"});
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
    Words lines;
    std::istringstream text(ini);
    for (std::string line; std::getline(text, line);)
      lines.push_back(line.substr(0, line.find('#')));
    return lines;
  };
  ASSERT_GT(std::ssize(values(flags.out)),
            std::count_if(setting_table().begin(), setting_table().end(),
                          [](const SettingInfo& info) { return info.shown(); }));
  EXPECT_EQ(values(again.out), values(flags.out));

  // A plan gives what nobody else does.
  ASSERT_EQ(run(small("out", {"--buffers", "3", "--prefetch", "2"})).exit_code, 0);
  const ProgramResult planned =
      run({SHARDWRIGHT_BINARY, "run", "--plan", at("out/plan.json"), "--data", at("text.txt"),
           "--seq-len", "16", "--show-settings"});
  EXPECT_THAT(planned.out, HasSubstr("\nprefetch = 2  # " + at("out/plan.json")));
  EXPECT_THAT(planned.out, HasSubstr("\nseq-len = 16  # flag"));
  const ProgramResult checkpoint = run(
      {SHARDWRIGHT_BINARY, "inspect", "checkpoint", at("out/checkpoints/step-000008"), "--json"});
  EXPECT_EQ(json::parse(checkpoint.out)["step"], 8);
}

TEST_F(RunTest, OtherProcessesThanTheRunFileSaysKeepTheSequencesOfAStep) {
  ASSERT_EQ(run(small("out", {"--grad-accum", "2", "--steps", "1"})).exit_code, 0);
  const auto shown = [&](int processes, const Words& more = {}) {
    Words words = joined({SHARDWRIGHT_BINARY, "run", "--config", at("out/run.ini"),
                          "--communicator", "mpi", "--show-settings"},
                         more);
    return run(words,
               {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=" + std::to_string(processes)});
  };
  const ProgramResult more = shown(4);
  if (more.err.find("no mpi executor") != std::string::npos) GTEST_SKIP() << "no MPI";
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_THAT(more.out, HasSubstr("\nranks = 4 "));
  EXPECT_THAT(more.out, HasSubstr("\ngrad-accum = 1 "));
  expect_says(output_of(shown(3, {"--grad-accum", "5"})), {"\ngrad-accum = 5 "});
  expect_end(shown(3), 3, {"started 3 processes, but a step has 4 micro-batches"});
  EXPECT_EQ(shown(4, {"--ranks", "2"}).exit_code, 3);
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
  expect_end(run({SHARDWRIGHT_BINARY, "run", "--model", at("model.json")}), 2,
             {"--data is missing"});
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

// The plan keeps the cluster of its two ranks, which are threads of one machine.
TEST_F(RunTest, APlanOfTheHostGoesOnWithAnyNumberOfRanks) {
  ASSERT_EQ(run(small("out", {"--steps", "2"})).exit_code, 0);
  for (const char* ranks : {"3", "1"}) {
    const ProgramResult more =
        run({SHARDWRIGHT_BINARY, "run", "--config", at("out/run.ini"), "--ranks", ranks, "--resume",
             "auto", "--steps", ranks[0] == '3' ? "4" : "5"});
    EXPECT_EQ(more.exit_code, 0) << more.err;
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
  const json document = document_of(run(compare));
  EXPECT_EQ(document["schema"], "shardwright.comparison/1.4");
  EXPECT_EQ(document["measured_ranks"], 2);
  EXPECT_EQ(document["only_predicted"], 0);
  EXPECT_GT(document["classes"].size(), 15u);
  double measured = 0;
  for (const json& entry : document["classes"]) measured += entry["measured_s"].get<double>();
  EXPECT_GT(measured, 0);
  Words strict = joined(compare, {"--tolerance", "0.000001"});
  EXPECT_EQ(run(strict).exit_code, 6);
  const json both = json::parse(get(folder_ / "both.json"));
  std::set<std::string> names;
  for (const json& event : not_empty(both["traceEvents"])) {
    if (event["name"] == "process_name") names.insert(event["args"]["name"]);
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"predicted, yafsdp", "measured, rank 0", "measured, rank 1"}));
  expect_end(run({SHARDWRIGHT_BINARY, "compare", at("model.json"), at("out/trace.json")}), 3,
             {"traceEvents"});
}

}  // namespace
}  // namespace shardwright::cli
