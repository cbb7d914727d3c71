// SPDX-License-Identifier: Apache-2.0
// Answers in the framework that somebody has, and for who fine-tunes on a card or two: a plan that
// the framework can be told whole, and a way out that fits.

#include "tests/cli/program.h"

namespace shardwright::cli {
namespace {

ProgramResult run(Words flags, const Words& more = {}) {
  flags.insert(flags.begin(), SHARDWRIGHT_BINARY);
  flags.insert(flags.end(), more.begin(), more.end());
  return run_program(flags);
}

json document(const Words& flags, const Words& more = {}, int exit_code = 0) {
  Words all = joined(more, {"--json"});
  const ProgramResult result = run(flags, all);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return json::parse(result.out);
}

const Words kEight{"tune", "--model",   "llama-3.1-8b", "--cluster",      "dgx-h100", "--gpus",
                   "8",    "--seq-len", "8k",           "--global-batch", "64"};
const Words kSmall{"tune", "--model",   "llama-3.1-8b", "--cluster",      "l40s-pcie8", "--gpus",
                   "16",   "--seq-len", "4k",           "--global-batch", "64"};
const Words kOneCard{"tune",   "--model", "llama-3.1-8b", "--cluster", "rtx-4090-pcie8",
                     "--gpus", "1"};

/// The plan that `export` says the trainer follows.
json followed(const std::string& plan_file, const std::string& format) {
  return document({"export", "--plan", plan_file, "--format", format}).at("as_run").at("plan");
}

// A framework whose file is broken is a broken installation, not a framework without a plan.
TEST(Frameworks, AreNotLeftOutWhereTheirFileCannotBeRead) {
  namespace fs = std::filesystem;
  const fs::path data = temp_folder() / "broken_data";
  fs::copy(profiles::data_dir(), data, fs::copy_options::recursive);
  const fs::path stack = data / "stacks" / "hf-eager.json";
  const auto tune = [&] {
    Words words = kEight;
    words.insert(words.begin(), SHARDWRIGHT_BINARY);
    words.emplace_back("--json");
    return run_program(words, {"SHARDWRIGHT_DATA=" + data.string()});
  };
  ASSERT_EQ(tune().exit_code, 0);
  fs::resize_file(stack, 300);
  expect_end(tune(), 3, {"hf-eager.json"});
}

// What is searched with --for is followed to the letter: nothing of the plan is lost in export.
TEST(Frameworks, AreToldTheWholePlan) {
  struct Case {
    const char *framework, *format;
  };
  for (const Case& one : {Case{"torchtitan", "torchtitan"},
                          {"megatron", "megatron-bridge"},
                          {"accelerate", "accelerate"},
                          {"deepspeed", "deepspeed"},
                          {"yafsdp", "yafsdp"}}) {
    for (const Words& question : {kEight, kSmall}) {
      const std::string file = temp_path(std::string(one.framework) + ".json");
      const json answer = document(question, {"--for", one.framework, "--out", file});
      const json plan = answer.at("best").at("plan");
      EXPECT_EQ(followed(file, one.format), plan) << one.framework;
    }
  }
}

// Every answer has a line for each framework, and it is what --for answers.
TEST(Frameworks, EachHasALineThatForAnswers) {
  const json answer = document(kEight);
  const json& lines = answer.at("frameworks");
  ASSERT_EQ(lines.size(), 7U);
  for (const json& line : lines) {
    const std::string name = line.at("framework");
    ASSERT_FALSE(line.at("plan").is_null()) << name;
    if (name == "native") continue;
    EXPECT_GT(line.at("cost").get<double>(), -1e-3) << name;  // nothing is better than the best
    const json own = document(kEight, {"--for", name}).at("best");
    EXPECT_NEAR(own.at("prediction").at("iteration_time_s").get<double>() /
                    line.at("iteration_time_s").get<double>(),
                1, 2e-3)
        << name;
  }
  const ProgramResult text = run(kEight);
  EXPECT_THAT(text.out, AllOf(HasSubstr("In your framework"), HasSubstr("\ntorchtitan "),
                              HasSubstr("\nfsdp2 "), HasSubstr("\ndeepspeed ")));
  // Whose strategy has the name of the software says it once.
  EXPECT_THAT(answer.at("lead").get<std::string>(),
              AllOf(HasSubstr(" in a PyTorch script, "), Not(HasSubstr("FSDP2 fsdp2"))));
}

TEST(Frameworks, WhatOneCannotBeToldIsOneSentence) {
  expect_error(run(kEight, {"--for", "accelerate", "--tp", "2"}), 3,
               "tp is 2, which Accelerate cannot be told, expected 1");
  expect_error(run(kEight, {"--for", "torchtitan", "--strategy", "yafsdp"}), 3,
               "strategy is yafsdp, which torchtitan cannot be told");
  expect_error(run(kEight, {"--for", "torchtitan", "--lora", "8"}), 3,
               "lora is 8, which torchtitan cannot be told, expected accelerate or megatron");
  expect_error(run(kEight, {"--for", "megatron", "--task", "qlora"}), 3,
               "quantize is nf4, which Megatron cannot be told, expected none");
  expect_error(run(kEight, {"--for", "horovod"}), 3, "--for is 'horovod'");
  expect_error(run(kEight, {"--for", "megatron", "--stack", "nanotron"}), 2,
               "--for and --stack both name the framework");
}

// The commonest question of all: a card with 24 GB and a model of 8 billion parameters.
TEST(FineTuning, OneCardIsAnsweredWithAPlanInTheFirstSentence) {
  const ProgramResult text = run(kOneCard);
  EXPECT_EQ(text.exit_code, 4);
  EXPECT_THAT(text.out, StartsWith("Training every weight of llama-3.1-8b does not fit on 1 x "
                                   "rtx-4090; LoRA of rank 16 on sequences of"));
  const json answer = document(kOneCard, {}, 4);
  const json& way = answer.at("nearest_feasible");
  EXPECT_EQ(way.at("flags"), "--task lora");
  EXPECT_EQ(way.at("plan").at("stack"), "hf-trainer");
  EXPECT_TRUE(way.at("prediction").at("memory").at("fits").get<bool>());
  // The flags of the way find it, and Transformers can be told it: all layers or none.
  const json best = document(kOneCard, {"--task", "lora"}).at("best");
  EXPECT_EQ(best.at("plan"), way.at("plan"));
  const json& layers = best.at("plan").at("ckpt_layers");
  EXPECT_TRUE(layers == 0 || layers == 32) << layers;
  // Two cards of sixteen more gigabytes each train every weight by no such way.
  bool quantized = false;
  for (const json& one : answer.at("ways"))
    quantized = quantized || one.at("plan").value("quantize", "none") == "nf4";
  EXPECT_TRUE(quantized);
}

/// `flags` with those of `way` in their place.
Words with_way(Words flags, const std::string& way) {
  std::istringstream words(way);
  std::string name, value;
  while (words >> name >> value) {
    const auto at = std::find(flags.begin(), flags.end(), name);
    if (at != flags.end()) {
      *(at + 1) = value;
    } else {
      flags.insert(flags.end(), {name, value});
    }
  }
  return flags;
}

// Whoever follows a way out gets the plan and the speed that it promised, whatever was asked.
TEST(FineTuning, EveryWayOutIsWhatItsFlagsAnswer) {
  const auto with = [](const Words& flags, const Words& more) { return joined(flags, more); };
  const Words two{"tune",   "--model", "llama-2-13b", "--cluster", "dgx-a100-80g",
                  "--gpus", "2",       "--seq-len",   "4096"};
  const Words eight = with_way(kOneCard, "--gpus 8");
  bool narrow = false, offloaded = false, adapted = false;
  for (const Words& asked :
       {two, with(eight, {"--task", "sft"}), with(eight, {"--for", "accelerate"}),
        with(kOneCard, {"--task", "lora", "--seq-len", "16384"})}) {
    const json answer = document(asked, {}, 4);
    ASSERT_FALSE(answer.at("ways").empty());
    for (const json& way : answer.at("ways")) {
      const std::string flags = way.at("flags");
      narrow |= flags == "--optimizer adamw-8bit";
      offloaded |= flags == "--offload optimizer";
      adapted |= flags.starts_with("--task ");
      const json followed = document(with_way(asked, flags)).at("best").at("prediction");
      EXPECT_NEAR(followed.at("tokens_per_s").get<double>() /
                      way.at("prediction").at("tokens_per_s").get<double>(),
                  1, 3e-3)
          << asked.back() << ": " << flags;
    }
  }
  EXPECT_TRUE(narrow && offloaded && adapted);
}

// torchtune and axolotl report 18 to 20 GB for LoRA of an 8B model in bf16, and 8 to 11 for QLoRA,
// with short sequences and checkpoints in every layer.
TEST(FineTuning, AdaptersTakeWhatTrainersReport) {
  const auto gib = [](const char* task) {
    const json answer = document({"predict", "--model", "llama-3.1-8b", "--cluster",
                                  "rtx-4090-pcie8", "--gpus", "1", "--strategy", "single",
                                  "--seq-len", "512", "--ckpt-layers", "all", "--task", task});
    EXPECT_THAT(answer.at("inputs").dump(), HasSubstr("hf-trainer"));
    return answer.at("memory").at("peak_reserved_bytes").get<double>() / (1 << 30);
  };
  EXPECT_THAT(gib("lora"), AllOf(::testing::Gt(16), ::testing::Lt(20)));
  EXPECT_THAT(gib("qlora"), AllOf(::testing::Gt(6), ::testing::Lt(11)));
}

TEST(FineTuning, TasksThatContradictKnobsAreOneSentence) {
  expect_error(run(kOneCard, {"--task", "sft", "--lora", "8"}), 3,
               "--task is sft, but --lora is 8, expected --task lora or qlora");
  expect_error(run(kOneCard, {"--task", "lora", "--quantize", "nf4"}), 3,
               "--task is lora, but --quantize is nf4, expected --task qlora");
  expect_error(run(kOneCard, {"--precision", "nf4"}), 3,
               "frozen weights of adapters in fewer bits are --quantize nf4");
  expect_error(run(kOneCard, {"--quantize", "nf4"}), 3, "quantize is nf4, but the model itself");
  expect_error(run(kOneCard, {"--task", "dpo"}), 3, "--task is 'dpo'");
}

// The same way out of an out-of-memory message.
TEST(FineTuning, AnOutOfMemoryMessageOfOneCardIsAnsweredWithAdapters) {
  const std::string log = temp_path("oom.txt");
  std::ofstream(log)
      << "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. "
         "GPU 0 has a total capacity of 23.64 GiB of which 60.00 MiB is free. "
         "Including non-PyTorch memory, this process has 23.50 GiB memory in use. Of "
         "the allocated memory 22.90 GiB is allocated by PyTorch, and 100.00 MiB is "
         "reserved by PyTorch but unallocated.\n";
  const json answer =
      document({"import-memory", log, "--model", "llama-3.1-8b", "--cluster", "rtx-4090-pcie8",
                "--gpus", "1", "--strategy", "single", "--stack", "hf-eager", "--seq-len", "2048"});
  const json& fix = answer.at("held").at("fix");
  ASSERT_FALSE(fix.is_null());
  EXPECT_EQ(fix.at("plan").at("lora"), 16);
  // What did not change is not told.
  for (const json& change : fix.at("changes")) {
    const std::string knob = change.at("knob");
    EXPECT_THAT((Words{"tp", "sp", "pp", "cp", "ep", "rank_order", "precision", "optimizer"}),
                ::testing::Not(::testing::Contains(knob)));
  }
  EXPECT_EQ(fix.at("verdict"), "fits");
}

}  // namespace
}  // namespace shardwright::cli
