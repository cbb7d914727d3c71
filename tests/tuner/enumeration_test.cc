// SPDX-License-Identifier: Apache-2.0
// The search loses nothing by what it prunes: on many small spaces, of one framework or of two, of
// data parallelism alone or with tensor, pipeline, context and expert parallelism, every plan is
// predicted in full, and none that fits is better than the answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "profiles/data_file.h"
#include "sim/core/plan_json.h"
#include "tests/support/parameter_name.h"
#include "tests/tuner/every_plan.h"
#include "tests/tuner/models.h"
#include "tuner/search/search.h"

namespace shardwright::tuner {
namespace {

using Hold = std::function<void(Request&)>;

struct Question {
  std::string name, model;
  std::int64_t layers;
  std::string cluster;
  std::vector<std::string> stacks;
  std::int64_t gpus, seq_len, global_batch;
  double memory_gib;  // of a GPU
  Hold hold = nullptr;
};

void PrintTo(const Question& question, std::ostream* out) {
  *out << question.name;
}

void bf16_moments(Request& request) {
  request.allow_bf16_moments = true;
}
void flash(Request& request) {
  request.attention = AttentionKind::kFlash;
}
void fp8(Request& request) {
  request.allowed_precisions = {Precision::kFp8};
}
void software(Request& request) {
  request.allow_software = true;
}

std::vector<Question> questions() {
  std::vector<Question> all;
  // One layer count, memory and framework after another, so that edges of memory lie elsewhere.
  for (const double memory : {12.0, 18.0, 80.0}) {
    const std::string size = std::to_string(static_cast<int>(memory)) + "GiB";
    all.push_back({"torch" + size,
                   "llama-3-8b",
                   4,
                   "dgx-h100",
                   {"torch-compile"},
                   8,
                   4096,
                   16,
                   memory,
                   flash});
    all.push_back(
        {"eager" + size, "llama-3-8b", 4, "dgx-h100", {"torch-eager"}, 4, 4096, 8, memory});
    all.push_back(
        {"megatron" + size, "llama-3-8b", 4, "dgx-h100", {"megatron-core"}, 16, 4096, 16, memory});
    all.push_back({"both" + size,
                   "llama-3-8b",
                   4,
                   "dgx-h100",
                   {"torch-compile", "megatron-core"},
                   8,
                   4096,
                   16,
                   memory,
                   flash});
    all.push_back({"huggingface" + size,
                   "llama-3-8b",
                   5,
                   "dgx-h100",
                   {"hf-eager"},
                   8,
                   2048,
                   16,
                   memory,
                   flash});
    all.push_back({"experts" + size,
                   "mixtral-8x7b",
                   2,
                   "dgx-h100",
                   {"megatron-core"},
                   8,
                   4096,
                   8,
                   memory + 8});
    all.push_back({"torchexperts" + size,
                   "mixtral-8x7b",
                   2,
                   "dgx-h100",
                   {"torch-compile"},
                   8,
                   4096,
                   8,
                   memory + 8});
    all.push_back({"qwen" + size,
                   "qwen3-32b",
                   3,
                   "dgx-h100",
                   {"torch-compile", "megatron-core"},
                   4,
                   4096,
                   8,
                   memory,
                   flash});
  }
  all.push_back({"native", "llama-3-8b", 4, "dgx-h100", {"native"}, 8, 2048, 16, 80});
  all.push_back(
      {"nativetight", "llama-3-8b", 5, "l40s-pcie8", {"native"}, 2, 4096, 4, 12, [](Request& r) {
         r.strategies = {Strategy::kYafsdp, Strategy::kFsdp2};
       }});
  all.push_back({"ampere",
                 "llama-2-70b",
                 3,
                 "a100-80g-4xhdr200",
                 {"torch-compile", "megatron-core"},
                 16,
                 4096,
                 16,
                 24,
                 flash});
  all.push_back({"pcie",
                 "llama-3-8b",
                 4,
                 "l40s-pcie8",
                 {"torch-compile", "megatron-core"},
                 8,
                 4096,
                 16,
                 20,
                 flash});
  all.push_back({"rack", "llama-3-8b", 4, "gb200-nvl72", {"megatron-core"}, 72, 2048, 72, 40});
  all.push_back({"latent", "deepseek-v3", 4, "dgx-h100", {"megatron-core"}, 8, 4096, 8, 141});
  all.push_back(
      {"moments", "llama-3-70b", 4, "dgx-h100", {"megatron-core"}, 8, 4096, 16, 24, bf16_moments});
  all.push_back({"torchmoments",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"torch-compile"},
                 8,
                 4096,
                 16,
                 20,
                 [](Request& r) { flash(r), bf16_moments(r); }});
  all.push_back({"fp8",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"torch-compile", "megatron-core"},
                 8,
                 4096,
                 16,
                 40,
                 [](Request& r) { flash(r), fp8(r); }});
  all.push_back(
      {"fp8experts", "mixtral-8x7b", 2, "dgx-b200", {"megatron-core"}, 8, 4096, 8, 60, fp8});
  all.push_back(
      {"settings", "llama-3-8b", 4, "dgx-h100", {"megatron-core"}, 8, 4096, 16, 40, software});
  all.push_back({"expertsettings",
                 "mixtral-8x7b",
                 2,
                 "dgx-h100",
                 {"megatron-core"},
                 8,
                 4096,
                 8,
                 60,
                 software});
  all.push_back({"adapters",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"torch-compile", "megatron-core"},
                 8,
                 4096,
                 16,
                 20,
                 [](Request& r) { r.parallel.lora = 16; }});
  all.push_back({"zerobubble",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"megatron-core"},
                 8,
                 4096,
                 32,
                 40,
                 [](Request& r) { r.parallel.pp_schedule = PipelineKind::kZb1p; }});
  all.push_back({"tensor",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"torch-compile", "megatron-core"},
                 8,
                 4096,
                 16,
                 20,
                 [](Request& r) { r.parallel.tp = 2; }});
  all.push_back({"megatronfsdp",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"megatron-core"},
                 8,
                 4096,
                 16,
                 20,
                 [](Request& r) { r.strategies = {Strategy::kMegatronFsdp}; }});
  all.push_back({"onebatch",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"torch-compile", "megatron-core"},
                 8,
                 4096,
                 8,
                 24,
                 [](Request& r) {
                   flash(r);
                   r.micro_batch = 1;
                 }});
  all.push_back({"fewsequences",
                 "llama-3-8b",
                 4,
                 "dgx-h100",
                 {"torch-compile", "megatron-core"},
                 16,
                 8192,
                 4,
                 40,
                 flash});
  return all;
}

