// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/read_file.h"
#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

ProgramResult kit(const std::string& folder, const Words& flags) {
  return run_program(joined({SHARDWRIGHT_BINARY, "kit", "--out", folder}, flags), {"LC_ALL=C"});
}

const Words kJob{"--model", "llama-3.1-8b",  "--cluster",     "dgx-h100",   "--gpus",
                 "16",      "--seq-len",     "4096",          "--strategy", "fsdp2",
                 "--stack", "torch-compile", "--ckpt-layers", "all"};

const std::string& titan_kit() {
  static const std::string folder = [] {
    const std::string made = temp_path("kit");
    const ProgramResult result = kit(made, kJob);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return made;
  }();
  return folder;
}

TEST(Kit, HoldsTheSameJobInEveryFile) {
  const fs::path folder = titan_kit();
  for (const char* name : {"README.md", "shardwright_plan.py", "plan.json", "env.sh", "job.sbatch",
                           "skypilot.yaml", "jobset.yaml", "expected.json", "watch.py"})
    EXPECT_TRUE(fs::exists(folder / name)) << name;
  EXPECT_EQ(::access((folder / "watch.py").c_str(), X_OK), 0);
  const std::string launch = "--nnodes=2 --nproc_per_node=8";
  for (const char* name : {"job.sbatch", "skypilot.yaml", "jobset.yaml"}) {
    EXPECT_THAT(get(folder / name), HasSubstr(launch)) << name;
    EXPECT_THAT(get(folder / name), HasSubstr("-m torchtitan.train --module shardwright_plan"))
        << name;
  }
  EXPECT_THAT(get(folder / "skypilot.yaml"), HasSubstr("accelerators: H100:8"));
  EXPECT_THAT(get(folder / "jobset.yaml"), HasSubstr("nvidia.com/gpu: 8"));
  EXPECT_THAT(get(folder / "env.sh"), HasSubstr("expandable_segments:True"));
  for (const char* script : {"job.sbatch", "env.sh"}) {
    const ProgramResult checked = run_program({"/bin/bash", "-n", (folder / script).string()});
    EXPECT_EQ(checked.exit_code, 0) << script << checked.err;
  }
  // What is expected is what predict says of the plan in the kit.
  const ProgramResult predicted = run_program(
      {SHARDWRIGHT_BINARY, "predict", "--plan", (folder / "plan.json").string(), "--json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  const json expected = json::parse(get(folder / "expected.json"));
  EXPECT_EQ(expected.at("step_time_s"), json::parse(predicted.out).at("iteration_time_s"));
  EXPECT_DOUBLE_EQ(expected.at("tokens_per_step").get<double>(), 16 * 4096);
}

TEST(Kit, ANameOfAStrangersFileStaysAName) {
  const fs::path model = temp_folder() / "\x1b]0;owned\a.json";
  write_file_atomically(model,
                        read_file(profiles::data_dir() / "models" / "llama-3-8b.json", 1 << 20));
  const fs::path folder = temp_folder() / "hostile";
  Words job = kJob;
  job[1] = model.string();
  ASSERT_EQ(kit(folder.string(), job).exit_code, 0);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string text = get(entry.path());
    EXPECT_EQ(text.find('\x1b'), text.npos) << entry.path();
  }
}

TEST(Kit, FollowsNoLinkInItsFolder) {
  const fs::path folder = temp_folder() / "linked", victim = temp_folder() / "victim";
  fs::create_directories(folder);
  write_file_atomically(victim, "precious");
  fs::create_symlink(victim, folder / "env.sh");
  expect_end(kit(folder.string(), kJob), 3, {"env.sh: is a link"});
  EXPECT_EQ(get(victim), "precious");
}

TEST(Kit, ModulesAreLoadedFromItsOwnFolderOnly) {
  const std::string env = (fs::path(titan_kit()) / "env.sh").string();
  const ProgramResult elsewhere = run_program(
      {"/bin/bash", "-c", fmt::format("cd / && source '{}' && echo \"$PYTHONPATH\"", env)});
  EXPECT_EQ(elsewhere.out, titan_kit() + "\n");
  EXPECT_THAT(get(fs::path(titan_kit()) / "jobset.yaml"),
              HasSubstr("name: PYTHONPATH\n                      value: \"/kit\""));
}

TEST(Kit, LibrariesStartTheUsersScript) {
  for (const auto& [strategy, file, starts] :
       {std::tuple{"zero3", "deepspeed.json", "--deepspeed_config deepspeed.json"},
        {"fsdp1", "accelerate.yaml", "accelerate launch --config_file accelerate.yaml"},
        {"yafsdp", "yafsdp_settings.py", "\"$TRAIN_SCRIPT\""}}) {
    const fs::path folder = temp_folder() / strategy;
    Words job = kJob;
    *(std::find(job.begin(), job.end(), "fsdp2")) = strategy;
    *(std::find(job.begin(), job.end(), "torch-compile")) = "hf-eager";
    const ProgramResult result = kit(folder.string(), job);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(fs::exists(folder / file));
    EXPECT_THAT(get(folder / "job.sbatch"), HasSubstr(starts));
    EXPECT_THAT(get(folder / "job.sbatch"), HasSubstr("TRAIN_SCRIPT:?"));
  }
}

/// A log with `steps` lines of a format, whose steps take `seconds(i)`.
template <typename Line>
std::string log_of(int steps, const Line& line) {
  std::string text = "started\n";
  for (int i = 1; i <= steps; ++i) text += line(i);
  return text;
}

json watched(const std::string& log, int exit_code) {
  const std::string path = temp_path("job.log");
  std::ofstream(path) << log;
  const ProgramResult result = run_program(
      {"/usr/bin/env", "python3", titan_kit() + "/watch.py", path, "--json"}, {"LC_ALL=C.UTF-8"});
  EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
  return json::parse(result.out, nullptr, false);
}

TEST(Kit, ModelParallelPlansStartMegatron) {
  const fs::path folder = temp_folder() / "megatron";
  const ProgramResult result =
      kit(folder.string(),
          {"--model", "llama-3.1-70b", "--cluster", "dgx-h100", "--gpus", "64", "--seq-len", "4096",
           "--tp", "8", "--pp", "2", "--global-batch", "64", "--stack", "megatron-core"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(get(folder / "megatron_args.sh"), HasSubstr("--tensor-model-parallel-size 8"));
  for (const char* name : {"job.sbatch", "skypilot.yaml", "jobset.yaml"})
    EXPECT_THAT(get(folder / name), HasSubstr("source ./megatron_args.sh && torchrun")) << name;
  const ProgramResult checked = run_program({"/bin/bash", "-n", (folder / "job.sbatch").string()});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
}

// One card and adapters: the plan that tune found becomes a job of a trainer that knows it.
TEST(Kit, AdaptersStartATrainerThatHasThem) {
  Words job{"--model",       "llama-3.1-8b",
            "--cluster",     "rtx-4090-pcie8",
            "--gpus",        "1",
            "--task",        "qlora",
            "--strategy",    "single",
            "--seq-len",     "2048",
            "--ckpt-layers", "all",
            "--recompute",   "full",
            "--micro-batch", "2",
            "--grad-accum",  "8"};
  const fs::path usual = temp_folder() / "qlora";
  const ProgramResult result = kit(usual.string(), job);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(get(usual / "axolotl.yaml"), HasSubstr("load_in_4bit: true"));
  EXPECT_THAT(get(usual / "README.md"), HasSubstr("data set and the learning rate are yours"));
  const fs::path other = temp_folder() / "qlora-factory";
  job.insert(job.end(), {"--format", "llama-factory"});
  ASSERT_EQ(kit(other.string(), job).exit_code, 0);
  for (const auto& [folder, starts] :
       {std::pair{usual, "-m axolotl.cli.train axolotl.yaml --output_dir=\"$CHECKPOINT_DIR\""},
        {other, "-m llamafactory.launcher llama_factory.yaml output_dir=\"$CHECKPOINT_DIR\""}}) {
    for (const char* name : {"job.sbatch", "skypilot.yaml", "jobset.yaml"}) {
      EXPECT_THAT(get(folder / name), HasSubstr(starts)) << name;
      EXPECT_THAT(get(folder / name), HasSubstr("$CHECKPOINT_STEPS")) << name;
    }
    const ProgramResult checked =
        run_program({"/bin/bash", "-n", (folder / "job.sbatch").string()});
    EXPECT_EQ(checked.exit_code, 0) << checked.err;
  }
}

// A run of weeks meets failures: it saves where all nodes can read, starts again, and reaches the
// network cards; and the settings do not contradict each other.
TEST(Kit, SurvivesANight) {
  const fs::path folder = titan_kit();
  const std::string env = get(folder / "env.sh");
  EXPECT_THAT(env, HasSubstr("# shellcheck shell=bash"));
  const auto at = env.find("CHECKPOINT_STEPS=");
  ASSERT_NE(at, std::string::npos);
  const int steps = std::stoi(env.substr(at + 17));
  const double step_s = json::parse(get(folder / "expected.json")).at("step_time_s");
  EXPECT_GE(steps * step_s, 590);
  EXPECT_LE(steps * step_s, 3700);
  for (const char* name : {"job.sbatch", "skypilot.yaml", "jobset.yaml"}) {
    EXPECT_THAT(get(folder / name), HasSubstr("--checkpoint.enable")) << name;
    EXPECT_THAT(get(folder / name), HasSubstr("$CHECKPOINT_DIR")) << name;
  }
  EXPECT_THAT(get(folder / "job.sbatch"), HasSubstr("scontrol requeue"));
  EXPECT_THAT(get(folder / "job.sbatch"), HasSubstr("#SBATCH --requeue"));
  EXPECT_THAT(get(folder / "skypilot.yaml"), HasSubstr("max_restarts_on_errors: 20"));
  const std::string jobset = get(folder / "jobset.yaml");
  expect_says(jobset, {"maxRestarts: 20", "claimName: train-llama-3-1-8b-checkpoints", "IPC_LOCK",
                       "hostNetwork: true"});

  const fs::path chunked = temp_folder() / "chunked";
  Words job = joined(kJob, {"--loss-chunks", "8"});
  ASSERT_EQ(kit(chunked.string(), job).exit_code, 0);
  const std::string settings = get(chunked / "shardwright_plan.py");
  EXPECT_THAT(settings, HasSubstr("in chunks, as the plan does"));
  EXPECT_THAT(settings, Not(HasSubstr("all logits exist at once")));
}

struct Expected {
  double step_s, reserved_gib;
};
Expected expected() {
  const json document = json::parse(get(fs::path(titan_kit()) / "expected.json"));
  return {document.at("step_time_s"), document.at("reserved_gib")};
}

TEST(Watch, ReadsTheLogsOfFourTrainersAndSeesAJobThatIsAsPredicted) {
  const auto [step, reserved] = expected();
  // A step that the first compilation makes long is not counted.
  const auto seconds = [step = step](int i) {
    return i == 1 ? 50 * step : step * (1 + 0.002 * (i % 5));
  };
  const auto gib = reserved;
  for (const auto& [name, log] : std::vector<std::pair<std::string, std::string>>{
           {"torchtitan",
            log_of(20,
                   [&](int i) {
                     return fmt::format(
                         "\x1b[31mstep: {:2}  \x1b[32mloss:  7.12345  grad_norm:  1.2  "
                         "\x1b[38;2;54;234;195mmemory: {:5.2f}GiB(50.0%)  \x1b[34mtps: "
                         "{}  tflops: 1,234.56  mfu: 40%\x1b[0m\n",
                         i, gib, std::lround(4096 / seconds(i)));
                   })},
           {"Megatron",
            log_of(20,
                   [&](int i) {
                     return fmt::format(
                         " [2026-11-22 10:00:00] iteration {:8}/     100 | consumed "
                         "samples: 16 | elapsed time per iteration (ms): {:.1f} | "
                         "learning rate: 1.0E-04 |\n",
                         i, seconds(i) * 1e3);
                   }) +
                fmt::format("[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | "
                            "max allocated: 2.0 | reserved: 3.0 | max reserved: {:.1f}\n",
                            gib * 1024)},
           {"Hugging Face Trainer", log_of(20,
                                           [&](int i) {
                                             return fmt::format(
                                                 "\r  {}%|#  | {}/100 [00:10<01:00, {:.3f}s/it]", i,
                                                 i, seconds(i));
                                           })},
           {"metrics.jsonl", log_of(20, [&](int i) {
              return fmt::format("{{\"step\": {}, \"loss\": 2.0, \"step_time_s\": {}}}\n", i,
                                 seconds(i));
            })}}) {
    const json answer = watched(log, 0);
    EXPECT_EQ(answer.at("format"), name);
    EXPECT_EQ(answer.at("steps"), 20) << name;
    EXPECT_EQ(answer.at("time").at("verdict"), "as predicted") << name << answer.dump();
    EXPECT_THAT(answer.at("memory").at("verdict"), Not("off")) << name;
  }
}

TEST(Watch, SaysWithinEightStepsThatAJobIsOffAndByWhat) {
  const auto [step, reserved] = expected();
  const json slow = watched(log_of(30,
                                   [&, step = step](int i) {
                                     return fmt::format("{{\"step\": {}, \"step_time_s\": {}}}\n",
                                                        i, 2 * step * (1 + 0.01 * (i % 3)));
                                   }),
                            6);
  expect_has(slow.at("time"), R"({"verdict": "off", "steps": 8, "since_step": 11})"_json);
  EXPECT_NEAR(slow.at("time").at("step_time_s").get<double>(), 2.02 * step, 0.05 * step);
  // One slow step in ten is no reason.
  const json jitter = watched(log_of(30,
                                     [&, step = step](int i) {
                                       return fmt::format("{{\"step\": {}, \"step_time_s\": {}}}\n",
                                                          i, i % 10 == 0 ? 5 * step : step);
                                     }),
                              0);
  EXPECT_EQ(jitter.at("time").at("verdict"), "as predicted");
  const json full = watched("x\ntorch.OutOfMemoryError: CUDA out of memory. Tried ..\n", 6);
  EXPECT_EQ(full.at("memory").at("verdict"), "out of memory");
  const std::string more = fmt::format(
      "step: 1  loss: 1.0  grad_norm: 1.0  memory: {:.2f}GiB(99%)  tps: 100  tflops: 1  mfu: 1%\n",
      reserved * 1.5);
  EXPECT_EQ(watched(more, 6).at("memory").at("verdict"), "off");
}

TEST(Watch, ADivergedJobIsOffAtOnceWhateverItsSpeed) {
  const double step = expected().step_s;
  const auto rate = [&](int) { return std::lround(4096 / step); };
  const std::string titan = log_of(29, [&](int i) {
    return fmt::format("step: {}  loss:      {}  grad_norm:  {}  memory: 1.00GiB(1%)  tps: {}\n", i,
                       i < 12 ? "2.1" : "nan", i < 12 ? "1.0" : "nan", rate(i));
  });
  const json answer = watched(titan, 6);
  EXPECT_EQ(answer.at("loss").at("verdict"), "not a number");
  EXPECT_EQ(answer.at("loss").at("since_step"), 12);
  for (const char* line :
       {" iteration       7/     100 | elapsed time per iteration (ms): 1.0 | lm loss: NAN |\n",
        "{'loss': nan, 'grad_norm': 0.1}\n", "{\"step\": 3, \"loss\": NaN, \"step_time_s\": 1}\n",
        " iteration 7/ 100 | number of skipped iterations: 0 | number of nan iterations: 2 |\n"}) {
    EXPECT_EQ(watched(line, 6).at("loss").at("verdict"), "not a number") << line;
  }
  const std::string fine = log_of(20, [&](int i) {
    return fmt::format("{{\"step\": {}, \"loss\": 2.0, \"grad_norm\": 1.0, \"step_time_s\": {}}}\n",
                       i, step);
  });
  EXPECT_EQ(watched(fine, 0).at("loss").at("verdict"), "a number");
}

TEST(Watch, MemoryThatIsOffSaysWhichWayAndByHowMuch) {
  const auto [step, reserved] = expected();
  const std::string path = temp_path("more.log");
  std::ofstream(path) << fmt::format(
      "step: 1  loss: 1.0  grad_norm: 1.0  memory: {:.2f}GiB(99%)  tps: 100  tflops: 1  mfu: 1%\n",
      reserved * 1.5);
  const ProgramResult more =
      run_program({"/usr/bin/env", "python3", titan_kit() + "/watch.py", path}, {"LC_ALL=C.UTF-8"});
  EXPECT_THAT(more.out, HasSubstr("50 % more"));
  std::ofstream(path) << "torch.OutOfMemoryError: CUDA out of memory. Tried ..\n";
  const ProgramResult none =
      run_program({"/usr/bin/env", "python3", titan_kit() + "/watch.py", path}, {"LC_ALL=C.UTF-8"});
  EXPECT_THAT(none.out, HasSubstr("No step was finished."));
  EXPECT_THAT(none.out, Not(HasSubstr("None")));
}

TEST(Watch, BadInputIsOneSentence) {
  const auto refused = [](const Words& more, const std::string& words) {
    Words arguments = joined({"/usr/bin/env", "python3", titan_kit() + "/watch.py"}, more);
    const ProgramResult result = run_program(arguments, {"LC_ALL=C.UTF-8"});
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  const std::string empty = temp_path("empty.log");
  std::ofstream(empty) << "nothing\n{\"step\": \"a\"}\n{broken\n";
  refused({empty}, "holds no step");
  refused({"nowhere.log"}, "nowhere.log");
  refused({empty, "--expected", empty}, "empty.log");
  const auto refused_expected = [&](const std::string& key, const json& value) {
    json changed = json::parse(get(fs::path(titan_kit()) / "expected.json"));
    changed[key] = value;
    const std::string file = temp_path("changed.json");
    std::ofstream(file) << changed;
    refused({empty, "--expected", file}, key);
  };
  refused_expected("gpus", "eight");
  refused_expected("step_time_interval_s", 1);
  refused_expected("reserved_interval_gib", {1});
  refused_expected("warmup_steps", nullptr);
  refused_expected("step_time_s", 0);
}

TEST(Watch, SurvivesLinesOfStrangers) {
  // Each would be taken for a step, take the patterns without end, or end Python's reader.
  std::string log =
      "{\"step\": 1, \"step_time_s\": 1" + std::string(400, '0') + "}\n" +
      "{\"step\": 2, \"step_time_s\": Infinity}\n{\"a\": " + std::string(100'000, '[') +
      "\nstep: " + std::string(5000, '9') + " loss: memory: 1GiB tps: 1\n";
  for (int i = 0; i < 20'000; ++i) log += "step: 1 loss: memory: 1GiB ";
  const json answer =
      watched(log_of(20,
                     [step = expected().step_s](int i) {
                       return fmt::format("{{\"step\": {}, \"step_time_s\": {}}}\n", i, step);
                     }) +
                  log,
              0);
  EXPECT_EQ(answer.at("steps"), 20);
}

TEST(Kit, BadInputIsOneSentence) {
  const auto refused = [](const std::string& folder, const Words& flags, int exit_code,
                          const std::string& words) {
    const ProgramResult result = kit(folder, flags);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(words));
  };
  const std::string folder = temp_path("none");
  refused(folder, {"--plan", "nowhere.json"}, 3, "nowhere.json");
  Words two = kJob;
  *(std::find(two.begin(), two.end(), "fsdp2")) = "fsdp2,ddp";
  refused(folder, two, 3, "takes one");
  Words unknown = joined(kJob, {"--format", "accelerat"});
  refused(folder, unknown, 3, "did you mean 'accelerate'");
  refused("/dev/null/kit", kJob, 3, "/dev/null/kit");
  EXPECT_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace shardwright::cli
