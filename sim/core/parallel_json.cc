// SPDX-License-Identifier: Apache-2.0
#include "sim/core/parallel_json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sim/core/parallelism.h"

namespace shardwright {
namespace {

void read_size(const JsonReader& object, std::string_view key, std::int64_t& value,
               std::int64_t least = 1) {
  value = object.optional<std::int64_t>(key, value, at_least(least));
}

void read_boolean(const JsonReader& object, std::string_view key, std::optional<bool>& value) {
  if (object.has(key)) value = object.require<bool>(key);
}

template <typename Enum>
void read_word(const JsonReader& object, std::string_view key, std::optional<Enum>& value) {
  if (!object.has(key)) return;
  value = parallel_word<Enum>(object.require<std::string>(key));
  if (!value) object.fail(key, "one of " + words_of<Enum>());
}

template <typename Enum>
void read_word(const JsonReader& object, std::string_view key, Enum& value) {
  std::optional<Enum> given = value;
  read_word(object, key, given);
  value = *given;
}

}  // namespace

void parallel_to_json(const Plan& plan, nlohmann::ordered_json& object) {
  if (plan.parallel.plain() && plan.numerics.plain()) return;
  const Parallelism& p = plan.parallel;
  const auto optional_word = [&](const char* key, const auto& value) {
    if (value) object[key] = name_of(*value);
  };
  const auto optional_switch = [&](const char* key, const std::optional<bool>& value) {
    if (value) object[key] = *value;
  };
  object["tp"] = p.tp;
  object["sp"] = p.sequence_parallel();
  object["pp"] = p.pp;
  object["virtual_stages"] = p.virtual_stages;
  object["pp_schedule"] = name_of(p.schedule());
  if (!p.pp_layout.empty()) object["pp_layout"] = p.pp_layout;
  object["cp"] = p.cp;
  optional_word("cp_comm", p.cp_comm);
  object["ep"] = p.ep;
  object["etp"] = p.etp;
  optional_word("dispatcher", p.dispatcher);
  optional_switch("ep_overlap", p.ep_overlap);
  if (p.expert_capacity) object["expert_capacity"] = *p.expert_capacity;
  optional_word("tp_overlap", p.tp_overlap);
  optional_switch("overlap_grad_reduce", p.overlap_grad_reduce);
  optional_switch("overlap_param_gather", p.overlap_param_gather);
  optional_word("cuda_graphs", p.cuda_graphs);
  object["rank_order"] = p.rank_order;
  const Numerics& n = plan.numerics;
  object["precision"] = name_of(n.precision);
  optional_word("fp8_recipe", n.fp8_recipe);
  if (n.fp8_params) object["fp8_params"] = true;
  object["optimizer"] = name_of(n.optimizer);
  if (n.lora > 0) object["lora"] = n.lora;
}

void parallel_from_json(const JsonReader& object, Plan& plan) {
  Parallelism& p = plan.parallel;
  read_size(object, "tp", p.tp);
  read_boolean(object, "sp", p.sp);
  if (p.tp == 1 && p.sp == false) p.sp.reset();  // as it is written
  read_size(object, "pp", p.pp);
  read_size(object, "virtual_stages", p.virtual_stages);
  read_word(object, "pp_schedule", p.pp_schedule);
  Parallelism usual;
  usual.virtual_stages = p.virtual_stages;
  if (p.pp_schedule == usual.schedule()) p.pp_schedule.reset();
  p.pp_layout = object.optional<std::string>("pp_layout", p.pp_layout);
  read_size(object, "cp", p.cp);
  read_word(object, "cp_comm", p.cp_comm);
  read_size(object, "ep", p.ep);
  read_size(object, "etp", p.etp);
  read_word(object, "dispatcher", p.dispatcher);
  read_boolean(object, "ep_overlap", p.ep_overlap);
  const auto capacity = object.find<double>("expert_capacity", NumberRange<double>(0, 1e6, true));
  if (capacity) p.expert_capacity = capacity;
  read_word(object, "tp_overlap", p.tp_overlap);
  read_boolean(object, "overlap_grad_reduce", p.overlap_grad_reduce);
  read_boolean(object, "overlap_param_gather", p.overlap_param_gather);
  read_word(object, "cuda_graphs", p.cuda_graphs);
  p.rank_order = object.optional<std::string>("rank_order", p.rank_order);
  Numerics& n = plan.numerics;
  read_word(object, "precision", n.precision);
  read_word(object, "fp8_recipe", n.fp8_recipe);
  n.fp8_params = object.optional<bool>("fp8_params", n.fp8_params);
  read_word(object, "optimizer", n.optimizer);
  read_size(object, "lora", n.lora, 0);
}

}  // namespace shardwright
