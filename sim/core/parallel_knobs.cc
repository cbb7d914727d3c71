// SPDX-License-Identifier: Apache-2.0
#include "sim/core/parallel_knobs.h"

#include <fmt/core.h>

#include "sim/core/parse_value.h"

namespace shardwright {
namespace {

using Text = const std::string&;
using Name = std::string_view;
using P = GivenParallelism;

constexpr CountRange kRanks{1, 1 << 20};

template <auto Member>
void read_size(GivenKnobs& k, Name n, Text t) {
  k.parallel.*Member = parse_count(n, t, kRanks);
}
template <auto Member>
void read_on(GivenKnobs& k, Name n, Text t) {
  k.parallel.*Member = read_switch(n, t);
}
template <typename Enum, auto Member>
void read_word(GivenKnobs& k, Name n, Text t) {
  const std::optional<Enum> value = parallel_word<Enum>(t);
  if (!value) fail_word(n, t, split_commas(words_of<Enum>()));
  k.parallel.*Member = *value;
}
template <auto Member>
void read_text(GivenKnobs& k, Name, Text t) {
  k.parallel.*Member = t;
}

template <auto Member>
std::string write_size(const Plan& plan) {
  const std::int64_t value = plan.parallel.*Member;
  return value == 1 ? std::string() : fmt::format("{}", value);
}
template <auto Member>
std::string write_on(const Plan& plan) {
  const auto& value = plan.parallel.*Member;
  if (!value) return {};
  return *value ? "on" : "off";
}
template <auto Member>
std::string write_word(const Plan& plan) {
  const auto& value = plan.parallel.*Member;
  return value ? std::string(name_of(*value)) : std::string();
}

}  // namespace

std::vector<PlanKnob> parallel_knobs() {
  using Q = Parallelism;
  return {
      {"tp", read_size<&P::tp>, write_size<&Q::tp>},
      {"sp", read_on<&P::sp>, write_on<&Q::sp>},
      {"pp", read_size<&P::pp>, write_size<&Q::pp>},
      {"virtual-stages", read_size<&P::virtual_stages>, write_size<&Q::virtual_stages>},
      {"pp-schedule", read_word<PipelineKind, &P::pp_schedule>, write_word<&Q::pp_schedule>},
      {"pp-layout", read_text<&P::pp_layout>, [](const Plan& p) { return p.parallel.pp_layout; }},
      {"cp", read_size<&P::cp>, write_size<&Q::cp>},
      {"cp-comm", read_word<ContextComm, &P::cp_comm>, write_word<&Q::cp_comm>},
      {"ep", read_size<&P::ep>, write_size<&Q::ep>},
      {"etp", read_size<&P::etp>, write_size<&Q::etp>},
      {"dispatcher", read_word<Dispatcher, &P::dispatcher>, write_word<&Q::dispatcher>},
      {"ep-overlap", read_on<&P::ep_overlap>, write_on<&Q::ep_overlap>},
      {"tp-overlap", read_word<TensorOverlap, &P::tp_overlap>, write_word<&Q::tp_overlap>},
      {"rank-order", read_text<&P::rank_order>,
       [](const Plan& p) {
         return p.parallel.rank_order == Q::kUsualOrder ? std::string() : p.parallel.rank_order;
       }},
      {"precision", read_word<Precision, &P::precision>,
       [](const Plan& p) {
         return p.numerics.precision == Precision::kBf16
                    ? std::string()
                    : std::string(name_of(p.numerics.precision));
       }},
      {"fp8-recipe", read_word<Fp8Recipe, &P::fp8_recipe>,
       [](const Plan& p) {
         return p.numerics.fp8_recipe ? std::string(name_of(*p.numerics.fp8_recipe))
                                      : std::string();
       }},
      {"fp8-params", read_on<&P::fp8_params>,
       [](const Plan& p) { return p.numerics.fp8_params ? std::string("on") : std::string(); }},
      {"optimizer", read_word<Optimizer, &P::optimizer>,
       [](const Plan& p) {
         return p.numerics.optimizer == Optimizer::kAdamw
                    ? std::string()
                    : std::string(name_of(p.numerics.optimizer));
       }},
      {"lora", read_size<&P::lora>,
       [](const Plan& p) {
         return p.numerics.lora == 0 ? std::string() : fmt::format("{}", p.numerics.lora);
       }},
      {"offload",
       [](GivenKnobs& k, Name n, Text t) {
         Plan plan;
         if (!set_offload(plan, t)) fail_word(n, t, {"none", "optimizer", "activations:N"});
         k.offload = Offloading{plan.offload, plan.offload_layers};
       },
       [](const Plan& p) { return p.offload == Offload::kNone ? std::string() : offload_name(p); }},
  };
}

bool read_switch(Name name, Text text) {
  if (text != "on" && text != "off") fail_word(name, text, {"on", "off"});
  return text == "on";
}

void take_parallelism(const GivenParallelism& given, Plan& plan) {
  Parallelism& p = plan.parallel;
  take(given.tp, p.tp);
  take(given.sp, p.sp);
  take(given.pp, p.pp);
  take(given.virtual_stages, p.virtual_stages);
  take(given.pp_schedule, p.pp_schedule);
  take(given.pp_layout, p.pp_layout);
  take(given.cp, p.cp);
  take(given.cp_comm, p.cp_comm);
  take(given.ep, p.ep);
  take(given.etp, p.etp);
  take(given.dispatcher, p.dispatcher);
  take(given.ep_overlap, p.ep_overlap);
  take(given.tp_overlap, p.tp_overlap);
  take(given.rank_order, p.rank_order);
  Numerics& n = plan.numerics;
  take(given.precision, n.precision);
  take(given.fp8_recipe, n.fp8_recipe);
  take(given.fp8_params, n.fp8_params);
  take(given.optimizer, n.optimizer);
  take(given.lora, n.lora);
}

}  // namespace shardwright
