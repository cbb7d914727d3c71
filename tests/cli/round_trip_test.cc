// SPDX-License-Identifier: Apache-2.0
// Guards that what is exported for a trainer is read back as the plan that export says will run,
// for every trainer whose files are read, over random plans.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>

#include "cli/config/imported.h"
#include "cli/config/setting.h"
#include "cli/export/settings.h"
#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

SettingsLanguage language_of(Script script) {
  const std::map<Script, SettingsLanguage> languages = {
      {Script::kJson, SettingsLanguage::kJson},
      {Script::kYaml, SettingsLanguage::kYaml},
      {Script::kToml, SettingsLanguage::kToml},
      {Script::kPython, SettingsLanguage::kPython},
      {Script::kShell, SettingsLanguage::kShell}};
  return languages.at(script);
}

Plan read_back(const sim::Job& job, const TrainerSettings& settings) {
  const std::string& text = settings.body.text();
  const std::string file = settings.body.language() == Script::kPython ? "a.py" : "a";
  SettingBox box(parse_settings(language_of(settings.body.language()), text, file), file);
  ImportedConfig config;
  recognized_format(box).read(box, config);
  box.finish(config);
  for (const LeftSetting& left : config.not_taken)
    if (left.key != "data_types.grad_accum_dtype")
      ADD_FAILURE() << "left " << left.key << ": " << left.why << " of\n" << text;
  const auto plan = [&] { return plan_of(config, settings.as_run.gpus, job.model.layers, file); };
  fall_back(config, plan(), job.model.is_moe());
  return plan();
}

/// What the files of a trainer leave to a script, to code of the model or to a default: FSDP1
/// shards within a node.
const std::map<std::string_view, std::set<std::string>> kNotSaid = {
    {"accelerate",
     {"seq_len", "micro_batch", "grad_accum", "attention", "recompute", "ckpt_layers",
      "reduce_dtype", "shard_group"}},
    {"deepspeed", {"seq_len", "attention"}},
    {"torchtitan", {"loss_chunks", "cp_comm"}},
    {"torchtitan-main", {"loss_chunks", "cp_comm"}},
    {"megatron-lm", {"attention"}},
    {"megatron-bridge", {"attention"}}};

Plan random_plan(std::mt19937& random, const std::vector<Strategy>& strategies,
                 bool model_parallel) {
  using Counts = std::initializer_list<std::int64_t>;
  const auto one_of = [&]<typename Value>(std::initializer_list<Value> values) {
    return *(values.begin() + random() % values.size());
  };
  Plan plan;
  plan.gpus = one_of(Counts{1, 8, 16, 64});
  plan.strategy = plan.gpus == 1 ? Strategy::kSingle : strategies[random() % strategies.size()];
  plan.seq_len = one_of(Counts{2048, 4096});
  plan.micro_batch = one_of(Counts{1, 2});
  plan.grad_accum = one_of(Counts{1, 4});
  plan.recompute = one_of({Recompute::kNone, Recompute::kFull});
  plan.ckpt_layers = plan.recompute == Recompute::kNone ? 0 : one_of(Counts{8, 32});
  plan.reduce_dtype = one_of({DType::kFp32, DType::kBf16});
  plan.moment_dtype = plan.master_dtype = one_of({DType::kFp32, DType::kFp32, DType::kBf16});
  plan.attention = one_of({AttentionKind::kFlash, AttentionKind::kFlash, AttentionKind::kEager});
  plan.loss_chunks = one_of(Counts{0, 0, 8});
  if (model_parallel) {
    plan.parallel.tp = one_of(Counts{1, 2, 4});
    plan.parallel.pp = one_of(Counts{1, 2});
    plan.parallel.cp = one_of(Counts{1, 1, 2});
  } else if (one_of({true, false, false})) {
    plan.numerics.lora = 16;
    plan.numerics.quantize = one_of({Quantize::kNone, Quantize::kNf4, Quantize::kInt8});
    plan.numerics.optimizer = one_of({Optimizer::kAdamw, Optimizer::kAdamw8bit});
  }
  return plan;
}

class RoundTrip : public ::testing::TestWithParam<std::string> {};

TEST_P(RoundTrip, AnExportedFileIsReadAsThePlanThatRuns) {
  const Trainer& trainer = trainer_named(GetParam());
  const bool python = trainer.what.find("(Python)") != trainer.what.npos;
  const bool megatron = trainer.name.starts_with("megatron");
  sim::Job job;
  job.model_name = "llama-3.1-8b";
  job.cluster_name = "dgx-h100";
  job.model = load_model(profiles::data_dir() / "models", job.model_name);
  std::mt19937 random(3);
  int read = 0;
  for (int drawn = 0; drawn < 400 && read < (python ? 10 : 40); ++drawn) {
    const bool parallel = megatron || (trainer.name.starts_with("torchtitan") && drawn % 2 == 0);
    const std::vector<Strategy> strategies =
        megatron
            ? std::vector{Strategy::kDdp, Strategy::kDistributedOptimizer}
            : std::vector{
                  Strategy::kDdp,    Strategy::kZero1,          Strategy::kZero2,
                  Strategy::kZero3,  Strategy::kFsdp1,          Strategy::kFsdp1GradOp,
                  Strategy::kFsdp2,  Strategy::kFsdp2NoReshard, Strategy::kHsdp,
                  Strategy::kYafsdp, Strategy::kYafsdpZero2,    Strategy::kDistributedOptimizer};
    Plan plan = random_plan(random, strategies, parallel);
    if (plan.strategy == Strategy::kHsdp && plan.gpus == 8) continue;  // one copy
    if (plan.strategy == Strategy::kHsdp) plan.shard_group = 8;
    plan.stack = megatron ? "megatron-core" : "hf-eager";
    job.profile = profiles::load_profile(job.cluster_name, plan.stack);
    TrainerSettings settings;
    try {
      check_plan(plan, job.model, job.profile.cluster.gpus_per_node);
      settings = trainer.settings(job, plan);
    } catch (const Error&) {
      continue;  // no such plan, or the trainer has nothing like it
    }
    if (!reads(language_of(settings.body.language()))) GTEST_SKIP();
    ++read;
    const auto expected = plan_to_json(settings.as_run);
    const auto found = plan_to_json(read_back(job, settings));
    for (const auto& [knob, value] : expected.items()) {
      const auto unsaid = kNotSaid.find(trainer.name);
      if (unsaid != kNotSaid.end() && unsaid->second.contains(knob)) continue;
      EXPECT_EQ(found.value(knob, nlohmann::ordered_json()), value) << knob << " in\n"
                                                                    << settings.body.text();
    }
  }
  EXPECT_GE(read, python ? 10 : 20);
}

std::vector<std::string> read_trainers() {
  std::vector<std::string> names;
  for (const Trainer& trainer : trainers()) {
    if (trainer.name != "yafsdp") names.emplace_back(trainer.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Trainers, RoundTrip, ::testing::ValuesIn(read_trainers()),
                         [](const auto& trainer) {
                           std::string name = trainer.param;
                           std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                           return name;
                         });

}  // namespace
}  // namespace shardwright::cli
