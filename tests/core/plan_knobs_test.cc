// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan_knobs.h"

#include "sim/core/plan_json.h"
#include "tests/core/common.h"

namespace shardwright {

namespace {

constexpr std::int64_t kLayers = 80;

GivenKnobs read_plan_of(const std::vector<std::pair<std::string, std::string>>& words) {
  GivenKnobs knobs;
  for (const auto& [name, text] : words) plan_knob(name).read(knobs, "--" + name, text);
  return knobs;
}

std::string refusal(const std::string& name, const std::string& text) {
  GivenKnobs knobs;
  return refusal_of([&] { plan_knob(name).read(knobs, name + " in run.ini", text); });
}

// Nothing that a plan says is lost between a run file and the run that reads it.
TEST(PlanKnobs, WhatIsWrittenReadsBack) {
  Plan plan;
  plan.strategy = Strategy::kHsdp;
  plan.shard_group = 4;
  plan.seq_len = 4096;
  plan.micro_batch = 3;
  plan.grad_accum = 5;
  plan.ckpt_layers = 7;
  plan.recompute = Recompute::kPieces;
  plan.pieces = kPieceNorm | kPieceSwiglu;
  plan.param_dtype = DType::kFp32;
  plan.reduce_dtype = DType::kBf16;
  plan.moment_dtype = DType::kBf16;
  plan.buffers = 5;
  plan.prefetch = 2;
  plan.attention = AttentionKind::kEager;
  plan.loss_chunks = 8;
  plan.allocator = AllocatorKind::kExpandable;
  plan.deterministic = true;
  GivenKnobs knobs;
  for (const PlanKnob& knob : plan_knobs()) {
    // Knobs of model-parallel plans write nothing where the plan does not divide.
    const std::string written = knob.write ? knob.write(plan) : "";
    if (!written.empty()) knob.read(knobs, knob.name, written);
  }
  ASSERT_THAT(knobs.strategies, ElementsAre(Strategy::kHsdp));
  Plan again = with_knobs(Plan{}, knobs, kLayers);
  again.strategy = knobs.strategies.front();
  EXPECT_EQ(again, plan);
}

TEST(PlanKnobs, TheShapeOfSumsIsFeaturesAndUsesOfATiedEmbedding) {
  const GivenKnobs features = read_plan_of({{"sum-shape", "4,1,1"}});
  EXPECT_EQ(features.sum_features, 4);
  EXPECT_FALSE(features.sum_uses);
  const Plan plan = with_knobs(Plan{}, read_plan_of({{"sum-shape", "4,1,1,2"}}), kLayers);
  EXPECT_EQ(plan.sum_features, 4);
  EXPECT_EQ(plan.use_parts(), 2);
  EXPECT_EQ(plan_knob("sum-shape").write(plan), "4,1,1,2");
  Plan stages;
  EXPECT_EQ(stages.use_parts(), 1);
  stages.parallel.pp = 2;
  EXPECT_EQ(stages.use_parts(), 2);
  for (const char* wrong : {"4,1", "4,1,1,3", "4,1,1,2,", "4,2,1", "4,1,1,"}) {
    EXPECT_EQ(refusal("sum-shape", wrong),
              std::string("sum-shape in run.ini is ") + wrong +
                  ", expected F or F,1,1 or F,1,1,U with U 1 or 2: sums over tokens and the batch "
                  "follow the layout");
  }
}

TEST(PlanKnobs, OnlyWhatIsGivenChangesAPlan) {
  Plan plan;
  plan.ckpt_layers = 20;
  plan.prefetch = 0;
  EXPECT_EQ(with_knobs(plan, {}, kLayers), plan);
  plan.micro_batch = 4;
  EXPECT_EQ(with_knobs(Plan{plan}, read_plan_of({{"micro-batch", "4"}}), kLayers), plan);
}

TEST(PlanKnobs, MoreBuffersAreFilledAhead) {
  EXPECT_EQ(with_knobs({}, read_plan_of({{"buffers", "4"}}), kLayers).prefetch, 3);
  EXPECT_EQ(with_knobs({}, read_plan_of({{"buffers", "4"}, {"prefetch", "1"}}), kLayers).prefetch,
            1);
}

TEST(PlanKnobs, LayersAndWhatTheyRecomputeComplementEachOther) {
  Plan none;
  none.recompute = Recompute::kNone;
  const Plan layers = with_knobs(none, read_plan_of({{"ckpt-layers", "8"}}), kLayers);
  EXPECT_EQ(layers.recompute, Recompute::kFull);
  EXPECT_EQ(layers.ckpt_layers, 8);
  EXPECT_EQ(with_knobs({}, read_plan_of({{"recompute", "norm"}}), kLayers).ckpt_layers, kLayers);
  EXPECT_EQ(with_knobs({}, read_plan_of({{"ckpt-layers", "all"}}), kLayers).ckpt_layers, kLayers);
  const Plan nothing = with_knobs({}, read_plan_of({{"ckpt-layers", "0"}}), kLayers);
  EXPECT_EQ(nothing.recompute, Recompute::kNone);
  EXPECT_EQ(recompute_name(with_knobs(layers, read_plan_of({{"recompute", "none"}}), kLayers)),
            "none");
}

TEST(PlanKnobs, ErrorsNameWhereTheValueStands) {
  EXPECT_EQ(refusal("micro-batch", "0"),
            "micro-batch in run.ini is 0, but it must be a whole number from 1 to 1048576.");
  EXPECT_EQ(refusal("param-dtype", "bf61"),
            "param-dtype in run.ini is 'bf61', but it must be one of fp32, bf16, did you mean "
            "'bf16'?");
  EXPECT_EQ(refusal("ckpt-layers", "some"),
            "ckpt-layers in run.ini is 'some', but it must be a whole number of at least 0, or "
            "all.");
  EXPECT_EQ(refusal("strategy", "ddp,ddp"),
            "strategy in run.ini is 'ddp,ddp', but it names ddp twice.");
  EXPECT_EQ(refusal("recompute", "ful"),
            "recompute in run.ini is 'ful', expected none, full, selective-op, or a list of norm, "
            "swiglu, ffn, attention, block.");
}

/// A document in which no knob has its default.
PlanDocument unusual() {
  PlanDocument document;
  document.model = "llama-3-70b";
  document.cluster = "a100-80g-4xhdr200";
  document.overrides = {"cluster.nic_efficiency=0.9"};
  document.prediction = R"({"schema":"shardwright.prediction/1.0","iteration_time_s":6.95})";
  document.command = "shardwright tune --model llama-3-70b";
  document.tool_version = "0.1.0";
  document.model_config = R"({"model_type":"llama","hidden_size":8192})";
  document.cluster_file = R"({"id":"own","gpu":"a100-80g"})";
  Plan& plan = document.plan;
  plan.strategy = Strategy::kHsdp;
  plan.gpus = 256;
  plan.shard_group = 32;
  plan.seq_len = 4096;
  plan.micro_batch = 3;
  plan.grad_accum = 5;
  plan.ckpt_layers = 20;
  plan.ckpt_stride = 2;
  set_recompute(plan, "norm,swiglu");
  plan.param_dtype = DType::kFp32;
  plan.reduce_dtype = DType::kBf16;
  plan.master_dtype = DType::kBf16;
  plan.moment_dtype = DType::kBf16;
  plan.buffers = 4;
  plan.prefetch = 3;
  plan.attention = AttentionKind::kEager;
  plan.offload = Offload::kOptimizer;
  plan.loss_chunks = 8;
  plan.allocator = AllocatorKind::kExpandable;
  plan.stack = "hf-eager";
  return document;
}

std::string problem_of_plan(const json& document) {
  return refusal_of([&] { parse_plan(document.dump(), "p.json"); });
}

json document_with(const std::string& key, const json& value) {
  json document = json::parse(plan_text(unusual()));
  document["plan"][key] = value;
  return document;
}

TEST(PlanJson, EveryKnobRoundTrips) {
  const PlanDocument before = unusual();
  const std::string text = plan_text(before);
  const PlanDocument after = parse_plan(text, "p.json");
  EXPECT_EQ(plan_text(after), text);
  EXPECT_EQ(after.model, before.model);
  EXPECT_EQ(after.cluster, before.cluster);
  EXPECT_EQ(after.overrides, before.overrides);
  EXPECT_EQ(after.command, before.command);
  EXPECT_EQ(after.tool_version, before.tool_version);
  EXPECT_EQ(after.model_config, before.model_config);
  EXPECT_EQ(after.cluster_file, before.cluster_file);
  EXPECT_EQ(json::parse(after.prediction), json::parse(before.prediction));
  // Every knob has a value of its own in `unusual`, so a swapped or forgotten key would show.
  const json plan = json::parse(text)["plan"];
  const json defaults = json::parse(plan_to_json(Plan{}).dump());
  EXPECT_EQ(plan.size(), 20U);
  for (const auto& [key, value] : not_empty(plan.items()))
    EXPECT_TRUE(!defaults.contains(key) || defaults.at(key) != value) << key;
}

TEST(PlanJson, KeysComeInAStableOrderAndTheOptionalOnesOnlyWhereKnown) {
  PlanDocument document;
  document.plan.gpus = 8;
  EXPECT_THAT(plan_text(document),
              StartsWith("{\n  \"schema\": \"shardwright.plan/1.0\",\n  \"model\": \"\",\n  "
                         "\"cluster\": \"\",\n  \"plan\": {\n    \"strategy\": \"yafsdp\",\n    "
                         "\"gpus\": 8,\n    \"shard_group\": 0,\n"));
  const json read = json::parse(plan_text(document));
  EXPECT_FALSE(read.contains("prediction") || read.contains("command"));
}

TEST(PlanJson, AbsentKnobsHaveTheirDefaults) {
  const json text = {{"schema", "shardwright.plan/1.3"},
                     {"plan", {{"strategy", "fsdp2"}, {"gpus", 64}}},
                     {"added_later", 1}};
  const Plan plan = parse_plan(text.dump(), "p.json").plan;
  EXPECT_EQ(plan.strategy, Strategy::kFsdp2);
  EXPECT_EQ(plan.gpus, 64);
  EXPECT_EQ(plan.seq_len, Plan{}.seq_len);
  EXPECT_EQ(recompute_name(plan), "full");
}

TEST(PlanJson, BadValuesNameFileKeyAndValue) {
  EXPECT_THAT(problem_of_plan(document_with("tensor_parallel", 2)),
              StartsWith("p.json: plan.tensor_parallel is not a known key, expected one of "));
  EXPECT_THAT(problem_of_plan(document_with("strategy", "fsdp")),
              StartsWith("p.json: plan.strategy is \"fsdp\", expected one of single, ddp, "));
  EXPECT_EQ(problem_of_plan(document_with("gpus", 0)),
            "p.json: plan.gpus is 0, expected an integer of at least 1");
  EXPECT_EQ(problem_of_plan(document_with("ckpt_layers", "all")),
            "p.json: plan.ckpt_layers is \"all\", expected an integer of at least 0");
  EXPECT_EQ(problem_of_plan(document_with("recompute", "ful")),
            "p.json: plan.recompute is \"ful\", expected none, full, selective-op, or a list of "
            "norm, swiglu, ffn, attention, block");
  EXPECT_EQ(problem_of_plan(document_with("moment_dtype", "fp8")),
            "p.json: plan.moment_dtype is \"fp8\", expected fp32 or bf16");
  EXPECT_EQ(
      problem_of_plan(document_with("offload", "disk")),
      "p.json: plan.offload is \"disk\", expected none, optimizer or activations:N, N a number "
      "of layers");
  EXPECT_THAT(problem_of_plan(document_with("buffers", 1LL << 40)), HasSubstr("plan.buffers is "));
  json document = document_with("gpus", 8);
  document["plan"].erase("strategy");
  EXPECT_EQ(problem_of_plan(document), "p.json: plan.strategy is missing, but it is required");
  document.erase("plan");
  EXPECT_EQ(problem_of_plan(document), "p.json: plan is missing, but it is required");
}

TEST(PlanJson, OtherSchemasAreRefused) {
  const auto with_schema = [](const json& schema) {
    json document = json::parse(plan_text(unusual()));
    document["schema"] = schema;
    return problem_of_plan(document);
  };
  EXPECT_EQ(with_schema("shardwright.plan/1.7"), "accepted");
  EXPECT_EQ(with_schema("shardwright.plan/2.0"),
            "p.json: schema is shardwright.plan/2.0, which a newer shardwright wrote, expected "
            "shardwright.plan/1.0");
  for (const char* other : {"shardwright.prediction/1.0", "shardwright.plan", "shardwright.plan/",
                            "shardwright.plan/1", "shardwright.plan/1.", "shardwright.plan/1.0x",
                            "shardwright.plan/-1.0", "shardwright.plans/1.0", ""}) {
    EXPECT_EQ(with_schema(other),
              "p.json: schema is \"" + std::string(other) + "\", expected shardwright.plan/1.0");
  }
  EXPECT_EQ(with_schema(nullptr), "p.json: schema is null, but it is required");
}

TEST(PlanJson, FilesAreWrittenAndRead) {
  const std::filesystem::path path =
      shardwright::testing::temp_folder() / "shardwright_plan_json_test.json";
  write_plan(path, unusual());
  EXPECT_EQ(plan_text(read_plan(path)), plan_text(unusual()));
  std::filesystem::remove(path);
  EXPECT_THROW(read_plan(path), Error);
  PlanDocument document = unusual();
  document.model = "\xff/config.json";  // any bytes may be a file name
  EXPECT_NO_THROW(parse_plan(plan_text(document), "p.json"));
}

/// Damaged documents end in an Error or in a plan that can be written again.
TEST(PlanJson, SurvivesRandomDamage) {
  const std::string good = plan_text(unusual());
  std::mt19937 random(5);
  int accepted = 0;
  for (int round = 0; round < 6'000; ++round) {
    std::string text = good;
    for (auto edits = 1 + random() % 2; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text[at] = "0123456789"[random() % 10];
          break;
        case 2:
          text.erase(at, 1 + random() % 5);
          break;
        default:
          text.insert(at, 1, "0-.e\"{[,"[random() % 8]);
      }
    }
    try {
      const PlanDocument document = parse_plan(text, "p.json");
      EXPECT_EQ(plan_text(parse_plan(plan_text(document), "again")), plan_text(document));
      ++accepted;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith("p.json: "));
    }
  }
  EXPECT_GT(accepted, 150);
}

}  // namespace

}  // namespace shardwright
