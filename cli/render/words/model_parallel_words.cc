// SPDX-License-Identifier: Apache-2.0
#include "cli/render/words/model_parallel_words.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

namespace shardwright::cli {

std::string model_parallel_words(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  std::vector<std::string> words;
  const auto add = [&](std::string_view name, std::int64_t size) {
    if (size > 1) words.push_back(fmt::format("{} {}", name, size));
  };
  add("tp", p.tp);
  add("pp", p.pp);
  if (p.virtual_stages > 1) words.back() += fmt::format(" x {}", p.virtual_stages);
  if (p.pp_schedule) words.emplace_back(name_of(*p.pp_schedule));
  add("cp", p.cp);
  add("ep", p.ep);
  add("etp", p.etp);
  if (p.ep > 1 && p.dispatcher) words.emplace_back(name_of(*p.dispatcher));
  if (p.ep > 1 && p.ep_overlap.value_or(false)) words.emplace_back("ep overlap");
  if (p.sequence_parallel() && p.tp_overlap && *p.tp_overlap != TensorOverlap::kNone)
    words.push_back(fmt::format("{} overlap", name_of(*p.tp_overlap)));
  if (plan.numerics.precision != Precision::kBf16)
    words.emplace_back(name_of(plan.numerics.precision));
  if (plan.numerics.optimizer != Optimizer::kAdamw)
    words.emplace_back(name_of(plan.numerics.optimizer));
  const Numerics& numerics = plan.numerics;
  if (numerics.lora > 0) {
    words.push_back(
        numerics.quantize == Quantize::kNone
            ? fmt::format("lora {}", numerics.lora)
            : fmt::format("lora {} over {}", numerics.lora, name_of(numerics.quantize)));
  }
  if (words.empty()) return "";
  if (p.replica() < plan.gpus) add("dp", plan.gpus / p.replica());
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string short_layout(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  std::string text;
  const auto add = [&](std::string_view name, std::int64_t size) {
    if (size > 1) text += fmt::format("{}{}{}", text.empty() ? "" : " ", name, size);
  };
  add("tp", p.tp);
  add("pp", p.pp);
  if (p.virtual_stages > 1) text += fmt::format("x{}", p.virtual_stages);
  add("cp", p.cp);
  add("ep", p.ep);
  add("etp", p.etp);
  return text;
}

}  // namespace shardwright::cli