/// The best of all plans that fit, and of those that recompute only as far as memory requires.
double best_of_all(const Model& model, const FrameworkPlans& framework, std::int64_t& plans) {
  Evaluator evaluator(model, framework.scenarios, {});
  const Space& space = framework.space;
  const bool spares =
      framework.scenarios.front().profile.stack.memory == MemoryManager::kCachingAllocator;
  double best = std::numeric_limits<double>::infinity();
  const auto score_of = [&](const Plan& plan) {
    const Judgement judgement = evaluator.judge(plan);
    return judgement.fits ? judgement.score : std::numeric_limits<double>::infinity();
  };
  for (const Plan& plan : space.plans) {
    plans += space.recomputes_nothing ? 1 : 0;
    const double without =
        space.recomputes_nothing ? score_of(plan) : std::numeric_limits<double>::infinity();
    best = std::min(best, without);
    // Attention that keeps its scores may fit only with more layers recomputed than without them.
    for (const Recomputation& one : space.recomputations) {
      plans += space.steps(plan, one);
      bool decided = spares && without < std::numeric_limits<double>::infinity();
      for (std::int64_t step = 1; !decided && step <= space.steps(plan, one); ++step) {
        const double score = score_of(space.at(plan, one, step));
        best = std::min(best, score);
        decided = spares && score < std::numeric_limits<double>::infinity();
      }
    }
  }
  return best;
}

class Enumeration : public ::testing::TestWithParam<Question> {};

TEST_P(Enumeration, NoPlanIsBetterThanTheAnswer) {
  const Question& asked = GetParam();
  const Model model = model_of(asked.model, asked.layers);
  Request request;
  request.gpus = asked.gpus;
  request.seq_len = asked.seq_len;
  request.global_batch = asked.global_batch;
  if (asked.hold) asked.hold(request);
  std::vector<profiles::Profile> profiles;
  for (const std::string& stack : asked.stacks) {
    profiles::Profile& profile =
        profiles.emplace_back(profiles::load_profile(asked.cluster, stack));
    profile.cluster.gpu.memory_bytes = static_cast<Bytes>(asked.memory_gib * kGiB);
  }
  std::vector<Framework> frameworks;
  for (const profiles::Profile& profile : profiles) frameworks.push_back({&profile, 0});
  const std::vector<FrameworkPlans> plans = plans_of(request, model, frameworks, false);
  double best = std::numeric_limits<double>::infinity();
  std::int64_t count = 0;
  for (const FrameworkPlans& one : plans) best = std::min(best, best_of_all(model, one, count));
  Search search(model, plans, {});
  const std::vector<Found> found = search.best(1);
  EXPECT_EQ(search.counts().considered, count);
  ASSERT_EQ(found.empty(), best == std::numeric_limits<double>::infinity());
  if (found.empty()) return;
  EXPECT_DOUBLE_EQ(found.front().score, best) << plan_text(found.front().plan());
  EXPECT_LT(search.counts().simulated, count) << "it prunes";
}

INSTANTIATE_TEST_SUITE_P(Spaces, Enumeration, ::testing::ValuesIn(questions()), parameter_name);

}  // namespace
}  // namespace shardwright::tuner
