// SPDX-License-Identifier: Apache-2.0
#include "tests/support/random_plans.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "sim/core/base/parse_number.h"
#include "sim/core/strategy.h"

namespace shardwright::testing {
namespace {

using Words = std::vector<std::string>;

const Words kModels = {"llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "mixtral-8x7b"};
const Words kClusters = {"dgx-h100", "dgx-a100-80g", "rtx-4090-pcie8"};
// Weighted: frameworks of data parallelism, and the two that most plans fall back to.
const Words kStacks = {"torch-compile", "torch-eager", "hf-eager",      "hf-trainer",
                       "hf-trainer",    "native",      "megatron-core", "megatron-core"};

/// The knobs whose values are no words of an enumeration. Layouts need the number of layers.
const std::map<std::string, Words, std::less<>>& spelled() {
  static const std::map<std::string, Words, std::less<>> values = {
      {"strategy", strategy_names()},
      {"shard-group", {"2", "4", "8"}},
      {"seq-len", {"1024", "2048"}},
      {"packed-length", {"512"}},
      {"micro-batch", {"1", "2"}},
      {"grad-accum", {"1", "2", "8"}},
      {"ckpt-layers", {"0", "4", "all"}},
      {"recompute", {"full", "none", "selective-op", "norm,swiglu", "attention", "ffn"}},
      {"buffers", {"2", "3"}},
      {"prefetch", {"0", "1"}},
      {"offload", {"none", "optimizer", "activations:2"}},
      {"sum-shape", {"1", "2", "4"}},
      {"loss-chunks", {"1", "4"}},
      {"tp", {"1", "2", "4"}},
      {"pp", {"1", "2", "4"}},
      {"virtual-stages", {"1", "2"}},
      {"pp-layout", {}},
      {"cp", {"1", "2"}},
      {"ep", {"1", "2", "8"}},
      {"etp", {"1", "2"}},
      {"expert-capacity", {"1.25"}},
      {"expert-load", {"balanced", "real"}},
      {"rank-order", {Parallelism::kUsualOrder, "tp-cp-ep-pp-dp"}},
      {"lora", {"8", "16"}}};
  return values;
}

}  // namespace

bool DrawnPlan::has(const std::string& knob) const {
  return std::any_of(knobs.begin(), knobs.end(),
                     [&](const auto& known) { return known.first == knob; });
}

std::string DrawnPlan::value(const std::string& knob, const std::string& otherwise) const {
  for (const auto& [name, value] : knobs) {
    if (name == knob) return value;
  }
  return otherwise;
}

void DrawnPlan::set(const std::string& knob, const std::string& value) {
  std::erase_if(knobs, [&](const auto& known) { return known.first == knob; });
  knobs.emplace_back(knob, value);
}

Words DrawnPlan::words() const {
  Words words = {"--model", model, "--cluster", cluster, "--gpus", fmt::format("{}", gpus),
                 "--stack", stack};
  for (const auto& [name, value] : knobs) {
    words.push_back("--" + name);
    words.push_back(value);
  }
  return words;
}

std::string DrawnPlan::text() const {
  return fmt::format("{}", fmt::join(words(), " "));
}

Plan plan_of(const DrawnPlan& drawn, std::int64_t layers) {
  GivenKnobs given;
  for (const auto& [name, value] : drawn.knobs) plan_knob(name).read(given, name, value);
  Plan plan;
  plan.stack = drawn.stack;
  plan.gpus = drawn.gpus;
  plan = with_knobs(plan, given, layers);
  if (!given.strategies.empty()) plan.strategy = given.strategies.front();
  return plan;
}

Words values_of(const PlanKnob& knob) {
  if (!knob.read) return {};
  if (const auto found = spelled().find(knob.name); found != spelled().end()) return found->second;
  std::string words = knob.type;  // "on|off", or a NAME that the description lists
  std::replace(words.begin(), words.end(), '|', ',');
  if (words == "NAME") {
    const std::size_t colon = knob.what.rfind(": ");
    words = knob.what.substr(colon == std::string::npos ? 0 : colon + 2);
  }
  std::erase(words, ' ');
  return split_commas(words);
}

DrawnPlan RandomPlans::draw() {
  DrawnPlan plan;
  plan.model = one_of(kModels);
  plan.cluster = one_of(kClusters);
  plan.stack = one_of(kStacks);
  plan.gpus = std::int64_t{1} << below(5);
  for (const PlanKnob& knob : plan_knobs()) {
    const Words values = values_of(knob);
    if (values.empty() || knob.name == "lora" || knob.name == "quantize") continue;
    // Strategy, batch and recomputation always; what divides or changes types now and then.
    const bool always = knob.name == "strategy" || knob.name == "seq-len";
    const bool often = knob.name == "micro-batch" || knob.name == "ckpt-layers";
    if (!always && !once_in(often ? 2 : 12)) continue;
    plan.knobs.emplace_back(knob.name, one_of(values));
  }
  const std::size_t task = below(4);  // half of them pretrain, a quarter each takes LoRA and QLoRA
  if (task >= 2) plan.set("lora", one_of(values_of(plan_knob("lora"))));
  if (task == 3) plan.set("quantize", "nf4");
  if (plan.gpus == 1) plan.set("strategy", "single");
  return plan;
}

std::int64_t asked_plans(std::int64_t usual) {
  const char* asked = std::getenv("SHARDWRIGHT_PLANS");
  return asked == nullptr ? usual : parse_int64(asked).value();
}

}  // namespace shardwright::testing
